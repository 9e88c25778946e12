// Tests of the CUDA device runtime through its interface: it needs no kernel, for copies are work of a stream
// too, so it runs on the emulated plugin and on a real one. `test_runtime FOLDER NAME` runs one test, `...
// why` says why the plugin cannot be used, `... list` prints the names.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "core/device_runtime.h"
#include "core/errors.h"
#include "core/generator.h"
#include "host_stubs.h"
#include "kernels/slot.h"

using namespace warptape;

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr Device kHost{}, kCuda{DeviceType::CUDA, 0};

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) throw std::logic_error(message(__LINE__, ": " #condition)); \
  } while (0)

DeviceRuntime& runtime() { return runtime_of(DeviceType::CUDA); }
Allocator& allocator() { return runtime().allocator(0); }

int64_t stat(const char* name) {
  for (auto& [key, value] : runtime().memory_stats(0))
    if (key == name) return value;
  throw std::logic_error(message("no statistic ", name));
}

class OnStream {
 public:
  explicit OnStream(StreamHandle stream) : old_(runtime().current_stream(0)) {
    runtime().set_current_stream(0, stream);
  }
  ~OnStream() { runtime().set_current_stream(0, old_); }

 private:
  StreamHandle old_;
};

// Device memory of uint64 numbers.
struct Buffer {
  explicit Buffer(size_t count) : n(count), p(allocator().allocate(bytes())) {}
  ~Buffer() { allocator().deallocate(p, bytes()); }
  Buffer(const Buffer&) = delete;
  size_t bytes() const { return n * 8; }
  // From pageable memory, so that the call does not wait for the device.
  void fill(uint64_t value) {
    std::vector<uint64_t> host(n, value);
    runtime().copy(p, kCuda, host.data(), kHost, bytes(), true);
  }
  void take(const void* from) { runtime().copy(p, kCuda, from, kCuda, bytes(), false); }
  std::vector<uint64_t> read() const {
    std::vector<uint64_t> host(n);
    runtime().copy(host.data(), kHost, p, kCuda, bytes(), false);
    return host;
  }
  bool all(uint64_t value) const {
    for (uint64_t v : read())
      if (v != value) return false;
    return true;
  }
  size_t n;
  void* p;
};

template <class E>
std::string thrown(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& e) {
    return e.what();
  }
  throw std::logic_error("nothing was thrown");
}
bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// Random blocks on several streams against a model: live blocks do not overlap, each keeps the numbers that
// were written to it in its stream's order, and the statistics are the model's.
void stress() {
  struct Live {
    std::unique_ptr<Buffer> buffer;
    uint64_t value;
    StreamHandle stream;
  };
  std::mt19937_64 random(7);
  std::vector<StreamHandle> streams{nullptr};
  for (int i = 0; i < 3; ++i) streams.push_back(runtime().new_stream(0, i % 2 ? -1 : 0));
  std::map<const char*, Live> live;
  int64_t held = 0, peak = 0, asked = 0;
  auto drop = [&](std::map<const char*, Live>::iterator it) {
    OnStream on(it->second.stream);
    CHECK(it->second.buffer->all(it->second.value));
    held -= (static_cast<int64_t>(it->second.buffer->bytes()) + 511) / 512 * 512;
    asked -= static_cast<int64_t>(it->second.buffer->bytes());
    live.erase(it);
  };
  for (int step = 0; step < 2000; ++step) {
    if (live.size() < 20 || (random() % 2 && live.size() < 60)) {
      StreamHandle stream = streams[random() % streams.size()];
      OnStream on(stream);
      size_t shift = random() % 18;  // sizes of all magnitudes, up to 2 MiB
      auto buffer = std::make_unique<Buffer>(1 + random() % (size_t{1} << shift));
      buffer->fill(static_cast<uint64_t>(step));
      auto* start = static_cast<const char*>(buffer->p);
      CHECK(reinterpret_cast<uintptr_t>(start) % 512 == 0);
      auto next = live.lower_bound(start);
      CHECK(next == live.end() || start + buffer->bytes() <= next->first);
      if (next != live.begin())
        CHECK(std::prev(next)->first + std::prev(next)->second.buffer->bytes() <= start);
      asked += static_cast<int64_t>(buffer->bytes());
      held += (static_cast<int64_t>(buffer->bytes()) + 511) / 512 * 512;
      live.emplace(start, Live{std::move(buffer), static_cast<uint64_t>(step), stream});
    } else {
      drop(std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size())));
    }
    // A large block may keep up to 1 MiB more than asked, so the model is a lower bound there.
    int64_t now = stat("allocated_bytes.all.current");
    CHECK(now >= held && now <= held + static_cast<int64_t>(live.size() * kMiB));
    peak = std::max(peak, now);
    CHECK(stat("allocated_bytes.all.peak") == peak && stat("requested_bytes.all.current") == asked);
    CHECK(stat("allocation.all.current") == static_cast<int64_t>(live.size()));
    CHECK(stat("reserved_bytes.all.current") >= now);
  }
  while (!live.empty()) drop(live.begin());
  CHECK(stat("allocated_bytes.all.current") == 0 && stat("active_bytes.all.current") == 0);
  CHECK(stat("inactive_split_bytes.all.current") == 0);  // all parts have grown together again
  CHECK(stat("allocated_bytes.all.allocated") == stat("allocated_bytes.all.freed"));
  allocator().empty_cache();
  CHECK(stat("reserved_bytes.all.current") == 0 && stat("segment.all.current") == 0);
}

// To free asks for nodes of the allocator's lists; without them the block is lost, and the process lives.
void frees_without_host_memory() {
  void* p = allocator().allocate(800);
  with_full_host([&] { allocator().deallocate(p, 800); });
  CHECK(allocator().allocate(800) != p);
}

// Threads with streams of their own, which free each other's blocks.
void threads() {
  std::mutex mutex;
  std::vector<std::unique_ptr<Buffer>> shared;
  std::atomic<int> bad{0};
  auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    OnStream on(runtime().new_stream(0, 0));
    for (int i = 0; i < 200; ++i) {
      auto buffer = std::make_unique<Buffer>(1 + random() % 50000);
      buffer->fill(seed * 1000 + static_cast<unsigned>(i));
      if (!buffer->all(seed * 1000 + static_cast<unsigned>(i))) ++bad;
      std::lock_guard lock(mutex);
      shared.push_back(std::move(buffer));
      if (shared.size() > 8) shared.erase(shared.begin());
    }
  };
  std::vector<std::thread> all;
  for (unsigned seed = 1; seed <= 4; ++seed) all.emplace_back(work, seed);
  for (auto& t : all) t.join();
  shared.clear();
  CHECK(bad == 0 && stat("allocated_bytes.all.current") == 0);
}

// A block freed while another stream reads it is not handed out before that stream is done, if that is said.
void use_on_two_streams(bool recorded) {
  StreamHandle one = runtime().new_stream(0, 0), two = runtime().new_stream(0, 0);
  EventHandle written = runtime().new_event(0, false, false);
  OnStream on(one);
  Buffer result(1000);
  const void* address = nullptr;
  {
    Buffer a(1000);
    address = a.p;
    a.fill(5);
    runtime().record_event(written, 0, one);
    runtime().wait_event(0, two, written);
    {
      OnStream reading(two);
      result.take(a.p);
    }
    if (recorded) runtime().record_stream(static_cast<char*>(a.p) + 16, 0, two);  // any address within
  }
  if (!recorded) Buffer(1000).fill(6);  // the emulator ends the process
  CHECK(stat("active_bytes.all.current") > stat("allocated_bytes.all.current"));
  {
    Buffer b(1000);
    CHECK(b.p != address);
    b.fill(6);
  }
  runtime().synchronize_stream(0, two);
  CHECK(result.all(5));
  Buffer again(1000), more(1000);
  CHECK(again.p == address || more.p == address);
  runtime().record_stream(&address, 0, two);  // not ours: no matter
  runtime().free_event(written);
}

void recorded_streams() { use_on_two_streams(true); }
void unrecorded_stream() { use_on_two_streams(false); }

void out_of_memory() {
  auto [free, total] = runtime().memory_info(0);
  CHECK(free > 0 && free <= total && total == runtime().properties(0).total_memory);
  std::string text = thrown<OutOfMemoryError>([&] { Buffer all(static_cast<size_t>(total) / 4); });
  for (const char* part : {"CUDA out of memory. Tried to allocate ", "cuda:0", " free of ",
                           "tensors of this process hold", "largest free"})
    CHECK(has(text, part));
  CHECK(stat("num_ooms") == 1 && stat("allocated_bytes.all.current") == 0);
  thrown<OutOfMemoryError>([] { allocator().allocate(SIZE_MAX - 100); });

  double fraction = 64.0 * kMiB / static_cast<double>(total);
  runtime().set_memory_fraction(0, fraction);
  thrown<ValueError>([] { runtime().set_memory_fraction(0, 1.5); });
  StreamHandle other = runtime().new_stream(0, 0);
  {
    OnStream on(other);
    Buffer cached(40 * kMiB / 8);  // stays with the other stream
  }
  int64_t retries = stat("num_alloc_retries");
  Buffer most(60 * kMiB / 8);  // needs that memory: the cache is given back
  CHECK(stat("num_alloc_retries") == retries + 1 && stat("reserved_bytes.all.current") == 60 * kMiB);
  most.fill(3);
  text = thrown<OutOfMemoryError>([] { Buffer more(20 * kMiB / 8); });
  CHECK(has(text, "set_per_process_memory_fraction limits this process to 64.00 MiB"));
  CHECK(most.all(3));
  Buffer small(100);  // and what fits goes on
  small.fill(4);
  CHECK(small.all(4));
  runtime().set_memory_fraction(0, 1.0);
}

void host_memory() {
  Allocator& host = runtime().host_allocator();
  int on_stack = 0;
  auto* first = static_cast<uint64_t*>(host.allocate(3000));
  CHECK(runtime().is_page_locked(first) && runtime().is_page_locked(first + 10));
  CHECK(!runtime().is_page_locked(&on_stack) && !runtime().is_page_locked(nullptr));
  Buffer device(300);
  for (uint64_t i = 0; i < 300; ++i) first[i] = i;
  runtime().copy(device.p, kCuda, first, kHost, 2400, true);
  host.deallocate(first, 3000);
  auto* second = static_cast<uint64_t*>(host.allocate(2500));  // the same size class, but in flight
  CHECK(second != first);
  std::memset(second, 0xff, 2500);
  runtime().synchronize(0);
  auto* third = static_cast<uint64_t*>(host.allocate(4000));
  CHECK(third == first && host.stats().cache_hits == 1);
  for (uint64_t i = 0; i < 300; ++i) CHECK(device.read()[i] == i);
  runtime().copy(third, kHost, device.p, kCuda, 2400, true);  // and back
  runtime().synchronize_stream(0, nullptr);
  CHECK(third[299] == 299);
  host.deallocate(second, 2500);
  host.deallocate(third, 4000);
  host.empty_cache();
  CHECK(host.stats().allocated == 0 && host.stats().reserved == 0);
}

// Replays see new inputs, draw new numbers, and own their memory.
void graphs() {
  StreamHandle stream = runtime().new_stream(0, 0);
  OnStream on(stream);
  auto owner = Ref<Generator>::adopt(new Generator(kCuda, 11));
  Generator& generator = *owner;
  Buffer input(500), output(500), drawn(2);
  input.fill(1);
  output.fill(0);
  runtime().synchronize(0);
  int64_t reserved = stat("reserved_bytes.all.current");
  uint64_t pool = runtime().new_pool();
  CHECK(!runtime().is_capturing());
  runtime().begin_capture(0, pool, "thread_local");
  CHECK(runtime().is_capturing());
  const void* inner = nullptr;
  {
    Buffer between(500);
    inner = between.p;
    between.take(input.p);
    output.take(between.p);
  }
  kernels::PhiloxKey zero = generator.next_philox(), one = generator.next_philox();
  CHECK(zero.captured && zero.captured == one.captured && zero.call == 0 && one.call == 1);
  auto state = generator.state();
  kernels::PhiloxKey two = generator.next_philox();
  generator.set_state(state);  // as a checkpointed layer does
  CHECK(two.call == 2 && generator.next_philox().call == 2);
  drawn.take(zero.captured);
  std::string text = thrown<DeviceError>([&] { input.read(); });
  CHECK(has(text, "captured"));
  GraphHandle graph = runtime().end_capture(0);
  CHECK(!runtime().is_capturing() && output.all(0));  // nothing ran

  uint64_t calls = 0;
  CHECK(generator.next_philox().call == calls++);  // nothing was drawn either
  for (uint64_t round = 7; round < 10; ++round) {
    input.fill(round);
    runtime().replay(graph);
    CHECK(output.all(round));
    CHECK((drawn.read() == std::vector<uint64_t>{11, calls}));
    calls += 3;
    CHECK(generator.next_philox().call == calls++);  // and draws outside go on behind the graph's
  }
  generator.manual_seed(12);
  runtime().replay(graph);
  CHECK((drawn.read() == std::vector<uint64_t>{12, 0}));
  for (int i = 0; i < 20; ++i) {
    Buffer outside(500);
    CHECK(outside.p != inner);
  }
  allocator().empty_cache();
  CHECK(stat("reserved_bytes.all.current") > reserved);
  runtime().free_graph(graph);
  allocator().empty_cache();
  CHECK(stat("reserved_bytes.all.current") == reserved);
}

void broken_captures() {
  thrown<DeviceError>([] { runtime().begin_capture(0, 1, "global"); });  // on the default stream
  thrown<DeviceError>([] { runtime().end_capture(0); });
  StreamHandle stream = runtime().new_stream(0, 0);
  OnStream on(stream);
  thrown<ValueError>([] { runtime().begin_capture(0, 1, "strict"); });
  runtime().begin_capture(0, 1, "global");
  thrown<DeviceError>([] { runtime().begin_capture(0, 2, "global"); });
  std::string text = thrown<DeviceError>([&] { runtime().synchronize_stream(0, stream); });
  CHECK(has(text, "captured"));
  thrown<DeviceError>([] { runtime().end_capture(0); });
  CHECK(!runtime().is_capturing());
  Buffer after(10);  // all goes on as before
  after.fill(2);
  CHECK(after.all(2));
  CHECK(!Ref<Generator>::adopt(new Generator(kCuda))->next_philox().captured);
}

void faults() {
  kernels::IndexFault* fault = runtime().fault_record(0);
  auto report = [&] { *fault = {true, -9, 5, "embedding"}; };
  report();
  CHECK(thrown<IndexError>([] { runtime().synchronize(0); }) ==
        "embedding: index -9 is out of bounds for dimension with size 5");
  runtime().synchronize(0);  // it was cleared
  Buffer buffer(4);
  buffer.fill(1);
  report();
  thrown<IndexError>([&] { buffer.read(); });
  CHECK(buffer.all(1));  // the context lives
  report();
  thrown<IndexError>([] { runtime().raise_fault(0); });
  runtime().raise_fault(0);
}

void events_and_streams() {
  EventHandle start = runtime().new_event(0, true, false), end = runtime().new_event(0, true, true);
  StreamHandle stream = runtime().new_stream(0, -100);
  OnStream on(stream);
  Buffer buffer(100000);
  runtime().record_event(start, 0, stream);
  buffer.fill(1);
  runtime().record_event(end, 0, stream);
  runtime().synchronize_event(end);
  CHECK(runtime().event_done(start) && runtime().event_done(end));
  CHECK(runtime().elapsed_ms(start, end) >= 0);
  runtime().synchronize_stream(0, stream);
  CHECK(runtime().stream_done(0, stream) && runtime().current_stream(0) == stream);
  std::thread([] { CHECK(runtime().current_stream(0) == nullptr); }).join();
  EventHandle plain = runtime().new_event(0, false, false);
  thrown<DeviceError>([&] { runtime().elapsed_ms(start, plain); });
  for (EventHandle e : {start, end, plain}) runtime().free_event(e);
  StreamHandle first = runtime().new_stream(0, 0), last = first;
  for (int i = 0; i < 32; ++i) last = runtime().new_stream(0, 0);
  CHECK(first == last);  // 32 in turn
}

void devices() {
  int n = runtime().device_count();
  CHECK(n > 0 && runtime().current_device() == 0);
  CHECK(has(thrown<DeviceError>([&] { runtime().set_current_device(n); }), "there is no device cuda:"));
  thrown<DeviceError>([&] { runtime().allocator(-1); });
  thrown<DeviceError>([&] { runtime().properties(n); });
  CHECK(runtime().properties(0).uuid.size() == 40 && runtime().versions().size() >= 2);
  CHECK(runtime().get_switch("cudnn.allow_tf32") && !runtime().get_switch("cuda.matmul.allow_tf32"));
  runtime().set_switch("cuda.matmul.allow_tf32", true);
  CHECK(runtime().get_switch("cuda.matmul.allow_tf32"));
  CHECK(has(thrown<ValueError>([] { runtime().get_switch("cudnn.speed"); }), "cudnn.benchmark"));
  runtime().range_push("range");
  runtime().range_pop();
  runtime().mark("mark");
  if (n < 2) return;
  Device second{DeviceType::CUDA, 1};
  runtime().set_current_device(1);
  void* there = runtime().allocator(1).allocate(800);
  Buffer here(100), back(100);
  here.fill(9);
  runtime().fill_zero(there, 1, 800);  // not yet done when the copy is queued, and before it all the same
  runtime().copy(there, second, here.p, kCuda, 800, true);
  runtime().synchronize(0);
  runtime().copy(back.p, kCuda, there, second, 800, true);
  CHECK(back.all(9));
  runtime().fill_zero(there, 1, 800);
  runtime().copy(back.p, kCuda, there, second, 800, true);
  CHECK(back.all(0));
  void* moved = runtime().allocator(1).allocate(800);  // freed while another stream of its device uses it
  runtime().record_stream(moved, 1, runtime().new_stream(1, 0));
  here.fill(1);  // makes the first device the thread's own again
  runtime().allocator(1).deallocate(moved, 800);
  runtime().synchronize(1);
  CHECK(runtime().allocator(1).allocate(800) == moved);
  runtime().allocator(1).deallocate(moved, 800);
  runtime().allocator(1).deallocate(there, 800);
  CHECK(runtime().memory_stats(1).size() == runtime().memory_stats(0).size());
}

// Tensors may outlive main, and the driver may be gone by then.
struct Late {
  ~Late() {
    if (buffer) runtime().record_stream(buffer->p, 0, other);
    delete buffer;
    runtime().free_event(event);
    runtime().free_graph(graph);
  }
  Buffer* buffer = nullptr;
  StreamHandle other = nullptr;
  EventHandle event = nullptr;
  GraphHandle graph = nullptr;
};
void exit_with_tensors() {
  static Late late;
  late.other = runtime().new_stream(0, 0);
  late.buffer = new Buffer(100);
  late.buffer->fill(1);
  late.event = runtime().new_event(0, false, false);
  OnStream on(late.other);
  runtime().begin_capture(0, runtime().new_pool(), "relaxed");
  late.graph = runtime().end_capture(0);
}

kernels::Slot<void(const kernels::LaunchContext&, uint64_t*, int64_t, int, uint64_t)> probe{"probe"};
void add(Buffer& to, uint64_t value, int threads = 32) {
  kernels::LaunchContext ctx;
  ctx.device = DeviceType::CUDA;
  ctx.stream = runtime().current_stream(0);
  ctx.fault = runtime().fault_record(0);
  probe(ctx, static_cast<uint64_t*>(to.p), static_cast<int64_t>(to.n), threads, value);
}

void kernel_launches() {
  Buffer buffer(32);
  buffer.fill(1);
  add(buffer, 2);
  CHECK(buffer.all(3));
  std::string text = thrown<DeviceError>([&] { add(buffer, 1, 5000); });
  CHECK(has(text, "probe: CUDA error: ") && has(text, "cudaErrorInvalidConfiguration") &&
        !has(text, "process"));
  CHECK(buffer.all(3));  // that one is no reason to stop
  OnStream on(runtime().new_stream(0, 0));
  runtime().begin_capture(0, runtime().new_pool(), "global");
  add(buffer, 10);
  GraphHandle graph = runtime().end_capture(0);
  for (int i = 0; i < 3; ++i) runtime().replay(graph);
  CHECK(buffer.all(33));
  runtime().free_graph(graph);
}

// A kernel's bad index is raised by the next synchronisation, or at once where launches block.
void bad_index() {
  Buffer buffer(20);
  buffer.fill(0);
  auto raises = [](const std::function<void()>& body) {
    CHECK(thrown<IndexError>(body) == "probe: index 20 is out of bounds for dimension with size 20");
  };
  if (std::getenv("WARPTAPE_LAUNCH_BLOCKING")) {
    raises([&] { add(buffer, 1); });
  } else {
    add(buffer, 1);
    raises([&] { runtime().synchronize(0); });
  }
  CHECK(buffer.all(1));
}

// The environment turns caching off: a tensor's memory is a segment of its own, and goes with it.
void uncached() {
  const StreamHandle other = runtime().new_stream(0, 0);
  OnStream on(runtime().new_stream(0, 0));
  for (int i = 0; i < 3; ++i) {
    Buffer buffer(25), large(kMiB);
    buffer.fill(7), large.fill(8);
    add(buffer, 1, 25);
    CHECK(stat("reserved_bytes.all.current") == static_cast<int64_t>(buffer.bytes() + large.bytes()));
    runtime().record_stream(buffer.p, 0, other);
    CHECK(buffer.all(8) && large.all(8));
  }
  allocator().empty_cache();
  CHECK(stat("reserved_bytes.all.current") == 0 && stat("segment.all.allocated") == 6);
  runtime().begin_capture(0, runtime().new_pool(), "global");
  auto* captured = new Buffer(10);
  add(*captured, 1, 10);
  GraphHandle graph = runtime().end_capture(0);
  captured->fill(1);
  runtime().replay(graph);
  CHECK(captured->all(2));
  delete captured;
  runtime().free_graph(graph);
  allocator().empty_cache();
  CHECK(stat("reserved_bytes.all.current") == 0);
}

// A kernel that touches one number more than there is: without caching and by a small alignment it aborts.
void overrun() {
  Buffer buffer(24), other(24);
  buffer.fill(0), other.fill(0);
  kernels::LaunchContext ctx;
  ctx.device = DeviceType::CUDA;
  ctx.stream = runtime().current_stream(0);
  ctx.fault = runtime().fault_record(0);
  probe(ctx, static_cast<uint64_t*>(buffer.p), 25, 25, 1);
  runtime().synchronize(0);
}

// The environment names "probe" as a kernel that dies: the error stays for the rest of the process.
void dead_kernel() {
  bool blocking = std::getenv("WARPTAPE_LAUNCH_BLOCKING");
  Buffer buffer(32);
  std::string text = thrown<DeviceError>([&] {
    add(buffer, 1);
    CHECK(!blocking);
    runtime().synchronize(0);
  });
  CHECK(has(text, blocking ? "probe: CUDA error: an illegal memory access"
                           : "synchronize: CUDA error: an illegal"));
  CHECK(has(text, "only a new process helps") && has(text, "WARPTAPE_LAUNCH_BLOCKING=1") == !blocking);
  for (int i = 0; i < 2; ++i)
    CHECK(has(thrown<DeviceError>([&] { buffer.read(); }),
              ("copy: CUDA failed earlier in this process: " + text).c_str()));
}

// Prints how the failure reads that the environment plants, and whether the device is of use after it.
void failing_kernel() {
  Buffer buffer(32);
  buffer.fill(5);
  std::puts(thrown<DeviceError>([&] {
              add(buffer, 1);
              runtime().synchronize(0);
            }).c_str());
  try {
    std::puts(buffer.all(5) ? "usable" : "wrong numbers");
  } catch (const DeviceError&) {
    std::puts("lost");
  }
}

const std::map<std::string, void (*)()> kTests = {
    {"stress", stress},
    {"frees_without_host_memory", frees_without_host_memory},
    {"threads", threads},
    {"recorded_streams", recorded_streams},
    {"unrecorded_stream", unrecorded_stream},
    {"out_of_memory", out_of_memory},
    {"host_memory", host_memory},
    {"graphs", graphs},
    {"broken_captures", broken_captures},
    {"faults", faults},
    {"events_and_streams", events_and_streams},
    {"devices", devices},
    {"exit_with_tensors", exit_with_tensors},
    {"kernel_launches", kernel_launches},
    {"bad_index", bad_index},
    {"dead_kernel", dead_kernel},
    {"failing_kernel", failing_kernel},
    {"uncached", uncached},
    {"overrun", overrun},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  set_plugin_folder(argv[1]);
  std::string name = argv[2], why;
  if (name == "list") {
    for (auto& [test, body] : kTests) std::puts(test.c_str());
  } else if (name == "why") {
    std::puts(find_runtime(DeviceType::CUDA, &why) ? "usable" : why.c_str());
  } else {
    try {
      kTests.at(name)();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s failed: %s\n", argv[2], e.what());
      return 1;
    }
  }
  return 0;
}
