// A tile of C by mma.sync, of operands that lie along k or along C: step 9 of the ladder (mma.cu) and grouped
// products. ldmatrix brings fragments from slices that cp.async fills. Shared memory has no padding: the
// pieces of 16 bytes of a row are exchanged (a swizzle), so that the 8 rows of a matrix lie in different
// banks. Of four slices three are under way.
//
//   block     8 warps, 128 x 128 of C, 32 along k a slice, 4 slices
//   warp      64 x 32, 2 x 4 of them     fragment  16 x 8 x 16: 4 x 4 of them a warp
#pragma once

#include "kernels/cuda/gemm/half_tile.cuh"

namespace warptape::kernels::cuda {

inline constexpr GemmStep kMmaStep = gemm_step_of(GemmStepId::Mma);
static_assert(kMmaStep.block.m == kMmaStep.block.n);

// What a slice has of one operand: [side, kK] where memory runs along k, else [kK, side].
template <class T, bool AlongK>
struct MmaSlice {
  static constexpr int kSide = kMmaStep.block.m, kK = kMmaStep.block.k;
  static constexpr int kRows = AlongK ? kSide : kK, kCols = AlongK ? kK : kSide;
  T values[kRows * kCols];

  // Along k rows are 64 bytes: two of them are all the banks. Else they are two times the banks.
  WT_DEVICE static int at(int r, int piece) {
    return r * kCols + (piece ^ (AlongK ? r / 2 % 4 : r % 8)) * kPiece;
  }
  // Asks for what is there from (first, k0) on of an operand [outer, k] or [k, outer].
  WT_DEVICE void fetch(const T* x, int outer, int k, int first, int k0) {
    fetch_tile<kRows, kCols, kMmaStep.threads>(x, AlongK ? outer : k, AlongK ? k : outer, AlongK ? first : k0,
                                               AlongK ? k0 : first,
                                               [&](int r, int c) { return values + at(r, c); });
  }
  // The four matrices of 8 x 8 from (c, q) on that mma wants: of A those of one half along k first, of B
  // those of one half along C.
  template <bool IsA>
  WT_DEVICE void fragment(uint32_t (&words)[4], int c, int q) const {
    const int lane = threadIdx.x % kWarp, odd = lane / 8 % 2, late = lane / 16;
    const int outer = IsA ? odd : late, deep = IsA ? late : odd;
    if constexpr (AlongK)
      load_matrices(words, values + at(c + outer * 8 + lane % 8, q / kPiece + deep));
    else
      load_matrices_transposed(words, values + at(q + deep * 8 + lane % 8, c / kPiece + outer));
  }
};

// A [m, k] lies so where AAlongK, else as [k, m]; B as [n, k] where BAlongK, else as [k, n]. What a row in
// memory has is a multiple of 8; the other size of each is not asked for anything.
template <class T, bool AAlongK, bool BAlongK>
struct MmaTile {
  static constexpr int kM = kMmaStep.block.m, kN = kMmaStep.block.n, kK = kMmaStep.block.k;
  static constexpr int kStages = kMmaStep.stages, kWarpM = kMmaStep.warp.m, kWarpN = kMmaStep.warp.n;
  static constexpr int kDown = kWarpM / 16, kAcross = kWarpN / 8;

  struct Slice {
    MmaSlice<T, AAlongK> left;
    MmaSlice<T, BAlongK> right;
  };
  static constexpr size_t kSharedBytes = kStages * sizeof(Slice);

  WT_DEVICE static void fetch(const GemmArgs<T>& g, Slice& to, int i0, int j0, int k0) {
    to.left.fetch(g.a, int(g.m), int(g.k), i0, k0);
    to.right.fetch(g.b, int(g.n), int(g.k), j0, k0);
    commit_copies();
  }

  WT_DEVICE static void multiply_slice(const Slice& s, int wi, int wj, float (&sums)[kDown][4 * kAcross]) {
#pragma unroll
    for (int q = 0; q < kK; q += 16) {
      uint32_t a[kDown][4], b[kAcross / 2][4];
#pragma unroll
      for (int i = 0; i < kDown; ++i) s.left.template fragment<true>(a[i], wi + i * 16, q);
#pragma unroll
      for (int j = 0; j < kAcross / 2; ++j) s.right.template fragment<false>(b[j], wj + j * 16, q);
#pragma unroll
      for (int i = 0; i < kDown; ++i)
#pragma unroll
        for (int j = 0; j < kAcross; ++j) {
          float (&d)[4] = reinterpret_cast<float (&)[4]>(sums[i][4 * j]);
          mma_16x8x16<T>(d, a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
  }

  // C from (i0, j0) on, by the whole block; kSharedBytes of dynamic shared memory.
  WT_DEVICE static void run(const GemmArgs<T>& g, int i0, int j0) {
    auto* slices = dynamic_shared<Slice>();
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
};

}  // namespace warptape::kernels::cuda
