// A compiled region: the part of a program between the entry into a compiled function and its end, or until
// somebody reads a value.
//
// Note [Regions]: inside of a region Python runs as ever, and so does every op's own code: it checks its
// arguments, infers shapes, records its node on the tape. What it does not do is to run kernels: new tensors
// have no memory yet (Note [Deferred memory]), so that ops skip their kernels as on the meta device, and the
// call is recorded. Where somebody asks for the data of a tensor, and at the region's end, what was recorded
// runs: as a program that is optimised once for all calls with the same cache key (program.h), so that there
// is nothing to guard. Three ways to record a call, from fine to coarse:
// - an elementwise launch, a sum to a shape or what run_kernel() is given, wherever it comes from;
// - an op whose code did nothing but such launches and calls of other ops: these are recorded, not the op;
// - an op or a node's backward as an opaque call, where its code asked whether to skip a kernel (is_meta()).
//   It is called once more when the region runs, and what it makes becomes the memory of the results.
// Code that needs data in its middle is run as without a region (NotDeferrable), after what it reads.
// What was recorded inside of an opaque call is of no use. Ops that always are opaque are called knowing it:
// nothing is recorded inside of them (Scope::opaque).
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>

#include "core/device_runtime.h"
#include "core/frontend.h"
#include "graph/ir/call.h"
#include "graph/ir/memories.h"
#include "graph/lower/program.h"
#include "graph/record/mode_tuner.h"
#include "graph/record/recording.h"

namespace warptape::graph {

// Thrown by data() inside of an op that is being recorded.
struct NotDeferrable {};

// How the calls of one op, or of the backward of one kind of node, went so far.
struct Attempts {
  uint32_t all = 0, failed = 0, opaque = 0;
  bool mixed = false;  // some were not opaque

  // Ops whose code needs data more often than not are run at once.
  bool tend_to_fail() const { return failed > 3 && failed * 2 > all; }
  bool are_opaque() const { return opaque > 1 && !mixed; }
};

// A recursive mutex. Its thread takes it again without an atomic operation, as it does several times for each
// call that is recorded.
class RegionMutex {
 public:
  bool try_lock() {
    if (is_mine()) return ++depth_;
    if (!mutex_.try_lock()) return false;
    set_owner();
    return true;
  }
  void lock() {
    if (try_lock()) return;
    mutex_.lock();
    set_owner();
  }
  void unlock() {
    if (--depth_) return;
    owner_.store(nullptr, std::memory_order_relaxed);
    mutex_.unlock();
  }
  bool is_mine() const { return owner_.load(std::memory_order_relaxed) == &thread_state(); }
  // Unlocks it, however often the thread has locked it; returns what relock() takes.
  int unlock_all() {
    const int depth = std::exchange(depth_, 1);
    unlock();
    return depth;
  }
  void relock(int depth);

 private:
  void set_owner() {
    owner_.store(&own_thread_state(), std::memory_order_relaxed);
    depth_ = 1;
  }
  std::mutex mutex_;
  std::atomic<const void*> owner_{nullptr};  // only its own thread finds itself here
  int depth_ = 0;
};

// Locked by whoever records calls of a region or takes them out of it, never while they run.
class RegionLock {
 public:
  explicit RegionLock(RegionMutex& mutex) : mutex_(mutex) {
    if (mutex.try_lock()) return;
    const WithoutGil without_gil;  // for which the thread that holds the mutex may wait
    mutex.lock();
  }
  ~RegionLock() { mutex_.unlock(); }
  RegionLock(const RegionLock&) = delete;
  RegionLock& operator=(const RegionLock&) = delete;

 private:
  RegionMutex& mutex_;
};

// The opposite, within a RegionLock.
class RegionUnlock {
 public:
  explicit RegionUnlock(RegionMutex& mutex) : mutex_(mutex), depth_(mutex.unlock_all()) {}
  ~RegionUnlock() { mutex_.relock(depth_); }
  RegionUnlock(const RegionUnlock&) = delete;
  RegionUnlock& operator=(const RegionUnlock&) = delete;

 private:
  RegionMutex& mutex_;
  int depth_;
};

// Whether code of this process that the runtime does not see may read or write the memory. Other processes,
// which do so at no moment in particular, do not count.
inline bool accessed_externally(const Storage& s) {
  return s.exported() && !s.shared() && frontend().accesses(s);
}

// How often something happened, by the name of the op or node whose code did it.
class WT_API CountsByName {
 public:
  void add(const char* name);
  std::map<std::string, int64_t> all() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> counts_;
};

struct Counts {
  std::atomic<int64_t> calls{0}, runs{0}, reads{0}, not_deferred{0};
  CountsByName read_by, not_deferred_by;  // reads by Python have no name
};

// What the calls of one compiled function share.
struct WT_API Compiled : std::enable_shared_from_this<Compiled> {
  Programs programs;
  Counts counts;
  bool fullgraph = false;  // a read in the middle is an error
  bool adaptive = true;    // else all calls are recorded
  ModeTuners tuners;
};

// Calls that were taken out of a region, while a thread runs them: see Note [Regions and threads].
class Batch {
 public:
  Batch() : runner_(&*waits_for_) {}  // this thread runs it
  bool runs_here() const { return runner_ == &*waits_for_; }
  // Until it has run or failed. Throws an Error where that would be never: its thread waits for this one.
  void wait() const;
  void end();

  std::vector<Call> calls;
  Memories memories;
  std::vector<std::pair<Device, StreamHandle>> streams;
  std::shared_ptr<Compiled> compiled;
  bool may_rematerialize = true;  // it may leave values to backward

 private:
  static PerThread<const Batch*> waits_for_;
  const Batch** const runner_;  // what the thread that runs it waits for
  bool ended_ = false;
};

// Thrown where what a call needs is first to be done by another thread's region: see Note [Regions and
// threads].
struct Busy {
  Ref<Storage> storage;
};

// One per thread; the other threads come to it for the contents of tensors alone. It outlives its thread, for
// these may be on their way to it, and is a later one's.
class WT_API Region final : public Deferral {
 public:
  static Region& of_thread();

  // A call of a compiled function begins; one inside of another joins it. False where it runs as without
  // torch.compile, and is not timed; else leave() ends it.
  bool enter(std::shared_ptr<Compiled> compiled);
  // The same for a backward pass outside of the call that recorded its forward: it has the mode of the last
  // call.
  static void around_backward(bool begins);
  void leave();  // runs what is pending
  // What the call that was entered does is recorded until somebody takes the recording.
  void start_recording(std::unique_ptr<Recording> recording);
  Recording* recording() const { return recording_.get(); }
  std::unique_ptr<Recording> release_recording();
  // How many calls of compiled functions, or backward passes over what they recorded, the thread is in.
  int depth() const { return depth_; }
  bool entered() const { return depth_ > 0 && sample_.measurement.mode == Mode::Recorded; }
  // Whether calls of this thread are recorded, if it is in a region; returns what it was.
  bool set_capture(bool on);
  void elementwise(ElementwiseSlot& slot, DType compute, const Tensor& out,
                   std::span<const ElementwiseInput> inputs) override;
  void sum_to(const Tensor& out, const Tensor& t) override;
  void kernel(const KernelInfo& info, std::span<const Tensor> in, std::span<const Tensor> out, int64_t rows,
              const KernelFunction& f) override;
  void backward(Node& node, Gradients& g, bool last) override;
  void made(Storage& s) override;
  void flush() override;
  size_t held(const Storage& s) const override;

  // Records the call of an op, or runs it.
  void call(const OpInfo& op, std::span<Value> args, Result& out);
  // Somebody asks, on any thread, for the data of a storage that the region writes.
  void force(Storage& s);
  // Somebody is about to write the storage: what is pending there runs, in all regions but that of a thread
  // which records the write.
  static void force_readers(Storage& s);

 private:
  friend class Scope;
  friend class Paused;

  Region() = default;
  ~Region() override = default;
  bool is_own() const { return this == &of_thread(); }
  static void check_unlocked(Storage& s);
  void run_for(Storage& s);
  std::vector<std::shared_ptr<Batch>> running_on(const Storage& s) const;
  static void wait_for(const std::vector<std::shared_ptr<Batch>>& running, Storage& s);
  template <class F>
  void record(F&& f);
  Call& add(CallKind kind, const void* callee);
  Memory& memory_of(Storage& s, bool rematerialized = false);
  Memory& claim(Storage& s, bool rematerialized = false);
  [[noreturn]] void refuse_busy(Storage& s) const;
  bool knows(const Tensor& t);
  bool is_unwritten(const Storage& s) const;
  bool is_unwritten(const Tensor& t) const { return t.defined() && is_unwritten(t.storage()); }
  void force_before_use(const Tensor& t);
  void record_remat(const Tensor& t);
  static void rematerialize_before_write(Storage& s);
  void record_stream(Device device);
  void read(Call& call, const Tensor& t);
  void write(Call& call, const Tensor& t);
  static Tensor hold(Memory& m, const Tensor& t);
  void record_op(const OpInfo& op, std::span<const Value> args, Result& out, class Scope& scope);
  void record_backward(Node& node, Gradients& g, bool last, class Scope& scope);
  bool in_opaque() const;
  void skip(const Tensor& out);
  void call_inside(const OpInfo& op, std::span<Value> args, Result& out);
  void run_now(const OpInfo& op, std::span<Value> args, Result& out, KeyTape& keys);
  void call_or_run(const OpInfo& op, std::span<Value> args, Result& out);
  void backward_or_run(Node& node, Gradients& g, bool last);
  void run_before();
  void flush_if_exposed();
  void truncate(size_t calls);
  void release(Batch& batch, bool failed, const Executable* program,
               std::vector<std::unique_ptr<Remat>> remats);
  void run_pending();
  std::shared_ptr<Batch> extract_pending();
  void run(Batch& batch);
  void begin();
  void finish();

  // The last measurement: see Note [Mode tuner].
  struct Sample {
    ModeTuner* tuner = nullptr;  // of compiled_
    ModeTuner::Measurement measurement{};
    int calls = 1;
    bool built = false, backward = false;
    std::chrono::steady_clock::time_point since{};
    double seconds = 0;
  };

  mutable RegionMutex mutex_;
  std::vector<Call> calls_;
  Memories memories_, spare_;                    // spare_: empty, with capacity
  std::vector<std::shared_ptr<Batch>> running_;  // taken out of the region
  std::vector<class Scope*> scopes_;
  std::unordered_map<const void*, Attempts> attempts_;  // by OpInfo or NodeType
  std::unique_ptr<Recording> recording_;
  std::shared_ptr<Compiled> compiled_;  // also after the region, for the backward of what it recorded
  // In which what is pending runs, also where another thread has it run.
  std::vector<std::pair<Device, StreamHandle>> streams_;
  int depth_ = 0;
  bool interrupted_ = false;          // another thread had run what is recorded
  std::atomic<bool> exposed_{false};  // what is pending reads or writes memory that NumPy sees
  Sample sample_;
};

// With the region locked and its records of what f() uses. Where these are another thread's to make, it gets
// to make them first: f() throws Busy before it has recorded anything.
template <class F>
void Region::record(F&& f) {
  for (;;) {
    Busy busy;
    {
      const RegionLock lock(mutex_);
      try {
        f();
        return flush_if_exposed();
      } catch (const Busy& b) {
        busy = b;
      }
    }
    if (mutex_.is_mine()) throw busy;
    force_storage(*busy.storage);
  }
}

// The op that Python called, where the error that is on its way came from a recorded call of it.
extern WT_API PerThread<const char*> failed_op;

WT_API void init();  // once: sets the interceptor and the hooks

}  // namespace warptape::graph
