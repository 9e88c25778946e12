// The forward of norms over rows: statistics, then (x - mean) * rstd, scaled and shifted as the affine map
// says. A row that a block holds in registers is read once.
//
// An affine map has begin(row), and apply(v, i, vector): v[0..N) are the values of elements i, i + 1, ... of
// the row, of which those before element 0 or beyond the last may be anything; `vector` says that all are
// there.
#pragma once

#include "kernels/cuda/common/index.cuh"
#include "kernels/cuda/norm/norm_rows.cuh"
#include "kernels/cuda/reduce/reducers.cuh"
#include "kernels/norm/norm.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {

// A vector of T or of its compute type; null where there is none.
template <class T>
struct Coefficients {
  using C = Compute<T>;
  const void* data = nullptr;
  bool narrow = false;  // of T
  bool aligned = false;

  Coefficients() = default;
  Coefficients(const void* p, DType dtype)
      : data(p), narrow(dtype == dtype_of<T>), aligned(is_aligned(p, 16)) {}
  WT_DEVICE C at(int64_t i) const {
    return narrow ? widen<C>(static_cast<const T*>(data)[i]) : static_cast<const C*>(data)[i];
  }
  // Elements i, ..., i + N - 1, at once where i is a multiple of N.
  template <int N>
  WT_DEVICE void load(C (&v)[N], int64_t i, int64_t n, bool vector) const {
    if (vector && aligned && i % N == 0) {
      if (narrow) {
        const auto raw = load_packed<N>(static_cast<const T*>(data) + i);
#pragma unroll
        for (int j = 0; j < N; ++j) v[j] = widen<C>(raw[j]);
      } else {
        const auto raw = load_packed<N>(static_cast<const C*>(data) + i);
#pragma unroll
        for (int j = 0; j < N; ++j) v[j] = raw[j];
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = uint64_t(i + j) < uint64_t(n) ? at(i + j) : C(0);
  }
};

// A view of any floating dtype as coefficients for T: converted into scratch where it is of neither type.
template <class C>
__global__ void convert_kernel(C* to, const char* from, DType dtype, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) to[i] = load_as<C>(from + i * int64_t(itemsize(dtype)), dtype);
}
template <class T>
Coefficients<T> coefficients(const LaunchContext& ctx, const char* name, const View& v, int64_t n) {
  using C = Compute<T>;
  if (!v.data || v.dtype == dtype_of<T> || v.dtype == dtype_of<C>) return {v.data, v.dtype};
  C* to = static_cast<C*>(ctx.scratch(size_t(n) * sizeof(C)));
  launch(ctx, name, convert_kernel<C>, dim3(unsigned(ceil_div(n, 256))), dim3(256), 0, to,
         static_cast<const char*>(v.data), v.dtype, n);
  return {to, dtype_of<C>};
}

// A weight and a bias for every element of the row.
template <class T>
struct ElementAffine {
  using C = Compute<T>;
  Coefficients<T> weight, bias;
  int64_t n;

  WT_DEVICE void begin(int64_t) {}
  template <int N>
  WT_DEVICE void apply(C (&v)[N], int64_t i, bool vector) const {
    C w[N], b[N];
    if (weight.data) weight.load(w, i, n, vector);
    if (bias.data) bias.load(b, i, n, vector);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = scale_and_shift(v[j], weight.data, w[j], bias.data, b[j]);
  }
};

template <class T, class Affine>
struct NormArgs {
  using C = Compute<T>;
  T* y;
  const T* x;
  C *mean, *rstd;  // or null
  int64_t rows, n;
  C eps;
  int lanes;
  bool vectors;
  Affine affine;

  WT_DEVICE void keep(int64_t row, C m, C s) const {
    if (mean) mean[row] = m;
    if (rstd) rstd[row] = s;
  }
};

template <class T, bool kCentered, class Affine>
__global__ void __launch_bounds__(kNormThreads) norm_kernel(const __grid_constant__ NormArgs<T, Affine> a) {
  using C = Compute<T>;
  constexpr int K = kRowPieces, W = kPackedWidth<T>;
  __shared__ C shared[kNormThreads / kWarp];
  const int64_t row = int64_t(blockIdx.x) * (blockDim.x / a.lanes) + threadIdx.x / a.lanes;
  const bool mine = row < a.rows;
  const int64_t at = mine ? row * a.n : 0;
  const RowTile<T> tile(a.x + at, mine ? a.n : 0, a.vectors, a.lanes);
  Packed<T, W> raw[K];
  tile.load(raw, a.x + at, narrow<T>(C(0)));
  const RowStats<C> stats = row_stats<kCentered>(raw, tile, a.n, a.eps, shared);
  if (mine && tile.lane == 0) a.keep(row, stats.mean, stats.rstd);
  Affine affine = a.affine;
  affine.begin(row);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int first = tile.first(k);
    if (!tile.touches(first)) continue;
    C v[W];
#pragma unroll
    for (int j = 0; j < W; ++j) v[j] = stats.normal(widen<C>(raw[k][j]));
    affine.apply(v, first, tile.whole(first));
    Packed<T, W> out;
#pragma unroll
    for (int j = 0; j < W; ++j) out[j] = narrow<T>(v[j]);
    tile.store(a.y + at, k, out);
  }
}

// A long row by a block, twice.
template <class T, bool kCentered, class Affine>
__global__ void __launch_bounds__(kNormThreads)
    norm_long_kernel(const __grid_constant__ NormArgs<T, Affine> a) {
  using C = Compute<T>;
  constexpr int W = kPackedWidth<T>;
  __shared__ Moments<C> shared[kNormThreads / kWarp];
  const int64_t row = blockIdx.x;
  const T* x = a.x + row * a.n;
  T* y = a.y + row * a.n;
  const Pieces<T> pieces(x, a.n, a.vectors);
  Moments<C> s = Moments<C>::none();  // of RMS norm around 0
  auto take = [&](const auto& v) {
    constexpr int N = std::extent_v<std::remove_reference_t<decltype(v)>>;
    if constexpr (kCentered)
      s = Moments<C>::join(s, Moments<C>::of(v));
    else
      s.squares += fold_tree<N>(v, [](C z) { return z * z; }, Join2{});
  };
  for_row<2>(
      pieces, threadIdx.x, kNormThreads,
      [&](const auto& at) {
        C v[std::extent_v<std::remove_reference_t<decltype(at)>> * W];
        load_runs(v, x, at);
        take(v);
      },
      [&](int64_t i) {
        const C v[1] = {widen<C>(x[i])};
        take(v);
      });
  auto join = [](const Moments<C>& p, const Moments<C>& q) {
    if constexpr (kCentered)
      return Moments<C>::join(p, q);
    else
      return Moments<C>{C(0), C(0), p.squares + q.squares};
  };
  s = group_join(s, kNormThreads, Moments<C>::none(), join, shared);
  const C rstd = inverse_std(s.squares / C(a.n), a.eps);
  if (threadIdx.x == 0) a.keep(row, s.mean, rstd);
  Affine affine = a.affine;
  affine.begin(row);
  for_row<1>(
      pieces, threadIdx.x, kNormThreads,
      [&](const auto& at) {
        C v[W];
        load_runs(v, x, at);
#pragma unroll
        for (int j = 0; j < W; ++j) v[j] = (v[j] - s.mean) * rstd;
        affine.apply(v, at[0], true);
        store_runs(y, at, v);
      },
      [&](int64_t i) {
        C v[1] = {(widen<C>(x[i]) - s.mean) * rstd};
        affine.apply(v, i, true);
        y[i] = narrow<T>(v[0]);
      });
}

template <class T, bool kCentered, class Affine>
void launch_norm(const LaunchContext& ctx, const char* name, const View& y, const View& mean,
                 const View& rstd, const View& x, int64_t rows, int64_t n, double eps, const Affine& affine) {
  using C = Compute<T>;
  const RowGrid g = row_grid<T>({x.data, y.data}, rows, n, kNormThreads);
  const NormArgs<T, Affine> a{
      y.as<T>(), x.as<T>(), kCentered ? mean.as<C>() : nullptr, rstd.as<C>(), rows, n, C(eps), g.lanes,
      g.vectors, affine};
  if (g.fits)
    launch(ctx, name, norm_kernel<T, kCentered, Affine>, dim3(unsigned(g.blocks)), dim3(g.threads), 0, a);
  else
    launch(ctx, name, norm_long_kernel<T, kCentered, Affine>, dim3(unsigned(rows)), dim3(kNormThreads), 0, a);
}

}  // namespace warptape::kernels::cuda
