#include "distributed/group/process_group.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/device_runtime.h"
#include "core/profiler.h"
#include "distributed/group/world.h"
#include "distributed/transport/shm/shm_backend.h"
#include "kernels/runtime/interrupt.h"
#include "tensor/before_write.h"
#include "tensor/deferral.h"
#include "tensor/factory.h"

namespace warptape::distributed {

Work::~Work() = default;

namespace {

const std::string kRecord = "\nflight record: ";

std::mutex factories_mutex;
std::map<std::string, BackendFactory>& factories() {
  static auto* all = new std::map<std::string, BackendFactory>{
      {"shm",
       [](const std::shared_ptr<Store>& store, int rank, int size,
          Milliseconds timeout) -> std::unique_ptr<Backend> {
         return std::make_unique<ShmBackend>(*store, rank, size, timeout);
       }}};
  return *all;
}

// Opens the plugin that would bring it; null and why where there is none.
BackendFactory find_backend(const std::string& name, std::string& why) {
  auto known = [&]() -> BackendFactory {
    std::lock_guard lock(factories_mutex);
    auto at = factories().find(name);
    return at == factories().end() ? nullptr : at->second;
  };
  if (BackendFactory factory = known()) return factory;
  if (name == "nccl") {
    if (!find_runtime(DeviceType::CUDA, &why)) return nullptr;
    why = "the CUDA plugin was built without NCCL's header (`pip install nvidia-nccl-cu13`)";
  } else if (name == "gloo") {
    why = open_plugin(name,
                      "this warptape was built without gloo; `apt-get install libgloo-dev` and build it "
                      "again with `pip install --force-reinstall . -C cmake.define.WARPTAPE_GLOO=ON`");
  } else if (name == "mpi") {
    why = open_plugin(name,
                      "this warptape was built without MPI; `apt-get install libopenmpi-dev openmpi-bin` (or "
                      "load your cluster's MPI) and build it again with `pip install --force-reinstall . -C "
                      "cmake.define.WARPTAPE_MPI=ON`");
  }
  return known();
}

// What a call works on: contiguous tensors, and those of them that are copies of tensors that are not.
struct Staged {
  Collective call;
  std::vector<std::pair<Tensor, Tensor>> copies;  // the user's tensor, its contiguous copy

  explicit Staged(Collective c) : call(std::move(c)) {
    // A compiled region may have calls pending that read what is written here.
    if (thread_state().deferral) thread_state().deferral->flush();
    for (Tensor& t : call.inputs) t = raw_contiguous(t);
    for (Tensor& t : call.outputs) {
      before_write(t);
      t.bump_version();
      if (t.is_contiguous()) continue;
      Tensor copy = raw_contiguous(t);
      copies.emplace_back(t, copy);
      t = copy;
    }
  }
  void copy_back() {
    for (auto& [to, from] : copies) raw_copy(to, from);
  }
};

// Adds the time of its scope to what the rank has waited.
class Waiting {
 public:
  explicit Waiting(World& world) : world_(world) {}
  ~Waiting() { world_.waited += std::chrono::nanoseconds(Clock::now() - start_).count(); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  World& world_;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace

void register_backend(const std::string& name, BackendFactory factory) {
  std::lock_guard lock(factories_mutex);
  factories()[name] = factory;
}

bool has_backend(const std::string& name) {
  std::string why;
  return find_backend(name, why) != nullptr;
}

// A collective, in the queue or at work. Its state is guarded by the group's mutex.
struct ProcessGroup::Job final : Work {
  Job(std::shared_ptr<ProcessGroup> g, Collective c, std::string s)
      : group(std::move(g)), staged(std::move(c)), site(std::move(s)) {}
  bool is_completed() override {
    group->world_->check_process(name_of(staged.call.op));
    std::lock_guard lock(group->mutex_);
    return over;
  }
  std::exception_ptr exception() override {
    std::lock_guard lock(group->mutex_);
    return error;
  }
  void wait(std::optional<Milliseconds> limit) override {
    group->world_->check_process(name_of(staged.call.op));
    const ProfiledScope profiled("c10d::wait", EventKind::Collective);
    const Waiting waiting(*group->world_);
    const auto deadline = Clock::now() + limit.value_or(group->timeout() * 2);
    std::unique_lock lock(group->mutex_);
    while (!over) {
      group->changed_.wait_for(lock, Milliseconds(20));
      if (over) break;
      lock.unlock();
      kernels::cpu::poll_interrupt();
      WT_CHECK(Clock::now() < deadline, DistBackendError, describe(staged.call), " at ", site,
               ": wait timed out; the work is still running, and may be waited for again");
      lock.lock();
    }
    if (error) std::rethrow_exception(error);
  }
  void end(std::exception_ptr e) {
    std::lock_guard lock(group->mutex_);
    error = e, over = true;
    group->changed_.notify_all();
  }

  std::shared_ptr<ProcessGroup> group;
  Staged staged;
  std::string site;
  uint64_t sequence = 0, flight = 0;
  Milliseconds limit{};
  bool over = false;
  std::exception_ptr error;
  friend class ProcessGroup;
};

struct ProcessGroup::PointToPoint final : Work {
  PointToPoint(std::shared_ptr<ProcessGroup> g, Collective c) : group(std::move(g)), staged(std::move(c)) {}
  bool is_completed() override {
    group->world_->check_process(name_of(staged.call.op));
    if (!over && backend->done(*transfer)) finish();
    return over;
  }
  void wait(std::optional<Milliseconds> limit) override {
    if (over) return;
    group->world_->check_process(name_of(staged.call.op));
    const ProfiledScope profiled([&] { return message("c10d::", name_of(staged.call.op)); },
                                 EventKind::Collective);
    const Waiting waiting(*group->world_);
    try {
      backend->wait(*transfer, limit.value_or(group->timeout()));
      finish();
    } catch (...) {
      error = group->failed(flight, backend);
      std::rethrow_exception(error);
    }
  }
  std::exception_ptr exception() override { return error; }
  int source_rank() const override { return transfer->source; }
  void finish() {
    staged.copy_back();
    group->world_->flight.set_state(flight, CallState::Completed);
    over = true;
  }

  std::shared_ptr<ProcessGroup> group;
  Staged staged;
  Backend* backend = nullptr;
  std::shared_ptr<Transfer> transfer;
  uint64_t flight = 0;
  bool over = false;
  std::exception_ptr error;
  friend class ProcessGroup;
};

// Copies back on the stream itself: whichever stream waits finds the result.
struct ProcessGroup::OnStream final : Work {
  OnStream(std::shared_ptr<ProcessGroup> g, Backend& b) : group(std::move(g)), backend(&b) {}
  bool is_completed() override {
    group->world_->check_process("wait");
    if (error) return true;
    try {
      return backend->done(*transfer);
    } catch (...) {
      error = group->failed(flight, backend);
      return true;
    }
  }
  void wait(std::optional<Milliseconds> limit) override {
    group->world_->check_process("wait");
    const Waiting waiting(*group->world_);
    try {
      backend->wait(*transfer, limit.value_or(Milliseconds(0)));
    } catch (const DistBackendError&) {
      if (backend->aborted().empty()) throw;  // it goes on
      error = group->failed(flight, backend);
      std::rethrow_exception(error);
    }
  }
  std::exception_ptr exception() override { return is_completed() ? error : nullptr; }
  int source_rank() const override { return transfer->source; }

  std::shared_ptr<ProcessGroup> group;
  Backend* backend;
  std::shared_ptr<Transfer> transfer;
  uint64_t flight = 0;
  std::exception_ptr error;
  friend class ProcessGroup;
};

std::shared_ptr<ProcessGroup> ProcessGroup::make(World& world, std::vector<int> ranks, Options options) {
  world.check_process("new_group");
  std::shared_ptr<ProcessGroup> group(new ProcessGroup(world, std::move(ranks), std::move(options)));
  // Who has GPUs on several hosts may do without gloo.
  if (has_backend(group->options_.cpu_backend) || !has_backend(group->options_.cuda_backend))
    group->backend(DeviceType::CPU);
  std::lock_guard lock(world.mutex);
  std::erase_if(world.groups, [](auto& g) { return g.expired(); });
  world.groups.push_back(group);
  return group;
}

ProcessGroup::ProcessGroup(World& world, std::vector<int> ranks, Options options)
    : world_(world.shared_from_this()), ranks_(std::move(ranks)), options_(std::move(options)) {
  auto me = std::find(ranks_.begin(), ranks_.end(), world.rank);
  WT_CHECK(me != ranks_.end(), ValueError, "group '", name(), "': rank ", world.rank,
           " does not belong to it");
  rank_ = static_cast<int>(me - ranks_.begin());
  store_ = std::make_shared<PrefixStore>("group/" + name(), world.store);
}

ProcessGroup::~ProcessGroup() { close(); }

Backend& ProcessGroup::backend(DeviceType device) {
  std::lock_guard lock(backends_mutex_);
  auto& b = backends_[static_cast<int>(device)];
  if (!b) {
    const std::string& kind = backend_name(device);
    std::string why;
    BackendFactory factory = find_backend(kind, why);
    WT_CHECK(factory, DistBackendError, "distributed: there is no backend '", kind, "'",
             why.empty() ? "" : ": ", why, "; 'shm' is always there, for CPU tensors of ranks on one host");
    b = factory(std::make_shared<PrefixStore>(kind, store_), rank_, size(), options_.timeout);
  }
  return *b;
}

// With the mutex held.
void ProcessGroup::check_open(const Collective& call) {
  world_->check_process(name_of(call.op));
  WT_CHECK(!closed_, DistBackendError, name_of(call.op), ": the group '", name(),
           "' was destroyed (destroy_process_group)");
}

// A barrier is the CPU's, where it can be.
Backend& ProcessGroup::backend_of(const Collective& call) {
  if (const Tensor* any = call.any_tensor()) return backend(any->device().type);
  return backend(has_backend(options_.cpu_backend) ? DeviceType::CPU : DeviceType::CUDA);
}

// Complex numbers travel, and are added, by their parts.
static void as_parts(Collective& call) {
  for (auto* list : {&call.inputs, &call.outputs})
    for (Tensor& t : *list) {
      if (!is_complex(t.dtype())) continue;
      WT_CHECK(call.reduce == ReduceOp::Sum || call.reduce == ReduceOp::Avg, DtypeError, name_of(call.op),
               ": ", name_of(call.reduce), " is not supported on complex tensors, got ", t);
      t = raw_parts(t);
    }
}

std::shared_ptr<Work> ProcessGroup::run(Collective call, std::string site, bool async,
                                        std::optional<Milliseconds> timeout) {
  {
    std::lock_guard lock(mutex_);
    check_open(call);
  }
  as_parts(call);
  check_arguments(call, rank_, size());
  if (Backend& b = backend_of(call); b.on_stream()) {
    std::vector<Collective> calls(1, std::move(call));
    auto work = start(b, std::move(calls), site, timeout.value_or(options_.timeout))[0];
    if (!async) work->wait({});
    return work;
  }
  if (is_point_to_point(call.op)) return post(std::move(call), std::move(site));
  auto job = std::make_shared<Job>(shared_from_this(), std::move(call), std::move(site));
  job->outputs_ = job->staged.call.outputs;
  for (auto& [original, copy] : job->staged.copies)
    std::replace_if(
        job->outputs_.begin(), job->outputs_.end(), [&](auto& t) { return t.same(copy); }, original);
  job->limit = timeout.value_or(options_.timeout);
  std::unique_lock lock(mutex_);
  check_open(job->staged.call);  // once more: from here on close() waits for the call
  job->sequence = ++sequence_;
  job->flight = world_->flight.add(job->staged.call, name(), job->sequence, job->site);
  if (async || busy_ || !queue_.empty()) {
    queue_.push_back(job);
    if (!worker_.joinable()) worker_ = std::thread([this] { run_queue(); });
    changed_.notify_all();
    lock.unlock();
    if (!async) job->wait(std::nullopt);
    return job;
  }
  busy_ = true, runner_ = std::this_thread::get_id();
  lock.unlock();
  {
    const Waiting waiting(*world_);
    execute(*job);
  }
  lock.lock();
  busy_ = false;
  changed_.notify_all();
  if (job->error) std::rethrow_exception(job->error);
  return job;
}

std::shared_ptr<Work> ProcessGroup::post(Collective call, std::string site) {
  auto work = std::make_shared<PointToPoint>(shared_from_this(), std::move(call));
  const Collective& staged = work->staged.call;
  work->backend = &backend(staged.any_tensor()->device().type);
  work->flight = world_->flight.add(staged, name(), 0, site);
  try {
    work->transfer = work->backend->post(staged, site);
  } catch (...) {
    std::rethrow_exception(failed(work->flight, work->backend));
  }
  return work;
}

std::vector<std::shared_ptr<Work>> ProcessGroup::run_batch(std::vector<Collective> calls,
                                                           const std::string& site) {
  std::vector<std::shared_ptr<Work>> works(calls.size());
  std::vector<Collective> together;
  std::vector<size_t> places;
  {
    std::lock_guard lock(mutex_);
    for (const Collective& call : calls) check_open(call), check_arguments(call, rank_, size());
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    if (backend_of(calls[i]).on_stream())
      together.push_back(calls[i]), places.push_back(i);
    else
      works[i] = post(calls[i], site);
  }
  if (together.empty()) return works;
  Backend& b = backend_of(together[0]);
  auto started = start(b, std::move(together), site, options_.timeout);
  for (size_t i = 0; i < places.size(); ++i) works[places[i]] = started[i];
  return works;
}

std::vector<std::shared_ptr<Work>> ProcessGroup::start(Backend& b, std::vector<Collective> calls,
                                                       const std::string& site, Milliseconds timeout) {
  std::lock_guard starting(start_mutex_);
  std::vector<std::shared_ptr<Work>> works;
  std::vector<StreamCall> queued;
  for (Collective& call : calls) {
    auto work = std::make_shared<OnStream>(shared_from_this(), b);
    work->outputs_ = call.outputs;
    Staged staged(std::move(call));
    uint64_t sequence = 0;
    if (!is_point_to_point(staged.call.op)) {
      std::lock_guard lock(mutex_);
      sequence = ++sequence_;
    }
    const uint64_t flight = work->flight = world_->flight.add(staged.call, name(), sequence, site);
    world_->flight.set_state(flight, CallState::Started);
    auto ended = [weak = weak_from_this(), flight, &b](bool well) -> std::string {
      auto group = weak.lock();
      if (!group) return "";
      group->world_->flight.set_state(flight, well ? CallState::Completed : CallState::Failed);
      const std::string file = well ? "" : group->dump_once(b, b.aborted());
      return file.empty() ? "" : kRecord + file;
    };
    queued.push_back({std::move(staged.call), std::move(staged.copies), sequence, site, timeout, ended});
    works.push_back(std::move(work));
  }
  try {
    auto transfers = b.start(std::move(queued));
    for (size_t i = 0; i < works.size(); ++i)
      static_cast<OnStream&>(*works[i]).transfer = std::move(transfers[i]);
  } catch (...) {
    std::exception_ptr error;
    for (auto& work : works) error = failed(static_cast<OnStream&>(*work).flight, &b);
    std::rethrow_exception(error);
  }
  return works;
}

// By one thread at a time: `busy_` is set.
void ProcessGroup::execute(Job& job) {
  FlightRecord& flight = world_->flight;
  Backend* used = nullptr;
  join_profile();  // as the queue's thread
  const ProfiledScope profiled([&] { return message("c10d::", name_of(job.staged.call.op)); },
                               EventKind::Collective);
  try {
    flight.set_state(job.flight, CallState::Started);
    const Tensor* any = job.staged.call.any_tensor();
    used = &backend(any ? any->device().type : DeviceType::CPU);
    used->run(job.staged.call, job.sequence, job.site, job.limit);
    job.staged.copy_back();
    flight.set_state(job.flight, CallState::Completed);
    job.end(nullptr);
  } catch (...) {
    job.end(failed(job.flight, used));
  }
}

// In a handler: notes that the call failed. Returns what to throw: where the group came to its end because a
// rank is late or gone, with the name of the file that says who did what.
std::exception_ptr ProcessGroup::failed(uint64_t flight, const Backend* used) {
  world_->flight.set_state(flight, CallState::Failed);
  try {
    throw;
  } catch (const DistBackendError& e) {
    const std::string file = used ? dump_once(*used, e.what()) : "";
    if (!file.empty() && !std::string_view(e.what()).ends_with(kRecord + file))
      return std::make_exception_ptr(DistBackendError(e.what() + (kRecord + file)));
    return std::current_exception();
  } catch (...) {
    return std::current_exception();
  }
}

// Where a rank is gone or ranks differ, the error says it all; files are written then only where a folder for
// them was named. Once for a group, which is not used after it, unless ranks differed.
std::string ProcessGroup::dump_once(const Backend& used, const std::string& reason) {
  const AbortReason kind = used.abort_reason();
  const char* folder = getenv("WARPTAPE_FLIGHT_DIR");
  if (kind != AbortReason::Timeout && !(folder && *folder)) return {};
  if (kind == AbortReason::None) return dump_flight_record(*world_, reason);
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(dumped_, true)) return dump_;
  }
  {
    std::lock_guard lock(world_->mutex);
    if (world_->failure.empty()) world_->failure = reason;
  }
  std::string file = dump_flight_record(*world_, reason);
  std::lock_guard lock(mutex_);
  return dump_ = file;
}

// A job may hold the last handle of the group, whose end must not come while `this` is in use: the handle
// outlives the job here, and once it is released nothing of the group is touched unless others hold it.
void ProcessGroup::run_queue() {
  set_rank_context(world_->context);
  kernels::cpu::Uninterrupted quiet;  // Ctrl-C is for whoever waits
  const std::weak_ptr<ProcessGroup> weak = weak_from_this();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return (!queue_.empty() && !busy_) || (closed_ && queue_.empty()); });
    if (queue_.empty()) return;
    auto job = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true, runner_ = std::this_thread::get_id();
    lock.unlock();
    execute(*job);
    auto self = job->group;
    job.reset();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
    lock.unlock();
    self.reset();
    if (weak.expired()) return;  // ended here, or ends on a thread that joins this one
    lock.lock();
  }
}

void ProcessGroup::abort(const std::string& reason) {
  if (world_->is_forked()) return;
  std::lock_guard lock(backends_mutex_);
  for (auto& b : backends_)
    if (b) b->abort(reason);
}

void ProcessGroup::explain(const std::string& error) {
  if (world_->is_forked()) return;
  std::lock_guard lock(backends_mutex_);
  for (auto& b : backends_)
    if (b) b->explain(error);
}

// Also by several threads at once.
void ProcessGroup::close() {
  // In a forked child the queue's thread, and the memory that is shared with other ranks, are the parent's.
  if (world_->is_forked()) {
    new (&worker_) std::thread;
    new (&changed_) std::condition_variable;  // to destroy one that a thread waits on waits for it
    for (auto& b : backends_) (void)b.release();
    return;
  }
  std::thread worker;
  {
    std::unique_lock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
    // A signal's handler may leave while its thread is within a call, which then ends by itself.
    const bool within = busy_ && runner_ == std::this_thread::get_id();
    while (!within && (busy_ || !queue_.empty())) {
      changed_.wait_for(lock, Milliseconds(20));
      lock.unlock();
      kernels::cpu::poll_interrupt();
      lock.lock();
    }
    if (!within || queue_.empty()) worker = std::move(worker_);
  }
  if (worker.joinable()) {
    if (worker.get_id() == std::this_thread::get_id())
      worker.detach();  // the last to hold the group was a job of its own queue
    else
      worker.join();
  }
  std::lock_guard lock(backends_mutex_);
  for (auto& b : backends_)
    if (b) b->close();
}

}  // namespace warptape::distributed
