// Step 9: tensor cores by mma.sync, whose fragments' lanes are known: ldmatrix brings them, sums are stored
// from registers. Shared memory has no padding: the pieces of 16 bytes of a row are exchanged (a swizzle), so
// that the 8 rows of a matrix lie in different banks. Of four slices three are under way.
//
//   grid      tiles of C       block     8 warps, 128 x 128 of C, 32 along k a slice, 4 slices
//   warp      64 x 32, 2 x 4 of them     fragment  16 x 8 x 16: 4 x 4 of them a warp
//
// n and k are multiples of 8.
#include "kernels/cuda/gemm/half_tile.cuh"

namespace warptape::kernels::cuda {
namespace {

constexpr GemmStep kStep = gemm_step_of(GemmStepId::Mma);
constexpr int kM = kStep.block.m, kN = kStep.block.n, kK = kStep.block.k, kStages = kStep.stages;
constexpr int kWarpM = kStep.warp.m, kWarpN = kStep.warp.n;
constexpr int kDown = kWarpM / 16, kAcross = kWarpN / 8;

template <class T>
struct Slice {
  T left[kM * kK], right[kK * kN];

  // A's rows are 64 bytes: two of them are all the banks. B's are two times the banks.
  WT_DEVICE static int left_at(int r, int piece) { return r * kK + (piece ^ (r / 2 % 4)) * kPiece; }
  WT_DEVICE static int right_at(int q, int piece) { return q * kN + (piece ^ (q % 8)) * kPiece; }
};

template <class T>
WT_DEVICE void fetch(const GemmArgs<T>& g, Slice<T>& to, int i0, int j0, int k0) {
  fetch_tile<kM, kK, kStep.threads>(g.a, int(g.m), int(g.k), i0, k0,
                                    [&](int r, int c) { return to.left + Slice<T>::left_at(r, c); });
  fetch_tile<kK, kN, kStep.threads>(g.b, int(g.k), int(g.n), k0, j0,
                                    [&](int r, int c) { return to.right + Slice<T>::right_at(r, c); });
  commit_copies();
}

template <class T>
WT_DEVICE void multiply_slice(const Slice<T>& s, int wi, int wj, float (&sums)[kDown][4 * kAcross]) {
  const int lane = threadIdx.x % kWarp, r = lane % 16, right = lane / 16;
#pragma unroll
  for (int q = 0; q < kK; q += 16) {
    uint32_t a[kDown][4], b[kAcross / 2][4];
#pragma unroll
    for (int i = 0; i < kDown; ++i)  // matrices: rows 0-7, 8-15, then the columns 8 further
      load_matrices(a[i], s.left + Slice<T>::left_at(wi + i * 16 + r, q / kPiece + right));
#pragma unroll
    for (int j = 0; j < kAcross / 2; ++j)
      load_matrices_transposed(b[j], s.right + Slice<T>::right_at(q + r, (wj + j * 16) / kPiece + right));
#pragma unroll
    for (int i = 0; i < kDown; ++i)
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        float (&d)[4] = reinterpret_cast<float (&)[4]>(sums[i][4 * j]);
        mma_16x8x16<T>(d, a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
  }
}

template <class T>
__global__ void __launch_bounds__(kStep.threads, 2) mma_tiles(GemmArgs<T> g) {
  auto* slices = dynamic_shared<Slice<T>>();
  const int i0 = int(blockIdx.x / unsigned(g.across)) * kM, j0 = int(blockIdx.x % unsigned(g.across)) * kN;
  const int warp = threadIdx.x / kWarp, wi = warp / (kN / kWarpN) * kWarpM,
            wj = warp % (kN / kWarpN) * kWarpN;
  float sums[kDown][4 * kAcross] = {};
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) fetch(g, slices[s], i0, j0, s * kK);  // past k it is zeros
  for (int k0 = 0, turn = 0; k0 < int(g.k); k0 += kK, ++turn) {
    wait_copies<kStages - 2>();
    __syncthreads();  // everybody's copies are there, and the slice of the last turn was read
    fetch(g, slices[(turn + kStages - 1) % kStages], i0, j0, k0 + (kStages - 1) * kK);
    multiply_slice(slices[turn % kStages], wi, wj, sums);
  }
  wait_copies<0>();
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kDown; ++i) store_sums(g, i0 + wi + i * 16 + lane / 4, j0 + wj, sums[i], KeepSum{});
}

template <class T>
void run(const LaunchContext& ctx, const GemmStepPlan& p) {
  launch_step<T>(ctx, p, kStep, mma_tiles<T>, kStages * sizeof(Slice<T>));
}

}  // namespace

void gemm_mma(const LaunchContext& ctx, const GemmStepPlan& p) {
  if (p.dtype == DType::BFloat16) return run<BFloat16>(ctx, p);
  run<Half>(ctx, p);
}

}  // namespace warptape::kernels::cuda
