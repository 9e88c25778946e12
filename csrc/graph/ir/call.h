// A call that was recorded instead of run: what it calls, what it reads and what it writes.
#pragma once

#include "op/op.h"
#include "tensor/run_kernel.h"

namespace warptape::graph {

enum class CallKind : uint8_t {
  Op,           // an op as declared, whose kernels nothing below knows
  Elementwise,  // one elementwise launch
  Kernel,       // what run_kernel() was given
  SumTo,        // the sum over the dims that the result has with size 1
  Backward,     // a node's backward, likewise
};

// The name of a SumTo, in the text of a program too.
inline constexpr const char* kSumTo = "sum_to_size";

// The arguments of an op, owned: tensors without history, lists and texts copied.
class OpArgs {
 public:
  OpArgs(const OpInfo& op, std::span<const Value> args);
  OpArgs(const OpArgs&) = delete;
  OpArgs& operator=(const OpArgs&) = delete;

  std::vector<Value> values;
  // Whether each of the op's tensors, in the order of each_tensor(), required a gradient.
  std::vector<bool> required_grad;
  // The k-th tensor in that order.
  void replace(const OpInfo& op, size_t k, const Tensor& t);

 private:
  Tensor own(const Tensor& t);
  template <class T>
  void copy_list(Value& v);

  std::vector<Tensor> tensors_;  // with room for all: `values` point to them, and into the lists
  std::vector<std::vector<Tensor>> lists_;
  std::vector<std::vector<OptTensor>> optionals_;
  std::vector<std::vector<Shape>> shapes_;
  std::vector<std::vector<char>> bytes_;
};

// Node, saved tensors and gradients of a backward call.
struct NodeCall {
  Ref<Node> node;
  std::vector<Tensor> saved, gradients;
  SmallVector<bool, 16> wanted;
  bool last;
};

// The entry of `operands` where an input is a number: see Call::operands.
inline constexpr int kIsNumber = -1;

struct Call {
  CallKind kind;
  DType compute = DType::Float32;        // of Elementwise
  bool in_backward = false;              // a backward pass recorded it
  bool bumped = false;                   // the versions of what it writes are counted already
  const void* callee = nullptr;          // OpInfo, ElementwiseSlot, KernelInfo or NodeType
  const Node* node = nullptr;            // that an Op recorded
  const char* public_op = nullptr;       // the op that Python called, for its errors
  SmallVector<Tensor, 3> in, out;        // read; made or written. Without history, held by this call alone
  SmallVector<int8_t, 4> operands;       // of Elementwise, Kernel: each input's index in `in`, or kIsNumber
  SmallVector<Scalar, 1> numbers;        // its inputs that are numbers, in order
  SmallVector<int32_t, 2> results;       // of all others: what each of `out` is; of a Kernel, its index
  KernelFunction kernel;                 // of Kernel
  int64_t rows = 0;                      // likewise
  std::unique_ptr<OpArgs> args;          // of Op
  std::unique_ptr<NodeCall> backward;    // of Backward
  std::vector<kernels::PhiloxKey> keys;  // that it drew when it was recorded
  uint32_t dispatch = 0;                 // of the thread then: autocast
  DType autocast_dtype = DType::BFloat16, autocast_cuda_dtype = DType::Float16;

  const OpInfo& op() const { return *static_cast<const OpInfo*>(callee); }
  const KernelInfo& kernel_info() const { return *static_cast<const KernelInfo*>(callee); }
  const char* name() const;
  // Reads the tensor instead of in[k].
  void replace_input(size_t k, const Tensor& t);
};

// A copy of a call that runs no node's backward, without what it reads and writes: its arguments get f(t) for
// each tensor t of theirs, in order.
template <class F>
Call copy_of(const Call& c, F&& f) {
  Call out;
  out.kind = c.kind;
  out.compute = c.compute;
  out.bumped = c.bumped;
  out.callee = c.callee;
  out.public_op = c.public_op;
  out.operands = c.operands;
  out.numbers = c.numbers;
  out.results = c.results;
  out.kernel = c.kernel;
  out.rows = c.rows;
  out.dispatch = c.dispatch;
  out.autocast_dtype = c.autocast_dtype;
  out.autocast_cuda_dtype = c.autocast_cuda_dtype;
  if (!c.args) return out;
  out.args = std::make_unique<OpArgs>(c.op(), c.args->values);
  out.args->required_grad = c.args->required_grad;
  each_tensor(c.op(), out.args->values, [&](const Tensor& own) {
    const_cast<Tensor&>(own) = f(own);  // all are in the lists of OpArgs
  });
  return out;
}

// An entry of Call::results: the op's i-th tensor, the i-th tensor that its node saved, or an argument that
// is written in place.
inline constexpr int32_t kInPlaceResult = -1;
inline constexpr int32_t kSavedBase = 1 << 30;

// Calls f for each tensor of a result, in order.
template <class F>
void each_result(Result& out, F&& f) {
  using Kind = Result::Kind;
  if (out.kind == Kind::Tensor || out.kind == Kind::TensorAndList) f(out.tensor);
  if (out.kind == Kind::Tuple || out.kind == Kind::List || out.kind == Kind::TensorAndList)
    for (Tensor& t : out.tensors) f(t);
}

// Gives the first result of a Kernel the memory of the tensor in whose place it may be, if nobody else has
// that.
void reuse_input_memory(Call& call);

// The views that a kernel is given, of tensors with contents or memory.
struct KernelViews {
  explicit KernelViews(const Call& call);
  kernels::View in[kMaxKernelTensors], out[kMaxKernelTensors];
};

// Runs the call: its inputs have their contents, its outputs have memory or are given the memory that the
// call made.
void run(Call& call);

}  // namespace warptape::graph
