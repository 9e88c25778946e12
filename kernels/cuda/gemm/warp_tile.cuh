// A tile of float32 sums in warps whose part of it is nearly square, so that a warp reads less of shared
// memory, of operands with any strides: for warp_tiles.cu and grouped products.
//
//   block     256 threads, 128 x 128 of C, 16 along k a slice, 2 slices
//   warp      64 x 32, 2 x 4 of them     thread    2 x 2 fragments of 4 x 4, 32 rows and 16 columns apart
//
// With H = 1 a block makes 64 x 64, one fragment a thread. Sums run along k in order in both. A slice is
// copied by 16 bytes where it lies in memory as in shared memory, else by 4.
#pragma once

#include "kernels/cuda/common/memory.cuh"
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/gemm/tiling.h"
#include "kernels/linalg/matmul.h"

namespace warptape::kernels::cuda {

// A product of one matrix each: what the plan says, at these addresses.
struct WarpProduct {
  const MatmulPlan& p;
  const float *a, *b;
  float* c;
  bool a_by_16, b_by_16, c_by_16;
};

// Whether four neighbours of an operand that is `other` apart in its other dim can move at once.
inline bool moves_by_16(const MatrixRef& x, int64_t unit, int64_t other) {
  return unit == 1 && other % 4 == 0 && x.batch_strides[0] % 4 == 0 && x.batch_strides[1] % 4 == 0 &&
         is_aligned(x.data, 16);
}

template <int H>
struct WarpTile {
  static constexpr int kSide = 64 * H, kThreads = kWarpTiling.threads, kK = kWarpTiling.block.k, kPad = 4;

  // Slices as [along k, along C]: of A columns, of B rows.
  struct alignas(16) Slices {
    float left[kK][kSide + kPad], right[kK][kSide + kPad];
  };

  // C from (i0, j0) on, by the whole block.
  WT_DEVICE static void run(const WarpProduct& x, int64_t i0, int64_t j0, Slices (&slices)[2]) {
    const MatmulPlan& p = x.p;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int ti = warp / 4 * (32 * H) + lane / 4 * 4, tj = warp % 4 * (16 * H) + lane % 4 * 4;
    Strip a = strip(x.a, p.a.row_stride, p.a.col_stride, i0, p.m, x.a_by_16);
    Strip b = strip(x.b, p.b.col_stride, p.b.row_stride, j0, p.n, x.b_by_16);
    auto fetch_next = [&](Slices& to, int64_t k0) {
      const int left_k = int(min(p.k - k0, int64_t(kK)));
      fetch(to.left, a, left_k);
      fetch(to.right, b, left_k);
      commit_copies();
      if (left_k < kK) return;
      a.x += kK * a.along_k;
      b.x += kK * b.along_k;
    };
    float sums[4 * H][4 * H] = {};
    fetch_next(slices[0], 0);
    int turn = 0;
    for (int64_t k0 = 0; k0 < p.k; k0 += kK, turn ^= 1) {
      fetch_next(slices[turn ^ 1], k0 + kK);
      wait_copies<1>();
      __syncthreads();  // everybody's copies are there
      multiply_slice(slices[turn], ti, tj, sums);
      __syncthreads();  // the slice was read: the next turn writes there
    }
    wait_copies<0>();  // the zeros past k, before the next matrix
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4 * H; ++i)
#pragma unroll
      for (int h = 0; h < H; ++h)
        store(p, x.c, i0 + ti + i / 4 * 32 + i % 4, j0 + tj + h * 16, sums[i], 4 * h, x.c_by_16);
  }

 private:
  // One operand of the tile: x[r * outer + q * along_k] for r < left; x moves along k. Few registers, for the
  // sums take most.
  struct Strip {
    const float* x;
    int64_t outer, along_k;
    int left;
    bool by_16;  // four neighbours in `outer` may be copied at once
  };
  WT_DEVICE static Strip strip(const float* x, int64_t outer, int64_t along_k, int64_t first, int64_t rows,
                               bool by_16) {
    return {x + first * outer, outer, along_k, int(min(rows - first, int64_t(1) << 20)), by_16};
  }

  // Asks for kK of `left_k` that are left; past k it is zeros.
  WT_DEVICE static void fetch(float (*slice)[kSide + kPad], const Strip& s, int left_k) {
    if (s.by_16) {
#pragma unroll 1
      for (int i = threadIdx.x * 4; i < kK * kSide; i += kThreads * 4) {
        const int q = i / kSide, r = i % kSide;
        const int left = q < left_k ? s.left - r : 0, read = left <= 0 ? 0 : left >= 4 ? 16 : left * 4;
        copy_async<16>(&slice[q][r], read ? s.x + r + q * s.along_k : s.x, read);
      }
      return;
    }
    // Neighbouring threads take neighbouring memory, whichever dim that is.
    const bool by_k = s.along_k == 1;
#pragma unroll 2
    for (int i = threadIdx.x; i < kK * kSide; i += kThreads) {
      const int q = by_k ? i % kK : i / kSide, r = by_k ? i / kK : i % kSide;
      const bool inside = r < s.left && q < left_k;
      copy_async<4>(&slice[q][r], inside ? s.x + r * s.outer + q * s.along_k : s.x, inside ? 4 : 0);
    }
  }

  // The two halves, or the only one, of what a thread needs of a slice's row.
  WT_DEVICE static void load_fragment(float (&x)[4 * H], const float* row, int apart) {
#pragma unroll
    for (int h = 0; h < H; ++h) {
      const auto four = load_packed<4>(row + h * apart);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[4 * h + i] = four[i];
    }
  }

  WT_DEVICE static void multiply_slice(const Slices& now, int ti, int tj, float (&sums)[4 * H][4 * H]) {
#pragma unroll
    for (int q = 0; q < kK; ++q) {
      float x[4 * H], y[4 * H];
      load_fragment(x, &now.left[q][ti], 32), load_fragment(y, &now.right[q][tj], 16);
#pragma unroll
      for (int i = 0; i < 4 * H; ++i)
#pragma unroll
        for (int j = 0; j < 4 * H; ++j) sums[i][j] += x[i] * y[j];
    }
  }

  // sums[at .. at + 4) of row i from column j on, as the plan says.
  WT_DEVICE static void store(const MatmulPlan& p, float* c, int64_t i, int64_t j, const float (&sums)[4 * H],
                              int at, bool by_16) {
    if (i >= p.m) return;
    float* row = c + i * p.c.row_stride + j;
    Packed<float, 4> out;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      if (j + s >= p.n) continue;
      float value = float(p.alpha) * sums[at + s];
      if (p.bias) value += static_cast<const float*>(p.bias)[j + s];
      if (p.beta != 0) value += float(p.beta) * row[s];  // C is not read otherwise: it may hold anything
      out[s] = value;
    }
    if (by_16 && j + 4 <= p.n) return store_packed(row, out);
#pragma unroll
    for (int s = 0; s < 4; ++s)
      if (j + s < p.n) row[s] = out[s];
  }
};

}  // namespace warptape::kernels::cuda
