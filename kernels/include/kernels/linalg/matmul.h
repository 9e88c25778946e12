// Matrix product: C = alpha * A B + beta * C (+ bias to every row), for a two-dimensional batch of matrices.
// Slot: "matmul"; and on devices whose library does more in one pass, such products with what comes before or
// after them.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

struct ChainPlan;

// Strides in elements, 0 where broadcast. A transposed operand is one whose strides are swapped.
struct MatrixRef {
  void* data;
  int64_t row_stride;
  int64_t col_stride;
  int64_t batch_strides[2];
};

// Makes rows of a product's A where they are multiplied, so that A as a whole is never in memory.
struct RowSource {
  // Rows [begin, end), contiguous: made on the calling thread, and there until its next call.
  const void* (*make)(const void* self, int64_t begin, int64_t end);
  const void* self;
};

// Where one has at most so many rows, or the other so many columns, and both lie along k, the kernel of the
// CPU takes dot products.
inline constexpr int64_t kFewRows = 8;

// Sums are kept in float (double for Float64) and rounded once at the end; integers wrap. Which products are
// summed in which order depends on the sizes and strides alone. Bool is not supported, complex numbers on
// CUDA alone.
struct MatmulPlan {
  DType dtype;       // of all operands
  int64_t batch[2];  // 1 where there is none
  int64_t m, n, k;   // any may be 0; k = 0 gives beta * C + bias
  MatrixRef a;       // [m, k], any strides; fast where one of the two is 1
  MatrixRef b;       // [k, n], likewise
  MatrixRef c;       // [m, n], col_stride 1; written, read only where beta is not 0
  const void* bias;  // [n], contiguous; null for none
  double alpha = 1;
  double beta = 0;
  // On the CPU, of floating products: elementwise ops on C, whose elements the plan visits in C's order
  // [batch, m, n], C contiguous. They run on rows that are complete, while these are in the cache.
  const ChainPlan* epilogue = nullptr;
  // On the CPU, of floating products of one matrix each: makes A, whose rows then follow one another and
  // whose data is null. Each row is made once.
  const RowSource* prologue = nullptr;
  // On the CPU, of one product: B as "matmul_pack" packs it, beside B itself.
  const void* packed = nullptr;
};

using MatmulFn = void(const LaunchContext&, const MatmulPlan&);

// Slot "matmul_pack" on the CPU: packs B into memory aligned to 64 bytes, if `packed` is not null; returns
// the bytes that it takes, 0 where products of the dtype do not read B packed. Of the plan dtype, n, k and
// B's strides count.
using MatmulPackFn = int64_t(const LaunchContext&, const MatmulPlan&, void* packed);

// The slots below are CUDA's alone: on the CPU the ops take the pieces. They are for floating dtypes, without
// batch dims, alpha 1 and beta 0.

// Slot "matmul_row_sums": C = A B, and the sum of each of A's rows into `sums` [m], contiguous, of the plan's
// dtype. With A = gradient^T and B = input, C is the gradient of a linear's weight and `sums` its bias's.
using MatmulRowSumsFn = void(const LaunchContext&, const MatmulPlan&, void* sums);

// Slot "matmul_gelu_tanh": `before` = A B + bias and C = gelu(before), by the tanh formula. `before` is laid
// out as C.
using MatmulGeluFn = void(const LaunchContext&, const MatmulPlan&, void* before);

// Slot "matmul_gelu_tanh_backward": C = A B * gelu'(before), and the sum of each of C's columns into `sums`
// [n], contiguous, where it is not null.
using MatmulGeluBackwardFn = void(const LaunchContext&, const MatmulPlan&, const void* before, void* sums);

}  // namespace warptape::kernels
