// What all elementwise ops share: the result's dtype and shape, the output, the launch, the record.
#pragma once

#include "op/op.h"

namespace warptape {

// How the result's dtype follows from the promoted dtype of the inputs.
enum class ResultRule : uint8_t {
  Same,   // the promoted dtype
  Float,  // integers and bools become the default floating dtype
  Bool,   // a predicate
  Equal,  // the same, that asks for equality alone: also of dtypes for storage
  Bits,   // the promoted dtype; of bits, so also of integers for storage
};
constexpr bool is_predicate(ResultRule r) { return r == ResultRule::Bool || r == ResultRule::Equal; }

using PointwiseInput = ElementwiseInput;  // a tensor or a number

// PyTorch's promotion over dimensioned tensors, 0-dim tensors and numbers.
WT_API DType promoted_dtype(std::span<const PointwiseInput> inputs);
// The common device; DeviceError names the op when two differ (0-dim CPU tensors may join a CUDA tensor).
WT_API Device common_device(const char* op, std::span<const PointwiseInput> inputs);
WT_API Shape common_shape(const char* op, std::span<const PointwiseInput> inputs);

// Numbers take part in templates over operands as inputs without a gradient.
inline bool requires_grad(const Scalar&) { return false; }
inline void add_edge(Node& node, const Scalar&) { node.edges.emplace_back(); }

// An operand kept for backward: a saved tensor, or a number.
template <class T>
void save_operand(Node& node, const T& operand, bool needed) {
  if constexpr (std::is_same_v<T, Tensor>) node.save(needed ? operand : Tensor());
}

// A new tensor of the common shape and device, whose dims lie in memory as those of the inputs.
WT_API Tensor pointwise_output(const char* op, std::span<const PointwiseInput> inputs, DType dtype);
// One elementwise launch into a fresh output.
WT_API Tensor pointwise(const char* op, ElementwiseSlot& slot, ResultRule rule,
                        std::initializer_list<PointwiseInput> inputs, kernels::IndexFault* fault = nullptr);
// The same into `self`, which must have the broadcast shape and a dtype that the result can be cast to. Bumps
// the version; the caller has called check_inplace before and records after.
WT_API void pointwise_into(const char* op, ElementwiseSlot& slot, ResultRule rule, const Tensor& self,
                           std::initializer_list<PointwiseInput> inputs,
                           kernels::IndexFault* fault = nullptr);

// A copy that stands for x before an in-place change, history included.
inline Tensor clone_with_history(const Tensor& x) {
  Tensor c = raw_clone(x);
  if (Edge e = gradient_edge(x)) set_gradient_edge(c, std::move(e));
  return c;
}

// In-place form of a differentiable op: checks, launches into `self`, and gives it the node that
// `make_record` returns, which is called before the data changes and only when the op is recorded. Inputs
// that backward needs and that the op overwrites are saved as clones by make_record.
template <class F>
Tensor inplace(const char* op, ElementwiseSlot& slot, ResultRule rule, const Tensor& self,
               std::initializer_list<PointwiseInput> inputs, F&& make_record) {
  bool recorded = thread_state().grad_mode && requires_grad(self);
  for (const auto& in : inputs)
    recorded |= thread_state().grad_mode && in.tensor && requires_grad(*in.tensor);
  check_inplace(self, op, recorded);
  Ref<Node> node = recorded ? make_record() : Ref<Node>();
  pointwise_into(op, slot, rule, self, inputs);
  if (node) rebase_history(self, node);
  return self;
}

}  // namespace warptape
