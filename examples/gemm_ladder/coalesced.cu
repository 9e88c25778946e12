// Step 2: the same sums, but a warp has 32 columns of one row: it reads and writes 128 bytes that lie
// together and one number of A for all.
//
//   grid      tiles of C       block     256 threads, 8 x 32 of C
//   warp      1 row x 32 columns         thread    1 x 1
#include "examples/gemm_ladder/tile.cuh"

namespace warptape::kernels::cuda {
namespace {

constexpr GemmStep kStep = gemm_step_of(GemmStepId::Coalesced);
constexpr int kM = kStep.block.m, kN = kStep.block.n;

__global__ void __launch_bounds__(kStep.threads) coalesced(GemmArgs<float> g) {
  const int64_t row = blockIdx.x / g.across * kM + threadIdx.x / kN;
  const int64_t col = blockIdx.x % g.across * kN + threadIdx.x % kN;
  if (row >= g.m || col >= g.n) return;
  float sum = 0;
  for (int64_t k = 0; k < g.k; ++k) sum += g.a[row * g.k + k] * g.b[k * g.n + col];
  g.c[row * g.n + col] = sum;
}

}  // namespace

void gemm_coalesced(const LaunchContext& ctx, const GemmStepPlan& p) {
  launch_step(ctx, p, kStep, coalesced);
}

}  // namespace warptape::kernels::cuda
