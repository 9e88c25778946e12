// The plan of a product of matrices, for the ops that run a slot of kernels/matmul.h.
#pragma once

#include "kernels/matmul.h"
#include "tensor/tensor.h"

namespace warptape::ops {

// Of the last two dims of a [.., m, k] and b [.., k, n], without batch dims; alpha 1, beta 0. The strides of
// a dim of size 1 are those that suit the kernel.
inline kernels::MatmulPlan plan_of(const Tensor& a, const Tensor& b) {
  const size_t da = a.sizes().size(), db = b.sizes().size();
  kernels::MatmulPlan p{};
  p.dtype = a.dtype();
  p.m = a.sizes()[da - 2], p.n = b.sizes()[db - 1], p.k = a.sizes()[da - 1];
  p.batch[0] = p.batch[1] = 1;
  p.a = {a.planned_data(), a.strides()[da - 2], a.strides()[da - 1], {0, 0}};
  p.b = {b.planned_data(), b.strides()[db - 2], b.strides()[db - 1], {0, 0}};
  if (p.k == 1) p.a.col_stride = p.b.row_stride = 1;
  return p;
}

// `out` is contiguous, [.., m, n]; `bias` [n], contiguous, or undefined.
inline void set_result(kernels::MatmulPlan& p, const Tensor& out, const Tensor& bias) {
  p.c.data = out.data(), p.c.row_stride = p.n, p.c.col_stride = 1;
  p.bias = bias.defined() ? bias.planned_data() : nullptr;
}

}  // namespace warptape::ops
