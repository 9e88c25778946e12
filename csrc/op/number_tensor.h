// A 0-dim tensor in the place of a number whose value is not to be read: it lies on a device, or a compiled
// region has not computed it yet. Results are those of the number to the bit.
#pragma once

#include "op/pointwise.h"
#include "tensor/factory.h"

namespace warptape::ops {

// Whether it may be an operand in place of the number `inputs` take: these are floating, the checks of a
// number say nothing of its value, and no backward is to have it. If not, the caller reads it.
inline bool may_stay_tensor(const Tensor& number, std::initializer_list<PointwiseInput> inputs) {
  bool recorded = false;
  for (const PointwiseInput& in : inputs) recorded |= in.tensor && needs_grad(*in.tensor);
  const DType t = number.dtype();
  return !recorded && number.ndim() == 0 && t != DType::Bool && !is_complex(t) &&
         is_floating(promoted_dtype({inputs.begin(), inputs.size()}));
}

// The operand. A number has no say in the dtype of the result, and is computed with in that of the kernel.
inline Tensor as_operand_of(const Tensor& number, std::initializer_list<PointwiseInput> inputs) {
  return raw_cast(alias(number), compute_dtype(promoted_dtype({inputs.begin(), inputs.size()})));
}

// As pointwise() with the number behind the inputs.
inline Tensor pointwise_by(const char* op, ElementwiseSlot& slot,
                           std::initializer_list<PointwiseInput> inputs, const Tensor& number) {
  const std::span<const PointwiseInput> in{inputs.begin(), inputs.size()};
  const DType result = promoted_dtype(in);
  const Tensor last = as_operand_of(number, inputs);
  SmallVector<PointwiseInput, 4> all;
  for (const PointwiseInput& i : in) all.push_back(i);
  all.push_back(last);
  Tensor out = pointwise_output(op, in, result);
  run_elementwise(slot, compute_dtype(result), out, {all.data(), all.size()});
  return out;
}

}  // namespace warptape::ops
