// Step 6: while a slice is multiplied, cp.async brings the next one into the other buffer, past the
// registers. B goes by 16 bytes; A by 4, for cp.async cannot transpose more than it copies at once. n is a
// multiple of 4.
//
//   grid      tiles of C       block     16 x 16 threads, 128 x 128 of C, 16 along k a slice, 2 slices
//   warp      16 rows x 128 columns      thread    8 x 8
#include "examples/gemm_ladder/tile.cuh"
#include "kernels/cuda/common/ptx.cuh"

namespace warptape::kernels::cuda {
namespace {

constexpr GemmStep kStep = gemm_step_of(GemmStepId::AsyncCopy);
constexpr int kM = kStep.block.m, kN = kStep.block.n, kK = kStep.block.k;
constexpr int kPad = 4;  // keeps 16 bytes aligned, and spreads the writes of a column over the banks

struct Slices {
  float left[kK][kM + kPad], right[kK][kN];
};

WT_DEVICE void fetch(const GemmArgs<float>& g, Slices& to, int64_t i0, int64_t j0, int64_t k0) {
#pragma unroll
  for (int i = threadIdx.x; i < kM * kK; i += kStep.threads) {
    const int r = i / kK, q = i % kK;
    const bool inside = i0 + r < g.m && k0 + q < g.k;
    copy_async<4>(&to.left[q][r], inside ? g.a + (i0 + r) * g.k + k0 + q : g.a, inside ? 4 : 0);
  }
#pragma unroll
  for (int i = threadIdx.x * 4; i < kK * kN; i += kStep.threads * 4) {
    const int q = i / kN, s = i % kN;
    const bool inside = k0 + q < g.k && j0 + s < g.n;
    copy_async<16>(&to.right[q][s], inside ? g.b + (k0 + q) * g.n + j0 + s : g.b, inside ? 16 : 0);
  }
  commit_copies();
}

__global__ void __launch_bounds__(kStep.threads) async_copy(GemmArgs<float> g) {
  __shared__ __align__(16) Slices slices[2];
  const int64_t i0 = blockIdx.x / g.across * kM, j0 = blockIdx.x % g.across * kN;
  float sums[8][8] = {};
  fetch(g, slices[0], i0, j0, 0);
  for (int64_t k0 = 0, turn = 0; k0 < g.k; k0 += kK, ++turn) {
    fetch(g, slices[(turn + 1) % 2], i0, j0, k0 + kK);  // past k it is zeros
    wait_copies<1>();
    __syncthreads();  // everybody's copies are there
    const Slices& now = slices[turn % 2];
#pragma unroll
    for (int q = 0; q < kK; ++q) {
      float a[8], b[8];
      load_four(a, 0, &now.left[q][fragment_row()]), load_four(a, 4, &now.left[q][fragment_row() + 4]);
      load_four(b, 0, &now.right[q][fragment_col()]), load_four(b, 4, &now.right[q][fragment_col() + 4]);
      add_outer(sums, a, b);
    }
    __syncthreads();  // the slice was read: the next turn writes there
  }
  wait_copies<0>();
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; j += 4)
      store_four(g, i0 + fragment_row() + i, j0 + fragment_col() + j, sums[i], j);
}

}  // namespace

void gemm_async_copy(const LaunchContext& ctx, const GemmStepPlan& p) {
  launch_step(ctx, p, kStep, async_copy);
}

}  // namespace warptape::kernels::cuda
