// Builds the plan of an elementwise kernel from tensors and scalars.
#pragma once

#include "kernels/elementwise/elementwise.h"
#include "kernels/slot.h"
#include "tensor/factory.h"

namespace warptape {

using ElementwiseSlot = kernels::Slot<kernels::ElementwiseFn>;

// One input: a tensor, or a number that lives in the argument itself.
struct ElementwiseInput {
  ElementwiseInput(const Tensor& t) : tensor(&t) {}
  ElementwiseInput(Scalar s) : scalar(s) {}
  const Tensor* tensor = nullptr;
  Scalar scalar;
};

// A plan, and the numbers that it points to.
class WT_API PlannedElementwise {
 public:
  // `out` gives the shape, which the inputs broadcast to, and the order of the dims.
  PlannedElementwise(DType compute, const Tensor& out, std::span<const ElementwiseInput> inputs);
  PlannedElementwise(const PlannedElementwise&) = delete;
  PlannedElementwise& operator=(const PlannedElementwise&) = delete;
  const kernels::ElementwisePlan& operator*() const { return plan_; }

 private:
  union Number {
    int64_t i;
    double d;
    Complex<double> c;
  };
  kernels::ElementwisePlan plan_;
  Number numbers_[kernels::kMaxOperands - 1];
};

// Runs `slot` over out and inputs, which broadcast to out's shape. Values are computed in `compute` (what
// compute_dtype gives). `fault` is where the kernel reports a division by zero; may be null. Does nothing on
// the meta device. Inputs on another device than out must be 0-dim CPU tensors.
WT_API void run_elementwise(ElementwiseSlot& slot, DType compute, const Tensor& out,
                            std::span<const ElementwiseInput> inputs, kernels::IndexFault* fault = nullptr);

}  // namespace warptape
