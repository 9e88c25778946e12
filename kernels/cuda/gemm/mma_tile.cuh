// A tile of C by mma.sync, of operands that lie along k or along C: the ladder's step "mma" and grouped
// products. ldmatrix brings fragments from slices that cp.async fills. Shared memory has no padding: the
// pieces of 16 bytes of a row are exchanged (a swizzle), so that the 8 rows of a matrix lie in different
// banks. Of four slices three are under way.
//
//   block     8 warps, 128 x 128 of C, 32 along k a slice, 4 slices
//   warp      64 x 32, 2 x 4 of them     fragment  16 x 8 x 16: 4 x 4 of them a warp
#pragma once

#include "kernels/cuda/gemm/half_tile.cuh"

namespace warptape::kernels::cuda {

static_assert(kMmaTiling.block.m == kMmaTiling.block.n);

// What a slice has of one operand: [side, kK] where memory runs along k, else [kK, side].
template <class T, bool AlongK>
struct MmaSlice {
  static constexpr int kSide = kMmaTiling.block.m, kK = kMmaTiling.block.k;
  static constexpr int kRows = AlongK ? kSide : kK, kCols = AlongK ? kK : kSide;
  T values[kRows * kCols];

  // Along k rows are 64 bytes: two of them are all the banks. Else they are two times the banks.
  WT_DEVICE static int at(int r, int piece) {
    return r * kCols + (piece ^ (AlongK ? r / 2 % 4 : r % 8)) * kPiece;
  }

  // Brings slice after slice, along k, of an operand [outer, k] or [k, outer], from `first` on.
  struct Copies : TileCopies<T, kRows, kCols, kMmaTiling.threads> {
    WT_DEVICE Copies(const T* x, int64_t outer, int64_t k, int first)
        : TileCopies<T, kRows, kCols, kMmaTiling.threads>(x, AlongK ? k : outer, AlongK ? outer : k,
                                                          AlongK ? k : outer, AlongK ? first : 0,
                                                          AlongK ? 0 : first, at) {}
    WT_DEVICE void next(MmaSlice& to) {
      this->fetch(to.values);
      AlongK ? this->move_right() : this->move_down();
    }
  };

  // A warp's fragments from (c, 0) on, `Count` along C: the four matrices of 8 x 8 that mma wants, of A those
  // of one half along k first, of B those of one half along C. What the swizzle gives is worked out once: it
  // is the same in each row of fragments.
  template <bool IsA, int Count>
  struct Fragments {
    int places[AlongK ? kK / 16 : Count];

    WT_DEVICE explicit Fragments(int c) {
      const int lane = threadIdx.x % kWarp, odd = lane / 8 % 2, late = lane / 16;
      const int outer = IsA ? odd : late, deep = IsA ? late : odd;
#pragma unroll
      for (int i = 0; int& place : places) {
        place = AlongK ? at(c + outer * 8 + lane % 8, 2 * i + deep)
                       : at(deep * 8 + lane % 8, c / kPiece + 2 * i + outer);
        ++i;
      }
    }
    // The i'th along C and q'th along k.
    WT_DEVICE void load(uint32_t (&words)[4], const MmaSlice& s, int i, int q) const {
      if constexpr (AlongK)
        load_matrices(words, s.values + places[q] + i * 16 * kCols);
      else
        load_matrices_transposed(words, s.values + places[i] + q * 16 * kCols);
    }
  };
};

// A [m, k] lies so where AAlongK, else as [k, m]; B as [n, k] where BAlongK, else as [k, n]. What a row in
// memory has is a multiple of 8; the other size of each is not asked for anything.
template <class T, bool AAlongK, bool BAlongK>
struct MmaTile {
  static constexpr int kM = kMmaTiling.block.m, kN = kMmaTiling.block.n, kK = kMmaTiling.block.k;
  static constexpr int kStages = kMmaTiling.stages, kWarpM = kMmaTiling.warp.m, kWarpN = kMmaTiling.warp.n;
  static constexpr int kDown = kWarpM / 16, kAcross = kWarpN / 8;

  struct Slice {
    MmaSlice<T, AAlongK> left;
    MmaSlice<T, BAlongK> right;
  };
  static constexpr size_t kSharedBytes = kStages * sizeof(Slice);

  using Left = typename MmaSlice<T, AAlongK>::template Fragments<true, kDown>;
  using Right = typename MmaSlice<T, BAlongK>::template Fragments<false, kAcross / 2>;

  WT_DEVICE static void multiply_slice(const Slice& s, const Left& left, const Right& right,
                                       float (&sums)[kDown][4 * kAcross]) {
#pragma unroll
    for (int q = 0; q < kK / 16; ++q) {
      uint32_t a[kDown][4], b[kAcross / 2][4];
#pragma unroll
      for (int i = 0; i < kDown; ++i) left.load(a[i], s.left, i, q);
#pragma unroll
      for (int j = 0; j < kAcross / 2; ++j) right.load(b[j], s.right, j, q);
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
    typename MmaSlice<T, AAlongK>::Copies a(g.a, g.m, g.k, i0);
    typename MmaSlice<T, BAlongK>::Copies b(g.b, g.n, g.k, j0);
    auto fetch = [&](Slice& to) {  // past k it is zeros
      a.next(to.left), b.next(to.right);
      commit_copies();
    };
    const Left left(wi);
    const Right right(wj);
    float sums[kDown][4 * kAcross] = {};
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) fetch(slices[s]);
    for (int k0 = 0, turn = 0; k0 < int(g.k); k0 += kK, ++turn) {
      wait_copies<kStages - 2>();
      __syncthreads();  // everybody's copies are there, and the slice of the last turn was read
      fetch(slices[(turn + kStages - 1) % kStages]);
      multiply_slice(slices[turn % kStages], left, right, sums);
    }
    wait_copies<0>();
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kDown; ++i) store_sums(g, i0 + wi + i * 16 + lane / 4, j0 + wj, sums[i]);
  }
};

}  // namespace warptape::kernels::cuda
