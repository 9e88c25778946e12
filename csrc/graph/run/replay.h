// A call of a compiled function without its Python, for mode="reduce-overhead" on the CPU.
//
// Note [Replays]: a call is recorded (recording.h) when all that it recorded ran as one program at its end.
// What is retained of it are its calls without their tensors: for each tensor the memory of the program, and
// where in it. A memory is new in each call, or that of an argument, or of a tensor that was there before (a
// parameter, a buffer, a tensor of a closure). A replay finds these memories, puts new tensors on them and
// runs the program; what is retained from outside is the tensor, not its memory, so that `p.data = x` and
// load_state_dict are seen. Then it raises versions and gives results as new tensors. Random ops draw new
// keys. What has to be as it was is asked before each replay (fits()); what of Python nobody can ask, the
// contract says that it does not change, and every so many replays the call runs with its Python to be
// compared. A replay records no tape and sets no gradient: a call that does is refused.
#pragma once

#include <atomic>

#include "graph/lower/program.h"

namespace warptape::graph {

// A tensor of a recorded call: its memory, and where in it.
struct ViewSpec {
  uint32_t memory = 0;
  DType dtype = DType::Float32;
  Shape sizes, strides;
  int64_t offset = 0;  // in elements, from the beginning of the storage of the recorded call
  bool operator==(const ViewSpec&) const = default;
  // Whether the tensor lies as this says.
  bool fits(const Tensor& t) const {
    return t.dtype() == dtype && t.offset() == offset && t.sizes() == sizes && t.strides() == strides;
  }
};

struct ReplayMemory {
  enum class From : uint8_t { New, Argument, Retained };
  From from = From::New;
  uint32_t index = 0;                   // of the argument or the retained tensor
  size_t bytes = 0;                     // of a new one
  int64_t begin = 0;                    // in bytes: where the argument began in its storage
  int64_t first = INT64_MAX, last = 0;  // the bytes of the storage that calls use
  uint32_t changes = 0;                 // what a call adds to the version
  bool bound = false;                   // a tensor of a call lies on it
  bool like(const ReplayMemory& o) const;
};

// A tensor that was there before the call, and is no argument.
struct Retained {
  Tensor tensor;
  ViewSpec view;
  bool requires_grad = false;
};

// A result.
struct ReplayResult {
  enum class Is : uint8_t { New, Argument, Retained };
  Is is = Is::New;
  uint32_t index = 0;  // of the argument or retained tensor that it is itself
  ViewSpec view;       // of a new one
  bool inference = false;
  int32_t base = -1;  // of a view: the number of the tensor that it views among the outputs
  ViewOrigin origin = ViewOrigin::NoGrad;
  bool like(const ReplayResult& o) const;
};

// A recorded call without its tensors.
struct CallShape {
  Call call;  // its arguments are tensors without memory
  SmallVector<ViewSpec, 3> in, out;
  CallUse use;  // of none only the keys are drawn
};

class WT_API Recorded {
 public:
  std::shared_ptr<Executable> program;
  std::vector<CallShape> calls;
  std::vector<ReplayMemory> memories;
  std::vector<Retained> retained;
  std::vector<ReplayResult> outputs;
  std::vector<uint32_t> results;  // numbers among the outputs
  std::string arguments;          // see put_arguments()

  // Whether another call of the function did the same.
  bool like(const Recorded& o) const;
  // Whether a call with these arguments, which are like those of the recorded call by themselves, would find
  // what that found: retained tensors that lie as they did, on memories as distinct as then. Holds the GIL.
  bool fits(std::span<const Tensor> arguments);

 private:
  friend class Replay;
  const Tensor& outside(const ReplayMemory& m, std::span<const Tensor> arguments) const {
    return m.from == ReplayMemory::From::Argument ? arguments[m.index] : retained[m.index].tensor;
  }
  bool are_apart(std::span<const Tensor> arguments);

  std::vector<const Storage*> apart_;        // of the retained tensors, sorted, when they were last looked at
  std::vector<const Storage*> retained_on_;  // likewise, by retained tensor
};

// One replay. The caller holds the GIL but for execute().
class WT_API Replay {
 public:
  Replay(std::shared_ptr<Recorded> recorded, std::span<const Tensor> arguments);
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  void execute();
  std::vector<Tensor> finish();  // the results

 private:
  Tensor bind(const ViewSpec& p) const;
  Call bind(const CallShape& shape) const;
  void count_changes();

  std::shared_ptr<Recorded> recorded_;
  std::span<const Tensor> arguments_;
  std::vector<Ref<Storage>> storages_;
  SmallVector<int64_t, 16> shifts_;  // by memory, in bytes
  std::vector<uint32_t> versions_;
  std::vector<Call> calls_;
};

// Grows with every change of a module's attributes, hooks and mode. The bindings' Python layer counts.
extern WT_API std::atomic<uint64_t> module_changes;

}  // namespace warptape::graph
