// What norms compute of rows that groups of threads hold in registers: for the kernels of norm.cuh and
// norm.cu, and for chains in which a norm is a step (chain_rows.cuh). Both are compiled without contraction,
// so that they give the same bits: where one rounding is wanted there is an fma().
#pragma once

#include "kernels/cuda/common/groups.cuh"

namespace warptape::kernels::cuda {

inline constexpr int kNormThreads = 512;          // leaves 128 registers
inline constexpr int kNormBackwardThreads = 512;  // at most; likewise
inline constexpr int64_t kNormPartBlocks = 264;   // 2 for each multiprocessor of the largest devices
template <class T> inline constexpr int kHeld =
    sizeof(T) == 2 ? 2 : kRowPieces;  // pieces of a thread, backward

struct Join2 {
  template <class C> WT_DEVICE C operator()(C a, C b) const { return a + b; }
};

template <class C>
WT_DEVICE C inverse_std(C variance, C eps) {
  return C(1) / sqrt(variance + eps);
}

template <class C>
WT_DEVICE C scale_and_shift(C v, bool scales, C weight, bool shifts, C bias) {
  return scales ? (shifts ? fma(v, weight, bias) : v * weight) : shifts ? v + bias : v;
}

template <class C>
struct RowStats {
  C mean, rstd;
  WT_DEVICE C normal(C x) const { return (x - mean) * rstd; }
};

// Of a row of n elements, of which what is not there is 0 in `raw`. kCentered: the mean is subtracted (layer
// and group norm) or not (RMS norm). All threads of the block call.
template <bool kCentered, class T>
WT_DEVICE RowStats<Compute<T>> row_stats(const Packed<T, kPackedWidth<T>> (&raw)[kRowPieces],
                                         const RowTile<T>& tile, int64_t n, Compute<T> eps,
                                         Compute<T>* shared) {
  using C = Compute<T>;
  constexpr int K = kRowPieces, W = kPackedWidth<T>;
  C mean = 0;
  if constexpr (kCentered) {
#pragma unroll
    for (int k = 0; k < K; ++k) mean += fold_tree<W>(raw[k].values, [](T v) { return widen<C>(v); }, Join2{});
    mean = group_join(mean, tile.lanes, C(0), Join2{}, shared) / C(n);
  }
  C squares = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    C terms[W / 2];
#pragma unroll
    for (int j = 0; j < W; j += 2) {
      C d[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        d[i] = tile.has(tile.first(k) + j + i) ? widen<C>(raw[k][j + i]) - mean : C(0);
      terms[j / 2] = fma(d[1], d[1], d[0] * d[0]);
    }
    squares += fold_tree<W / 2>(terms, [](C v) { return v; }, Join2{});
  }
  squares = group_join(squares, tile.lanes, C(0), Join2{}, shared);
  return {mean, inverse_std(squares / C(n), eps)};
}

// ---- backward ----
// With h = (x - mean) * rstd and g = dy * weight: dx = rstd * (g - mean(g) - h * mean(g * h)), dweight = sum
// of dy * h, dbias = sum of dy.
template <class C>
struct RowSums {
  C g, gh;
  WT_DEVICE static RowSums join(const RowSums& a, const RowSums& b) { return {a.g + b.g, a.gh + b.gh}; }
};

// Adds what a piece of dy and x gives to the columns' sums and to the row's.
template <bool kCentered, class T, class C, int W>
WT_DEVICE void add_gradients(const Packed<T, W>& dy, const Packed<T, W>& x, const RowStats<C>& stats,
                             bool scales, const C (&weight)[W], C (&dweight)[W], C (&dbias)[W],
                             RowSums<C>& s) {
#pragma unroll
  for (int j = 0; j < W; ++j) {
    const C up = widen<C>(dy[j]), h = stats.normal(widen<C>(x[j]));
    dweight[j] = fma(up, h, dweight[j]);
    if constexpr (kCentered) dbias[j] += up;
    const C g = scales ? up * weight[j] : up;
    s.g += g;
    s.gh = fma(g, h, s.gh);
  }
}

// dx of g and x, when the row's sums are known.
template <class C>
struct RowGradient : RowStats<C> {
  C share_g, share_gh;
  WT_DEVICE RowGradient(const RowStats<C>& stats, bool centered, const RowSums<C>& s, int64_t n)
      : RowStats<C>(stats), share_g(centered ? s.g / C(n) : C(0)), share_gh(s.gh / C(n)) {}
  WT_DEVICE C operator()(C g, C x) const { return fma(-this->normal(x), share_gh, g - share_g) * this->rstd; }
};

// Adds up what the groups of a block have of the same columns, [2, K, W] of each thread, and stores it as
// the block's part of `parts` [block, 2, n].
template <class T>
WT_DEVICE void store_parts(Compute<T>* parts, int64_t n, const RowTile<T, kHeld<T>>& tile,
                           Compute<T> (&sums)[2][kHeld<T>][kPackedWidth<T>]) {
  using C = Compute<T>;
  constexpr int K = kHeld<T>, W = kPackedWidth<T>;
  for (int step = tile.lanes; step < kWarp; step *= 2)
#pragma unroll
    for (int i = 0; i < 2 * K * W; ++i)
      sums[i / (K * W)][i / W % K][i % W] +=
          __shfl_xor_sync(kAllLanes, sums[i / (K * W)][i / W % K][i % W], step);
  const int unit = max(tile.lanes, kWarp), units = int(blockDim.x) / unit;
  C* to = units > 1 ? dynamic_shared<C>() : parts + blockIdx.x * 2 * n;
  for (int u = 0; u < units; ++u) {
    if (int(threadIdx.x) / unit == u && int(threadIdx.x) % unit < tile.lanes)
#pragma unroll
      for (int i = 0; i < 2 * K * W; ++i) {
        const int column = tile.first(i / W % K) + i % W, which = i / (K * W);
        if (column >= n) continue;
        const C value = sums[which][i / W % K][i % W];
        to[which * n + column] = u == 0 ? value : to[which * n + column] + value;
      }
    if (units > 1) __syncthreads();
  }
  if (units > 1)
    for (int64_t i = threadIdx.x; i < 2 * n; i += blockDim.x) parts[blockIdx.x * 2 * n + i] = to[i];
}

}  // namespace warptape::kernels::cuda
