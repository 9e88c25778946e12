// Step 4: a thread keeps 8 x 8 sums in registers; 16 numbers from shared memory serve 64 products.
//
//   grid      tiles of C       block     16 x 16 threads, 128 x 128 of C, 8 along k a slice
//   warp      16 rows x 128 columns      thread    8 x 8
//
// Loads from memory: 32 operations a byte, from shared memory 2.
#include "examples/gemm_ladder/tile.cuh"

namespace warptape::kernels::cuda {
namespace {

constexpr GemmStep kStep = gemm_step_of(GemmStepId::RegisterTile);
constexpr int kM = kStep.block.m, kN = kStep.block.n, kK = kStep.block.k;

__global__ void __launch_bounds__(kStep.threads) register_tile(GemmArgs<float> g) {
  __shared__ float left[kK][kM], right[kK][kN];
  const int64_t i0 = blockIdx.x / g.across * kM, j0 = blockIdx.x % g.across * kN;
  float sums[8][8] = {};
  for (int64_t k0 = 0; k0 < g.k; k0 += kK) {
    for (int i = threadIdx.x; i < kM * kK; i += kStep.threads) {
      const int r = i / kK, q = i % kK;
      left[q][r] = i0 + r < g.m && k0 + q < g.k ? g.a[(i0 + r) * g.k + k0 + q] : 0.f;
    }
    for (int i = threadIdx.x; i < kK * kN; i += kStep.threads) {
      const int q = i / kN, s = i % kN;
      right[q][s] = k0 + q < g.k && j0 + s < g.n ? g.b[(k0 + q) * g.n + j0 + s] : 0.f;
    }
    __syncthreads();
#pragma unroll
    for (int q = 0; q < kK; ++q) {
      float a[8], b[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) a[i] = left[q][fragment_row() + i], b[i] = right[q][fragment_col() + i];
      add_outer(sums, a, b);
    }
    __syncthreads();  // the tiles were read
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int64_t row = i0 + fragment_row() + i, col = j0 + fragment_col() + j;
      if (row < g.m && col < g.n) g.c[row * g.n + col] = sums[i][j];
    }
}

}  // namespace

void gemm_register_tile(const LaunchContext& ctx, const GemmStepPlan& p) {
  launch_step(ctx, p, kStep, register_tile);
}

}  // namespace warptape::kernels::cuda
