#include "graph/run/captured.h"

#include <algorithm>
#include <deque>
#include <map>

#include "graph/ir/arguments.h"
#include "graph/record/region.h"

namespace warptape::graph {
namespace {

constexpr int kAlike = 2, kMostUnlike = 20;

DeviceRuntime& runtime() { return runtime_of(DeviceType::CUDA); }

Call full_copy_of(const Call& c) {
  Call out = copy_of(c, [](const Tensor& t) { return t; });
  out.in = c.in;
  out.out = c.out;
  if (c.backward) out.backward = std::make_unique<NodeCall>(*c.backward);
  return out;
}

// The versions that ops count when they run.
void count_changes(const std::vector<Call>& calls) {
  for (const Call& c : calls)
    for (size_t k = 0; c.kind == CallKind::Op && !c.bumped && k < c.out.size(); ++k)
      if (c.results[k] == kInPlaceResult) c.out[k].bump_version();
}

// The storage of each memory; null of those that are another's.
std::vector<Ref<Storage>> storages_of(const Program& p, const std::vector<Call>& calls) {
  std::vector<Ref<Storage>> out(p.memories.size());
  for (const Step& step : p.steps)
    for (uint32_t i : step.insns) {
      const Insn& insn = p.insns[i];
      const auto collect = [&](const auto& operands, const auto& tensors) {
        for (size_t k = 0; k < operands.size(); ++k)
          if (!p.memories[operands[k].memory].recomputes)
            out[operands[k].memory] = Ref<Storage>::share(&tensors[k].storage());
      };
      collect(insn.in, calls[insn.call].in);
      collect(insn.out, calls[insn.call].out);
    }
  return out;
}

// Where calls of a stream are captured: its graphs run one after the other, so that they may share memory.
struct CaptureStream {
  StreamHandle stream;
  uint64_t pool;
};
CaptureStream capture_stream_of(Device device, StreamHandle stream) {
  static std::mutex mutex;
  static std::map<std::pair<int, StreamHandle>, CaptureStream> all;
  std::lock_guard lock(mutex);
  auto [at, is_new] = all.try_emplace({device.index, stream});
  if (is_new) at->second = {runtime().new_stream(device.index, 0), runtime().new_pool()};
  return at->second;
}

// While it lives the storage has other memory.
class MemorySwap {
 public:
  MemorySwap(Storage& s, void* data) : storage_(s), before_(s.exchange(data, [](void*) {}, nullptr)) {}
  ~MemorySwap() { storage_.materialize(*before_); }
  MemorySwap(const MemorySwap&) = delete;
  MemorySwap& operator=(const MemorySwap&) = delete;

 private:
  Storage& storage_;
  Ref<Storage> before_;
};

}  // namespace

Captured::~Captured() { forget(); }

std::string Captured::problem() const {
  std::lock_guard lock(mutex_);
  return problem_;
}

void Captured::forget() {
  if (graph_) runtime().free_graph(std::exchange(graph_, nullptr));
  for (Memory& m : memories_) m.own = {};
}

void Captured::give_up(std::string why) {
  forget();
  state_ = State::Refused;
  problem_ = std::move(why);
}

void Captured::run(const Executable& program, std::vector<Call>& calls) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || state_ == State::Refused || runtime().is_capturing()) return program.run(calls);
  Storages storages = storages_of(program.program, calls);
  if (!same(program.program, calls, storages)) {
    storages.clear();  // who holds what decides where kernels may work in place
    return program.run(calls);
  }
  if (state_ == State::Watching && try_out(program, calls, storages)) state_ = State::Tried;
  if (state_ == State::Refused) return storages.clear(), program.run(calls);
  if (state_ == State::Tried)
    capture(program, calls, storages);
  else
    count_changes(calls);
  replay(storages);
}

// Whether all of the program is on one GPU; makes the list of its memories.
bool Captured::look_at(const Program& p) {
  for (const ProgramMemory& m : p.memories) {
    if (!m.device.is_cuda() || m.device != p.memories[0].device) return false;
    memories_.push_back({.in = m.in, .out = m.out, .fixed = false, .own = {}});
  }
  for (const Step& s : p.steps)
    for (uint32_t i : s.insns)
      for (const Operand& o : p.insns[i].out)
        if (Memory& m = memories_[p.storage_of(o.memory)]; m.in && m.out) m.fixed = true;
  device_ = p.memories[0].device;
  return true;
}

// Whether these calls are as those of the runs before, and enough were. Remembers them.
bool Captured::same(const Program& p, const std::vector<Call>& calls, const Storages& storages) {
  std::string arguments, why;
  for (const Call& c : calls)
    if (!c.keys.empty()) return give_up("it draws random numbers"), false;
  if (!put_arguments(arguments, calls, why)) return give_up(why), false;
  if (memories_.empty() && !look_at(p)) return give_up("its memory is not on one GPU"), false;
  const StreamHandle stream = runtime().current_stream(device_.index);
  bool equal = arguments == arguments_ && stream == stream_, moved = false;
  for (size_t m = 0; m < memories_.size(); ++m) {
    Memory& memory = memories_[m];
    if (!storages[m] || !memory.in || memory.copied) continue;
    void* before = std::exchange(memory.address, storages[m]->data());
    if (before == memory.address) continue;
    if (memory.fixed || !before)
      equal = false;
    else
      memory.copied = moved = true;
  }
  if (equal && !moved && graph_) return true;
  if (graph_ || !equal) ++unlike_;
  if (unlike_ > kMostUnlike) return give_up("its arguments change from run to run"), false;
  forget();
  state_ = State::Watching;
  arguments_ = std::move(arguments);
  stream_ = stream;
  alike_ = equal ? alike_ + 1 : 0;
  return alike_ >= kAlike;
}

// Records what the program gives the device. Throws what an op throws that cannot be captured.
void Captured::record(const Executable& program, std::vector<Call>& calls, const Storages& storages) {
  DeviceRuntime& r = runtime();
  const CaptureStream capture_stream = capture_stream_of(device_, stream_);
  std::deque<MemorySwap> swaps;
  for (size_t m = 0; m < memories_.size(); ++m)
    if (memories_[m].own && memories_[m].in) swaps.emplace_back(*storages[m], memories_[m].own->data());
  struct Side {
    int index;
    StreamHandle before;
    ~Side() { runtime().set_current_stream(index, before); }
  } side{device_.index, r.current_stream(device_.index)};
  r.set_current_stream(device_.index, capture_stream.stream);
  r.begin_capture(device_.index, capture_stream.pool, "thread_local");
  try {
    program.run(calls);
  } catch (...) {
    try {
      r.free_graph(r.end_capture(device_.index));
    } catch (const std::exception&) {  // broken by what failed
    }
    throw;
  }
  graph_ = r.end_capture(device_.index);
}

// On copies of the calls; results that had no memory have none afterwards.
bool Captured::try_out(const Executable& program, const std::vector<Call>& calls, const Storages& storages) {
  for (size_t m = 0; m < memories_.size(); ++m)
    if (Memory& memory = memories_[m]; storages[m] && memory.in && memory.copied)
      memory.own = Storage::allocate_now(storages[m]->bytes(), device_);
  std::vector<Call> copies;
  std::vector<std::pair<Storage*, uint32_t>> versions;
  for (const Call& c : calls) copies.push_back(full_copy_of(c));
  for (const Ref<Storage>& s : storages)
    if (s) versions.emplace_back(s.get(), s->version());
  std::string why;
  try {
    record(program, copies, storages);
  } catch (const std::exception& e) {
    why = std::string("it cannot be captured: ") + e.what();
    *failed_op = nullptr;
  }
  copies.clear();
  for (const auto& [s, version] : versions) s->set_version(version);
  for (size_t m = 0; m < memories_.size(); ++m)
    if (storages[m] && !memories_[m].in && !storages[m]->is_deferred()) storages[m]->drop();
  if (graph_) runtime().free_graph(std::exchange(graph_, nullptr));
  if (!why.empty()) give_up(why);
  return why.empty();
}

void Captured::capture(const Executable& program, std::vector<Call>& calls, const Storages& storages) {
  record(program, calls, storages);
  for (size_t m = 0; m < memories_.size(); ++m) {
    if (!storages[m] || !memories_[m].out || memories_[m].in) continue;
    Storage& s = *storages[m];
    memories_[m].own = s.exchange(nullptr, nullptr, nullptr);
    s.materialize(*Storage::allocate_now(s.bytes(), device_));
  }
  state_ = State::Ready;
}

void Captured::replay(const Storages& storages) {
  DeviceRuntime& r = runtime();
  const auto copy = [&](Storage& to, Storage& from) {
    r.copy(to.data(), device_, from.data(), device_, from.bytes(), true);
  };
  for (size_t m = 0; m < memories_.size(); ++m)
    if (memories_[m].own && memories_[m].in) copy(*memories_[m].own, *storages[m]);
  r.replay(graph_);
  for (size_t m = 0; m < memories_.size(); ++m) {
    if (!memories_[m].own || memories_[m].in) continue;
    if (storages[m]->is_deferred()) storages[m]->materialize();
    copy(*storages[m], *memories_[m].own);
  }
  ++replays_;
}

}  // namespace warptape::graph
