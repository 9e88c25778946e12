// Step 1: one thread an element of C. Neighbouring threads lie below each other, so a warp's reads of A and
// writes of C touch 16 rows, a memory transaction each.
//
//   grid      tiles of C       block     16 x 16 threads, 16 x 16 of C
//   warp      16 rows x 2 columns        thread    1 x 1
//
// Loads: 2 numbers for one product, 1/4 operation a byte.
#include "examples/gemm_ladder/tile.cuh"

namespace warptape::kernels::cuda {
namespace {

constexpr GemmStep kStep = gemm_step_of(GemmStepId::Naive);
constexpr int kM = kStep.block.m, kN = kStep.block.n;

__global__ void __launch_bounds__(kStep.threads) naive(GemmArgs<float> g) {
  const int64_t row = blockIdx.x / g.across * kM + threadIdx.x % kM;
  const int64_t col = blockIdx.x % g.across * kN + threadIdx.x / kM;
  if (row >= g.m || col >= g.n) return;
  float sum = 0;
  for (int64_t k = 0; k < g.k; ++k) sum += g.a[row * g.k + k] * g.b[k * g.n + col];
  g.c[row * g.n + col] = sum;
}

}  // namespace

void gemm_naive(const LaunchContext& ctx, const GemmStepPlan& p) { launch_step(ctx, p, kStep, naive); }

}  // namespace warptape::kernels::cuda
