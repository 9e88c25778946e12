// Step 8: tensor cores by the fragments of nvcuda::wmma, for bfloat16 and float16 with float sums. Slices are
// copied by cp.async into one of two buffers, whose rows are padded by 16 bytes against bank conflicts.
//
//   grid      tiles of C       block     8 warps, 128 x 128 of C, 32 along k a slice, 2 slices
//   warp      64 x 32, 2 x 4 of them     fragment  16 x 16 x 16: 4 x 2 of them a warp
//
// n and k are multiples of 8.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include "examples/gemm_ladder/tile.cuh"
#include "kernels/cuda/gemm/half_tile.cuh"

namespace warptape::kernels::cuda {
namespace {

namespace wmma = nvcuda::wmma;

constexpr GemmStep kStep = gemm_step_of(GemmStepId::Wmma);
constexpr int kM = kStep.block.m, kN = kStep.block.n, kK = kStep.block.k, kSide = kStep.fragment.m;
constexpr int kWarpM = kStep.warp.m, kWarpN = kStep.warp.n;
constexpr int kDown = kWarpM / kSide, kAcross = kWarpN / kSide;

template <class T>
using Native = std::conditional_t<std::is_same_v<T, BFloat16>, __nv_bfloat16, half>;

template <class T>
struct Slices {
  T left[kM][kK + kPiece], right[kK][kN + kPiece];
};

template <int Pitch>
WT_DEVICE int place_of(int row, int piece) {
  return row * Pitch + piece * kPiece;
}

using Sums = wmma::fragment<wmma::accumulator, kSide, kSide, kSide, float>;

template <class T>
WT_DEVICE void multiply_slice(const Slices<T>& s, int wi, int wj, Sums (&sums)[kDown][kAcross]) {
  using N = Native<T>;
#pragma unroll 1  // else fragments go to memory
  for (int q = 0; q < kK; q += kSide) {
    wmma::fragment<wmma::matrix_a, kSide, kSide, kSide, N, wmma::row_major> a[kDown];
    wmma::fragment<wmma::matrix_b, kSide, kSide, kSide, N, wmma::row_major> b[kAcross];
#pragma unroll
    for (int i = 0; i < kDown; ++i)
      wmma::load_matrix_sync(a[i], reinterpret_cast<const N*>(&s.left[wi + i * kSide][q]), kK + kPiece);
#pragma unroll
    for (int j = 0; j < kAcross; ++j)
      wmma::load_matrix_sync(b[j], reinterpret_cast<const N*>(&s.right[q][wj + j * kSide]), kN + kPiece);
#pragma unroll
    for (int i = 0; i < kDown; ++i)
#pragma unroll
      for (int j = 0; j < kAcross; ++j) wmma::mma_sync(sums[i][j], a[i], b[j], sums[i][j]);
  }
}

// Only wmma knows which lane has which sum, so they go by way of shared memory; then a lane has 8 of a row.
template <class T>
WT_DEVICE void store_fragment(const GemmArgs<T>& g, float (*staged)[kSide], const Sums& sums, int64_t i,
                              int64_t j) {
  const int lane = threadIdx.x % kWarp, r = lane / 2, c = lane % 2 * kPiece;
  wmma::store_matrix_sync(&staged[0][0], sums, kSide, wmma::mem_row_major);
  __syncwarp();
  if (i + r < g.m && j + c < g.n) {
    Packed<T, kPiece> piece;
#pragma unroll
    for (int s = 0; s < kPiece; ++s) piece[s] = T(staged[r][c + s]);
    store_packed(g.c + (i + r) * g.n + j + c, piece);
  }
  __syncwarp();  // it was read
}

template <class T>
__global__ void __launch_bounds__(kStep.threads, 2) wmma_tiles(GemmArgs<T> g) {
  __shared__ __align__(32) Slices<T> slices[2];
  const int i0 = int(blockIdx.x / unsigned(g.across)) * kM, j0 = int(blockIdx.x % unsigned(g.across)) * kN;
  const int warp = threadIdx.x / kWarp, wi = warp / (kN / kWarpN) * kWarpM,
            wj = warp % (kN / kWarpN) * kWarpN;
  Sums sums[kDown][kAcross];
#pragma unroll
  for (int i = 0; i < kDown; ++i)
#pragma unroll
    for (int j = 0; j < kAcross; ++j) wmma::fill_fragment(sums[i][j], 0.f);
  TileCopies<T, kM, kK, kStep.threads, kK + kPiece> a(g.a, g.k, g.m, g.k, i0, 0, place_of<kK + kPiece>);
  TileCopies<T, kK, kN, kStep.threads, kN + kPiece> b(g.b, g.n, g.k, g.n, 0, j0, place_of<kN + kPiece>);
  auto fetch = [&](Slices<T>& to) {  // past k it is zeros
    a.fetch(to.left[0]), b.fetch(to.right[0]);
    a.move_right(), b.move_down();
    commit_copies();
  };
  fetch(slices[0]);
  for (int k0 = 0, turn = 0; k0 < int(g.k); k0 += kK, ++turn) {
    fetch(slices[(turn + 1) % 2]);
    wait_copies<1>();
    __syncthreads();  // everybody's copies are there
    multiply_slice(slices[turn % 2], wi, wj, sums);
    __syncthreads();  // the slice was read: the next turn writes there
  }
  wait_copies<0>();
  __syncthreads();  // no copy of zeros comes later: the slices become the warps' places to stage sums
  auto* staged = reinterpret_cast<float (*)[kSide]>(reinterpret_cast<float*>(slices) + warp * kSide * kSide);
#pragma unroll
  for (int i = 0; i < kDown; ++i)
#pragma unroll
    for (int j = 0; j < kAcross; ++j)
      store_fragment(g, staged, sums[i][j], i0 + wi + i * kSide, j0 + wj + j * kSide);
}

}  // namespace

void gemm_wmma(const LaunchContext& ctx, const GemmStepPlan& p) {
  if (p.dtype == DType::BFloat16) return launch_step<BFloat16>(ctx, p, kStep, wmma_tiles<BFloat16>);
  launch_step<Half>(ctx, p, kStep, wmma_tiles<Half>);
}

}  // namespace warptape::kernels::cuda
