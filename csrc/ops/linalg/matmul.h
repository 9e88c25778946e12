// Products of matrices, and what is made of them. Shapes: m rows, k summed, n columns, B batch dims.
#pragma once

#include "kernels/fused/chain.h"
#include "op/op.h"

namespace warptape::ops {

// Elementwise ops that run in the kernel of the thread's next product (ThreadState::epilogue), on its result.
// On the CPU; the result is floating, real and contiguous.
struct Epilogue {
  kernels::ChainPlan plan;  // operands without data are the result
  DType dtype;
  bool taken = false;

  // The plan on the result's memory.
  const kernels::ChainPlan* on(void* result);
};

extern WT_API const Op<Tensor(const Tensor&, const Tensor&)> matmul, mm, bmm, mv, dot, outer, inner;
// beta * input + alpha * (a @ b); input broadcasts to the product's shape.
using AddMatmulOp = Op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&)>;
extern WT_API const AddMatmulOp addmm, baddbmm, addmv, addbmm, addmm_, baddbmm_, addmv_;
// input [..., k] @ weight [n, k]^T + bias [n]
// beta or alpha for products of x's dtype: of integers addmm refuses fractions, the others drop them.
Scalar factor_for(const Tensor& x, const Scalar& v);
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const OptTensor&)> linear;
// input1 [..., i], input2 [..., j], weight [n, i, j], bias [n]
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, const OptTensor&)> bilinear;
extern WT_API const Op<Tensor(std::string_view, TensorList)> einsum;
// dims: those of a to sum over, and those of b.
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, std::span<const Shape>)> tensordot;

}  // namespace warptape::ops
