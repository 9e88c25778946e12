// What a rank has for itself (ranks may be threads of one process), and what a thread has for itself.
#pragma once

#include <map>
#include <memory>

#include "core/dtype.h"
#include "core/generator.h"
#include "kernels/per_thread.h"

namespace warptape {

class Deferral;
class PlannedRun;
struct ProfilerThread;

namespace distributed {
struct World;
}
namespace ops {
struct Epilogue;
struct Prologue;
}  // namespace ops

// The default generators of a rank's CUDA devices. They are host objects: seeding them needs no device. One
// that nobody has used yet starts from the seed that all were given last.
class WT_API CudaGenerators {
 public:
  Ref<Generator> of(int index);
  void manual_seed(uint64_t seed);  // all, also those to come

 private:
  std::mutex mutex_;
  uint64_t seed_ = Generator::kDefaultSeed;
  std::map<int, Ref<Generator>> made_;
};

struct RankContext {
  Ref<Generator> generator = Ref<Generator>::adopt(new Generator);
  CudaGenerators cuda_generators;
  DType default_dtype = DType::Float32;
  Device default_device;  // index -1 for "cuda": see default_device() below
  int num_threads = 0;    // 0: all cores
  bool deterministic_algorithms = false;
  bool fill_uninitialized_memory = true;      // under deterministic algorithms
  std::shared_ptr<distributed::World> world;  // of the job that the rank joined, or null
};

// Reasons for a call to leave the straight way into its op: bits of the one word that every call tests.
enum DispatchBit : uint32_t {
  kAutocast = 1u << 0,  // of tensors of the CPU
  kAutocastCuda = 1u << 1,
  kTorchFunctionMode = 1u << 2,
  kTransform = 1u << 3,     // of functions: vmap, jvp
  kCapture = 1u << 4,       // of a compiled region
  kTrace = 1u << 5,         // of ops into a graph
  kDispatchMode = 1u << 6,  // TorchDispatchModes of Python
  // The last to be asked: what the others do with a call is not recorded, what they call is.
  kProfile = 1u << 7,
  // Classes of tensors with __torch_dispatch__, asked behind all others: a bit of calls on such a tensor,
  // never of a thread.
  kTorchDispatch = 1u << 8,
};

struct ThreadState {
  uint32_t dispatch = 0;
  bool grad_mode = true;
  bool inference_mode = false;
  bool anomaly_mode = false;
  bool anomaly_check_nan = true;
  bool saved_tensor_hooks = false;
  bool defers_memory = false;  // new storages get none yet
  bool asked_meta = false;     // somebody skipped a kernel because memory is deferred
  // New nodes count as those of a compiled region although nothing is recorded: their backward is timed.
  bool times_backward = false;
  DType autocast_dtype = DType::BFloat16, autocast_cuda_dtype = DType::Float16;
  RankContext* rank = nullptr;
  CapturedDraws* captured_draws = nullptr;  // of the graph that this thread captures, if it does
  KeyTape* key_tape = nullptr;              // where Philox keys are noted and drawn again
  Deferral* deferral = nullptr;             // of the compiled region that this thread records, if it does
  ProfilerThread* profiler = nullptr;       // of the profile that records this thread, if one does
  PlannedRun* planned_run = nullptr;        // whose memory new storages get: core/memory/memory_plan.h
  int64_t recording_transforms = 0;         // that run: autograd/tape.h
  ops::Epilogue* epilogue = nullptr;        // of the thread's next product: ops/linalg/matmul.h
  ops::Prologue* prologue = nullptr;        // likewise: ops/linalg/matmul_plan.h
};

// Small objects of one type that the thread has released and will use again: see core/memory/free_list.h.
struct FreeObjects {
  void* head = nullptr;
  int count = 0;
};
enum class Pooled { Tensor, Storage, AutogradMeta, Node };

// What each op looks at is found without a further pointer.
struct CoreLocals : ThreadLocals {
  ThreadState state;
  FreeObjects free_objects[4];
};
inline CoreLocals& core_locals() { return static_cast<CoreLocals&>(thread_locals()); }
inline const ThreadState& thread_state() { return core_locals().state; }
inline ThreadState& own_thread_state() { return static_cast<CoreLocals&>(own_thread_locals()).state; }

// The context of the calling thread: the process's own unless a simulated rank set another.
WT_API RankContext& rank_context();
WT_API void set_rank_context(RankContext* context);
// Where tensors are made that name no device.
inline Device default_device() { return resolved(rank_context().default_device); }
// The default generator of a device; the meta device, where nothing is drawn, has the CPU's.
inline Ref<Generator> default_generator(Device d) {
  return __builtin_expect(d.is_cuda(), 0) ? rank_context().cuda_generators.of(d.index)
                                          : rank_context().generator;
}

// Sets one field of the thread's state and puts the old value back at the end of the scope.
template <class T>
class Restore {
 public:
  Restore(T& field, T value) : field_(field), old_(field) { field = value; }
  ~Restore() { field_ = old_; }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  T& field_;
  T old_;
};

}  // namespace warptape
