// The plan of a product of matrices, for the ops that run a slot of kernels/linalg/matmul.h.
#pragma once

#include "kernels/linalg/matmul.h"
#include "ops/linalg/matmul.h"

namespace warptape::ops {

// The thread's epilogue for who computes `out` next, or null where it is for another result.
const kernels::ChainPlan* take_epilogue(const Tensor& out);

// What makes the rows of the first matrix of the thread's next product, whose storage has no memory. On the
// CPU; of one product, whose first matrix is floating, real and contiguous.
struct Prologue {
  kernels::RowSource source;
  const Storage* made;
  bool taken = false;
};
inline bool has_prologue(const Tensor& a) {
  const Prologue* p = thread_state().prologue;
  return p && p->made == &a.storage();
}

// Of the last two dims of a [.., m, k] and b [.., k, n], without batch dims; alpha 1, beta 0. The strides of
// a dim of size 1 are those that suit the kernel.
inline kernels::MatmulPlan plan_of(const Tensor& a, const Tensor& b) {
  const size_t da = a.sizes().size(), db = b.sizes().size();
  kernels::MatmulPlan p{};
  p.dtype = a.dtype();
  p.m = a.sizes()[da - 2], p.n = b.sizes()[db - 1], p.k = a.sizes()[da - 1];
  p.batch[0] = p.batch[1] = 1;
  p.a = {has_prologue(a) ? nullptr : a.planned_data(), a.strides()[da - 2], a.strides()[da - 1], {0, 0}};
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
