// What the steps of the ladder share: their arguments, and which tile of C a block makes.
#pragma once

#include "examples/gemm_ladder/steps.h"
#include "kernels/cuda/common/memory.cuh"

namespace warptape::kernels::cuda {

template <class T>
GemmArgs<T> gemm_args(const GemmStepPlan& p, const GemmStep& step) {
  return {static_cast<const T*>(p.a), static_cast<const T*>(p.b), static_cast<T*>(p.c), p.m, p.n, p.k,
          ceil_div(p.n, step.block.n)};
}
// One block a tile of C.
template <class T>
void launch_step(const LaunchContext& ctx, const GemmStepPlan& p, const GemmStep& step,
                 void (*kernel)(GemmArgs<T>), size_t shared_bytes = 0) {
  const GemmArgs<T> args = gemm_args<T>(p, step);
  launch(ctx, step.name, kernel, dim3(unsigned(ceil_div(p.m, step.block.m) * args.across)),
         dim3(unsigned(step.threads)), shared_bytes, args);
}

// Where the thread's fragment of 8 x 8 sums begins, in a grid of 16 x 16 threads.
WT_DEVICE int fragment_row() { return int(threadIdx.x) / 16 * 8; }
WT_DEVICE int fragment_col() { return int(threadIdx.x) % 16 * 8; }

// Adds the products of column a[0..8) and row b[0..8).
WT_DEVICE void add_outer(float (&sums)[8][8], const float (&a)[8], const float (&b)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) sums[i][j] += a[i] * b[j];
}

WT_DEVICE void load_four(float (&x)[8], int at, const float* p) {
  const auto four = load_packed<4>(p);
#pragma unroll
  for (int j = 0; j < 4; ++j) x[at + j] = four[j];
}
// sums[at .. at + 4) of a row whose length is a multiple of 4, where they lie in C.
WT_DEVICE void store_four(const GemmArgs<float>& g, int64_t row, int64_t col, const float (&sums)[8],
                          int at) {
  if (row >= g.m || col >= g.n) return;
  Packed<float, 4> four;
#pragma unroll
  for (int j = 0; j < 4; ++j) four[j] = sums[at + j];
  store_packed(g.c + row * g.n + col, four);
}

}  // namespace warptape::kernels::cuda
