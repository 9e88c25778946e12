// Step 3: a block reads a 32 x 32 tile of A and of B into shared memory and uses each number 32 times.
//
//   grid      tiles of C       block     1,024 threads, 32 x 32 of C, 32 along k a slice
//   warp      1 row x 32 columns         thread    1 x 1
//
// Loads from memory: 8 operations a byte. From shared memory it is still two loads a product.
#include "examples/gemm_ladder/tile.cuh"

namespace warptape::kernels::cuda {
namespace {

constexpr GemmStep kStep = gemm_step_of(GemmStepId::SharedTile);
constexpr int kSide = kStep.block.m;

__global__ void __launch_bounds__(kStep.threads) shared_tile(GemmArgs<float> g) {
  __shared__ float left[kSide][kSide], right[kSide][kSide];
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
  const int64_t row = blockIdx.x / g.across * kSide + ty, col = blockIdx.x % g.across * kSide + tx;
  float sum = 0;
  for (int64_t k0 = 0; k0 < g.k; k0 += kSide) {
    left[ty][tx] = row < g.m && k0 + tx < g.k ? g.a[row * g.k + k0 + tx] : 0.f;
    right[ty][tx] = k0 + ty < g.k && col < g.n ? g.b[(k0 + ty) * g.n + col] : 0.f;
    __syncthreads();
#pragma unroll
    for (int q = 0; q < kSide; ++q) sum += left[ty][q] * right[q][tx];
    __syncthreads();  // the tiles were read
  }
  if (row < g.m && col < g.n) g.c[row * g.n + col] = sum;
}

}  // namespace

void gemm_shared_tile(const LaunchContext& ctx, const GemmStepPlan& p) {
  launch_step(ctx, p, kStep, shared_tile);
}

}  // namespace warptape::kernels::cuda
