// A compiled region: the part of a program between the entry into a compiled function and its end, or until
// somebody reads a value.
//
// Note [Regions]: inside of a region Python runs as ever, and so does every op's own code: it checks its
// arguments, infers shapes, records its node on the tape. What it does not do is to run kernels: new tensors
// have no memory yet (Note [Deferred memory]), so that ops skip their kernels as on the meta device, and the
// call is noted. Where somebody asks for the data of a tensor, and at the region's end, what was noted runs:
// as a program that is optimised once for all calls of the same form (program.h), so that there is nothing to
// guard. Three ways to note a call, from fine to coarse:
// - an elementwise launch, a sum to a shape or what run_kernel() is given, wherever it comes from;
// - an op whose code did nothing but such launches and calls of other ops: these are noted, not the op;
// - an op or a node's backward as a whole, where its code asked whether to skip a kernel (is_meta()). It is
//   called once more when the region runs, and what it makes becomes the memory of what was promised.
// Code that needs data in its middle is run as without a region (NotDeferrable), after what it reads.
// What was noted inside of an op that is noted as a whole is of no use. Ops that always are so are called
// knowing it: nothing is noted inside of them (Scope::whole).
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>

#include "core/device_runtime.h"
#include "graph/ir/call.h"
#include "graph/ir/memories.h"
#include "graph/lower/program.h"
#include "graph/record/choice.h"
#include "graph/record/recording.h"

namespace warptape::graph {

// Thrown by data() inside of an op that is being noted.
struct NotDeferrable {};

// How the calls of one op, or of the backward of one kind of node, went so far.
struct Attempts {
  uint32_t all = 0, failed = 0, whole = 0;
  bool mixed = false;  // some were not noted as a whole

  // Ops whose code needs data more often than not are run at once.
  bool tend_to_fail() const { return failed > 3 && failed * 2 > all; }
  bool are_whole() const { return whole > 1 && !mixed; }
};

// A recursive mutex. Its thread takes it again without an atomic operation, as it does several times for each
// call that is noted.
class RegionMutex {
 public:
  bool try_lock() {
    if (is_mine()) return ++depth_;
    if (!mutex_.try_lock()) return false;
    take();
    return true;
  }
  void lock() {
    if (try_lock()) return;
    mutex_.lock();
    take();
  }
  void unlock() {
    if (--depth_) return;
    owner_.store(nullptr, std::memory_order_relaxed);
    mutex_.unlock();
  }
  bool is_mine() const { return owner_.load(std::memory_order_relaxed) == &thread_state(); }

 private:
  void take() {
    owner_.store(&own_thread_state(), std::memory_order_relaxed);
    depth_ = 1;
  }
  std::mutex mutex_;
  std::atomic<const void*> owner_{nullptr};  // only its own thread finds itself here
  int depth_ = 0;
};

// Waits for a mutex that another thread holds, without what that thread may wait for: the GIL. Set by the
// bindings.
extern WT_API void (*wait_for)(RegionMutex& mutex);

// Noting a call is too short to let go of the GIL; running what was noted is not. While it lives, this thread
// does not hold it. Set by the bindings.
struct WT_API GilHooks {
  void* (*let_go)() = [] { return static_cast<void*>(nullptr); };  // null where the thread does not hold it
  void (*take_again)(void* state) = [](void*) {};
};
extern WT_API GilHooks gil_hooks;
class WithoutGil {
 public:
  WithoutGil() : state_(gil_hooks.let_go()) {}
  ~WithoutGil() {
    if (state_) gil_hooks.take_again(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* state_;
};

// Held by whoever notes or runs calls of a region.
class RegionLock {
 public:
  explicit RegionLock(RegionMutex& mutex) : mutex_(mutex) {
    if (!mutex.try_lock()) wait_for(mutex);
  }
  ~RegionLock() { mutex_.unlock(); }
  RegionLock(const RegionLock&) = delete;
  RegionLock& operator=(const RegionLock&) = delete;

 private:
  RegionMutex& mutex_;
};

// Whether code of this process that the runtime does not see may read or write the memory. Other processes,
// which do so at no moment in particular, do not count. Set by the bindings, which know NumPy's arrays.
extern WT_API bool (*seen_by_others)(const Storage& s);

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
  bool adaptive = true;    // else all calls are noted
  Choices choices;
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
  // The same for a backward pass outside of the call that recorded its forward: it goes the way of the last
  // call.
  static void around_backward(bool begins);
  void leave();  // runs what is pending
  // What the call that was entered does is recorded until somebody takes the recording.
  void record(std::unique_ptr<Recording> recording);
  Recording* recording() const { return recording_.get(); }
  std::unique_ptr<Recording> take_recording();
  // How many calls of compiled functions, or backward passes over what they noted, the thread is in.
  int depth() const { return depth_; }
  bool entered() const { return depth_ > 0 && sample_.turn.way == Way::Noted; }
  // Whether calls of this thread are noted, if it is in a region; returns what it was.
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

  // Notes the call of an op, or runs it.
  void call(const OpInfo& op, std::span<Value> args, Result& out);
  // Somebody asks, on any thread, for the data of a storage that the region writes.
  void force(Storage& s);
  // Somebody is about to write the storage: what is pending there runs, in all regions but that of a thread
  // which notes the write.
  static void force_readers(Storage& s);

 private:
  friend class Scope;
  friend class Paused;

  Region() = default;
  ~Region() override = default;
  bool is_own() const { return this == &of_thread(); }
  void check_may_wait() const;
  void run_for(Storage& s);
  template <class F>
  void note(F&& f);
  Call& add(CallKind kind, const void* callee);
  Memory& memory_of(Storage& s, bool promised = false);
  Memory& claim(Storage& s, bool promised = false);
  [[noreturn]] void refuse_busy(Storage& s) const;
  bool knows(const Tensor& t);
  bool is_unwritten(const Storage& s) const;
  bool is_unwritten(const Tensor& t) const { return t.defined() && is_unwritten(t.storage()); }
  void meet(const Tensor& t);
  void note_promise(const Tensor& t);
  static void settle_promises(Storage& s);
  void note_stream(Device device);
  void read(Call& call, const Tensor& t);
  void write(Call& call, const Tensor& t);
  static Tensor hold(Memory& m, const Tensor& t);
  void note_op(const OpInfo& op, std::span<const Value> args, Result& out, class Scope& scope);
  void note_backward(Node& node, Gradients& g, bool last, class Scope& scope);
  bool in_whole() const;
  void skip(const Tensor& out);
  void call_inside(const OpInfo& op, std::span<Value> args, Result& out);
  void run_now(const OpInfo& op, std::span<Value> args, Result& out, KeyTape& keys);
  void call_or_run(const OpInfo& op, std::span<Value> args, Result& out);
  void backward_or_run(Node& node, Gradients& g, bool last);
  void run_before();
  void settle();
  void truncate(size_t calls);
  void release(Memories& memories, bool failed, const Executable* program,
               std::vector<std::unique_ptr<Promise>> promises);
  void leave_to_backward(const Executable& program, std::vector<std::unique_ptr<Promise>> promises,
                         const Memories& memories) const;
  void run_pending();
  void begin();
  void finish();

  // The last turn: see Note [Choice].
  struct Sample {
    Choice* choice = nullptr;  // of compiled_
    Choice::Turn turn{};
    int calls = 1;
    bool built = false, backward = false;
    std::chrono::steady_clock::time_point since{};
    double seconds = 0;
  };

  mutable RegionMutex mutex_;
  std::vector<Call> calls_;
  Memories memories_, spare_;  // spare_: empty, with room
  std::vector<class Scope*> scopes_;
  std::unordered_map<const void*, Attempts> attempts_;  // by OpInfo or NodeType
  std::unique_ptr<Recording> recording_;
  std::shared_ptr<Compiled> compiled_;  // also after the region, for the backward of what it noted
  // In which what is pending runs, also where another thread has it run.
  std::vector<std::pair<Device, StreamHandle>> streams_;
  int depth_ = 0;
  bool interrupted_ = false;          // another thread had run what is recorded
  std::atomic<bool> exposed_{false};  // what is pending reads or writes memory that NumPy sees
  Sample sample_;
};

// With the region locked and its records of what f() uses. Where these are another thread's to make, it gets
// to make them first: f() throws Busy before it has noted anything.
template <class F>
void Region::note(F&& f) {
  for (;;) {
    Busy busy;
    {
      const RegionLock lock(mutex_);
      try {
        f();
        return settle();
      } catch (const Busy& b) {
        busy = b;
      }
    }
    if (mutex_.is_mine()) throw busy;
    force_storage(*busy.storage);
  }
}

// The op that Python called, where the error that is on its way came from a noted call of it.
extern WT_API PerThread<const char*> failed_op;

WT_API void init();  // once: sets the interceptor and the hooks

}  // namespace warptape::graph
