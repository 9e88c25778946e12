// Products of few rows with many columns, all contiguous along k (a linear layer on few rows, a matrix times
// a vector): dot products of up to 4 x 4 vectors at a time, so that the columns are read once and never
// copied.
#pragma once

#include "kernels/cpu/gemm/gemm_pack.h"

namespace warptape::kernels::WARPTAPE_ISA {

// The sums of four vectors: halves, then quarters are laid side by side and added.
template <class Acc>
WT_INLINE void gemm_sum4(const GemmVec<Acc> (&v)[4], Acc* sums) {
  constexpr int L = kGemmVecBytes / sizeof(Acc);
  using I = std::conditional_t<sizeof(Acc) == 4, int32_t, int64_t>;
  if constexpr (L < 4) {
    for (int i = 0; i < 4; ++i) sums[i] = v[i][0] + v[i][1];
  } else {
    auto beside = [](GemmVec<Acc> a, GemmVec<Acc> b, int d) __attribute__((always_inline)) {
      GemmVec<I> low, high;  // groups of 2 d lanes: the lower d of a, then of b; the upper d of a, then of b
      for (int l = 0; l < L; ++l) {
        int group = l / (2 * d) * 2 * d, at = l % d;
        low[l] = (l % (2 * d) < d ? 0 : L) + group + at;
        high[l] = low[l] + d;
      }
      return __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
    };
    GemmVec<Acc> v01 = beside(v[0], v[1], L / 2), v23 = beside(v[2], v[3], L / 2);
    GemmVec<Acc> all = beside(v01, v23, L / 4);  // quarters: v0, v2, v1, v3
    for (int d = L / 8; d > 0; d /= 2) all = beside(all, all, d);
    sums[0] = all[0];
    sums[1] = all[L / 2];
    sums[2] = all[L / 4];
    sums[3] = all[L / 2 + L / 4];
  }
}

template <class S>
struct GemmDot {
  using Acc = Compute<S>;
  static constexpr int kLanes = kGemmVecBytes / sizeof(Acc);
  static constexpr int64_t kAhead =
      2048 / sizeof(S);  // elements; what is asked for that early is there in time
  const S* a;            // [m, k]
  const S* b;            // [n, k]
  S* c;
  const S* bias;  // null for none
  int64_t m, k;
  int64_t a_stride, b_stride, c_row, c_col, bias_row, bias_col;
  double alpha, beta;

  void columns(int64_t begin, int64_t end) const {
    for (int64_t j = begin; j < end; j += 4)
      for (int64_t i = 0; i < m; i += 4) {
        int cols = end - j < 4 ? int(end - j) : 4;
        switch (m - i) {
          case 1:
            block<1>(i, j, cols);
            break;
          case 2:
            block<2>(i, j, cols);
            break;
          case 3:
            block<3>(i, j, cols);
            break;
          default:
            block<4>(i, j, cols);
        }
      }
  }

 private:
  // R rows by up to 4 columns; missing columns repeat the last one.
  template <int R>
  void block(int64_t i, int64_t j, int cols) const {
    const S* bj[4];
    for (int t = 0; t < 4; ++t) bj[t] = b + (j + (t < cols ? t : cols - 1)) * b_stride;
    const S* ai = a + i * a_stride;
    GemmVec<Acc> acc[R][4] = {};
    int64_t p = 0;
    while (p + kLanes <= k) {
      constexpr int64_t kPiece = 1 << 16;  // a multiple of the lanes
      if (p) cpu::poll_interrupt();
      const int64_t end = k - p > kPiece ? p + kPiece : k;
      for (; p + kLanes <= end; p += kLanes) step<R>(acc, ai, bj, p, kLanes);
    }
    if (p < k) step<R>(acc, ai, bj, p, k - p);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      Acc sums[4] = {};
      gemm_sum4<Acc>(acc[r], sums);
      for (int t = 0; t < 4 && t < cols; ++t) {
        S* out = c + (i + r) * c_row + (j + t) * c_col;
        Acc v = Acc(alpha) * sums[t];
        if (bias) v += Acc(bias[(i + r) * bias_row + (j + t) * bias_col]);
        if (beta != 0) v += Acc(beta) * Acc(*out);
        *out = S(v);
      }
    }
  }
  template <int R>
  WT_INLINE void step(GemmVec<Acc> (&acc)[R][4], const S* ai, const S* const* bj, int64_t p,
                      int64_t n) const {
    GemmVec<Acc> bv[4];
    // Behind a column's end comes that of the next four.
    const int64_t ahead = p + kAhead < k ? kAhead : kAhead - k + 4 * b_stride;
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) {
      __builtin_prefetch(bj[t] + p + ahead, 0, 2);
      bv[t] = gemm_load_as<Acc>(bj[t] + p, n);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      GemmVec<Acc> av = gemm_load_as<Acc>(ai + r * a_stride + p, n);
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) acc[r][t] = av * bv[t] + acc[r][t];
    }
  }
};

}  // namespace warptape::kernels::WARPTAPE_ISA
