// Step 5: as step 4, with accesses of 16 bytes everywhere. A lies transposed in shared memory, so that 8
// numbers of a column are two loads. n and k are multiples of 4.
//
//   grid      tiles of C       block     16 x 16 threads, 128 x 128 of C, 8 along k a slice
//   warp      16 rows x 128 columns      thread    8 x 8
#include "examples/gemm_ladder/tile.cuh"

namespace warptape::kernels::cuda {
namespace {

constexpr GemmStep kStep = gemm_step_of(GemmStepId::Vectorised);
constexpr int kM = kStep.block.m, kN = kStep.block.n, kK = kStep.block.k;
static_assert(kM * kK == 4 * kStep.threads && kN * kK == 4 * kStep.threads);

__global__ void __launch_bounds__(kStep.threads) vectorised(GemmArgs<float> g) {
  __shared__ __align__(16) float left[kK][kM], right[kK][kN];
  const int64_t i0 = blockIdx.x / g.across * kM, j0 = blockIdx.x % g.across * kN;
  const int r = threadIdx.x / (kK / 4), q = threadIdx.x % (kK / 4) * 4;   // of A's slice
  const int qb = threadIdx.x / (kN / 4), s = threadIdx.x % (kN / 4) * 4;  // of B's
  float sums[8][8] = {};
  for (int64_t k0 = 0; k0 < g.k; k0 += kK) {
    Packed<float, 4> a4 = {}, b4 = {};
    if (i0 + r < g.m && k0 + q < g.k) a4 = load_packed<4>(g.a + (i0 + r) * g.k + k0 + q);
    if (k0 + qb < g.k && j0 + s < g.n) b4 = load_packed<4>(g.b + (k0 + qb) * g.n + j0 + s);
#pragma unroll
    for (int i = 0; i < 4; ++i) left[q + i][r] = a4[i];
    *reinterpret_cast<Packed<float, 4>*>(&right[qb][s]) = b4;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kK; ++i) {
      float a[8], b[8];
      load_four(a, 0, &left[i][fragment_row()]), load_four(a, 4, &left[i][fragment_row() + 4]);
      load_four(b, 0, &right[i][fragment_col()]), load_four(b, 4, &right[i][fragment_col() + 4]);
      add_outer(sums, a, b);
    }
    __syncthreads();  // the tiles were read
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; j += 4)
      store_four(g, i0 + fragment_row() + i, j0 + fragment_col() + j, sums[i], j);
}

}  // namespace

void gemm_vectorised(const LaunchContext& ctx, const GemmStepPlan& p) {
  launch_step(ctx, p, kStep, vectorised);
}

}  // namespace warptape::kernels::cuda
