// A product of row-major matrices as cuBLAS sees it. cuBLAS knows column-major matrices only, and memory that
// is a row-major X [r, c] is, read by columns, X^T [c, r]. So C = A B is asked for as C^T = B^T A^T: cuBLAS's
// left operand is our B, its right one our A, it writes [n, m] with the leading dim that is C's row stride,
// and a bias for its rows is one for our columns. Host code without CUDA's headers, for tests.
#pragma once

#include "kernels/linalg/matmul.h"

namespace warptape::kernels::cuda {

// An operand in memory: column-major [rows, cols], columns ld apart; transposed when it is read.
struct ColumnMajor {
  bool transpose = false;
  int64_t rows = 0, cols = 0, ld = 0;
};

// X [r, c] by its strides, such that cuBLAS reads X^T; false when it has no unit stride, or rows upon each
// other (broadcast).
inline bool read_transposed(int64_t r, int64_t c, int64_t row_stride, int64_t col_stride, ColumnMajor& x) {
  auto at_least_one = [](int64_t n) { return n > 1 ? n : 1; };
  if ((col_stride == 1 || c == 1) && (r == 1 || row_stride >= at_least_one(c))) {
    // Row-major X is column-major X^T [c, r]: as it is.
    x = {false, c, r, r == 1 ? at_least_one(c) : row_stride};
    return true;
  }
  if ((row_stride == 1 || r == 1) && (c == 1 || col_stride >= at_least_one(r))) {
    // Column-major X [r, c]: cuBLAS transposes it.
    x = {true, r, c, c == 1 ? at_least_one(r) : col_stride};
    return true;
  }
  return false;
}

// How the two batch dims are walked: `count` products in one call, their operands evenly apart, `outer`
// calls. Index 0 is A, 1 is B, 2 is C; strides in elements.
struct Batches {
  int64_t count = 1, outer = 1;
  int64_t strides[3] = {0, 0, 0}, outer_strides[3] = {0, 0, 0};
};

inline Batches merge_batches(const MatmulPlan& p) {
  const MatrixRef* operands[3] = {&p.a, &p.b, &p.c};
  bool merges = true;
  for (const MatrixRef* x : operands) merges &= x->batch_strides[0] == x->batch_strides[1] * p.batch[1];
  // The dim that one call covers: all of both, the only one, or the longer one.
  const int inner = p.batch[0] == 1 || (p.batch[1] != 1 && (merges || p.batch[1] >= p.batch[0])) ? 1 : 0;
  const bool whole = merges && p.batch[0] != 1 && p.batch[1] != 1;
  Batches b;
  b.count = whole ? p.batch[0] * p.batch[1] : p.batch[inner];
  b.outer = whole ? 1 : p.batch[1 - inner];
  for (int i = 0; i < 3; ++i) {
    b.strides[i] = b.count == 1 ? 0 : operands[i]->batch_strides[inner];
    b.outer_strides[i] = b.outer == 1 ? 0 : operands[i]->batch_strides[1 - inner];
  }
  return b;
}

// cuBLAS's product: D [rows, cols] = left [rows, depth] right [depth, cols].
struct ColumnProduct {
  int64_t rows = 0, cols = 0, depth = 0;  // n, m, k of the plan
  ColumnMajor left, right;                // from B and from A
  int64_t ldd = 0;
  Batches batches;
};

// False where A or B needs a copy first: which one is in `copy_a`, `copy_b`.
inline bool column_product(const MatmulPlan& p, ColumnProduct& out, bool& copy_a, bool& copy_b) {
  out.rows = p.n, out.cols = p.m, out.depth = p.k;
  out.ldd = p.m == 1 ? p.n : p.c.row_stride;
  copy_b = !read_transposed(p.k, p.n, p.b.row_stride, p.b.col_stride, out.left);
  copy_a = !read_transposed(p.m, p.k, p.a.row_stride, p.a.col_stride, out.right);
  out.batches = merge_batches(p);
  return !copy_a && !copy_b;
}

}  // namespace warptape::kernels::cuda
