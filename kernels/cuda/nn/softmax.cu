// Softmax and log-softmax. A row of the last dim is held in registers by a group of threads, so memory is
// passed once; a row that is too long is passed twice. For another dim threads lie across `inner` and share
// the entries of a column over the rest of the block.
#include "kernels/nn/softmax.h"

#include "kernels/cuda/common/groups.cuh"
#include "kernels/cuda/reduce/reducers.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

inline constexpr int kMostThreads = 512;  // leaves 128 registers
inline constexpr int kLongThreads = 512;
inline constexpr int kColumnThreads = 256;
template <class T> inline constexpr bool kQuickExp = sizeof(T) == 2;

template <class T>
struct RowsOf {
  T* to;           // y, or dx
  const T *x, *y;  // x, or dy and y
  int64_t rows, n;
  int lanes;
  bool vectors;
};

struct Plus2 {
  template <class C> WT_DEVICE C operator()(C a, C b) const { return a + b; }
};

// ---- a row in registers ----
template <class T, bool kLog>
__global__ void __launch_bounds__(kMostThreads) softmax_kernel(RowsOf<T> a) {
  using C = Compute<T>;
  constexpr int K = kRowPieces, W = kPackedWidth<T>;
  __shared__ C shared[kMostThreads / kWarp];
  const int64_t row = int64_t(blockIdx.x) * (blockDim.x / a.lanes) + threadIdx.x / a.lanes;
  const int64_t at = row < a.rows ? row * a.n : 0;
  const RowTile<T> tile(a.x + at, row < a.rows ? a.n : 0, a.vectors, a.lanes);
  // What is not there is -inf: it does not raise the maximum and its exponential is 0. A NaN shows in the
  // sum.
  const C low = -C(__builtin_inf());
  Packed<T, W> raw[K];
  tile.load(raw, a.x + at, narrow<T>(low));
  C top = low;
#pragma unroll
  for (int k = 0; k < K; ++k)
    top = LargerOf{}(top, fold_tree<W>(raw[k].values, [](T v) { return widen<C>(v); }, LargerOf{}));
  top = group_join(top, a.lanes, low, LargerOf{}, shared);
  C e[K][W], sum = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int j = 0; j < W; ++j) e[k][j] = exp_of<C, kQuickExp<T>>(widen<C>(raw[k][j]) - top);
    sum += fold_tree<W>(e[k], [](C v) { return v; }, Plus2{});
  }
  sum = group_join(sum, a.lanes, C(0), Plus2{}, shared);
  const C last = kLog ? log(sum) : C(1) / sum;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    Packed<T, W> out;
#pragma unroll
    for (int j = 0; j < W; ++j) out[j] = narrow<T>(kLog ? widen<C>(raw[k][j]) - top - last : e[k][j] * last);
    tile.store(a.to + at, k, out);
  }
}

template <class T, bool kLog>
__global__ void __launch_bounds__(kMostThreads) softmax_backward_kernel(RowsOf<T> a) {
  using C = Compute<T>;
  constexpr int K = kRowPieces, W = kPackedWidth<T>;
  __shared__ C shared[kMostThreads / kWarp];
  const int64_t row = int64_t(blockIdx.x) * (blockDim.x / a.lanes) + threadIdx.x / a.lanes;
  const int64_t at = row < a.rows ? row * a.n : 0;
  const RowTile<T> tile(a.x + at, row < a.rows ? a.n : 0, a.vectors, a.lanes);
  Packed<T, W> dy[K], y[K];
  tile.load(dy, a.x + at, narrow<T>(C(0)));
  tile.load(y, a.y + at, narrow<T>(C(0)));
  C sum = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    C terms[W];
#pragma unroll
    for (int j = 0; j < W; ++j) terms[j] = kLog ? widen<C>(dy[k][j]) : widen<C>(dy[k][j]) * widen<C>(y[k][j]);
    sum += fold_tree<W>(terms, [](C v) { return v; }, Plus2{});
  }
  sum = group_join(sum, a.lanes, C(0), Plus2{}, shared);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    Packed<T, W> out;
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const C g = widen<C>(dy[k][j]), v = widen<C>(y[k][j]);
      out[j] = narrow<T>(kLog ? g - exp_of<C, kQuickExp<T>>(v) * sum : v * (g - sum));
    }
    tile.store(a.to + at, k, out);
  }
}

// What turns exponentials into a softmax, or is subtracted for its logarithm. A row of -inf alone gives NaN,
// as 0 / 0 does, and so does one with +inf.
template <bool kLog, class C, bool kQuick>
WT_DEVICE C last_term(const TopSum<C, kQuick>& s) {
  return isinf(s.top) ? C(__builtin_nan("")) : kLog ? log(s.sum) : C(1) / s.sum;
}

// ---- a long row, by a block ----
template <class T, bool kLog>
__global__ void __launch_bounds__(kLongThreads) softmax_long_kernel(RowsOf<T> a) {
  using C = Compute<T>;
  using State = TopSum<C, kQuickExp<T>>;
  constexpr int W = kPackedWidth<T>;
  __shared__ State shared[kLongThreads / kWarp];
  const T* x = a.x + int64_t(blockIdx.x) * a.n;
  T* y = a.to + int64_t(blockIdx.x) * a.n;
  const Pieces<T> pieces(x, a.n, a.vectors);
  State s = State::none();
  for_row<2>(
      pieces, threadIdx.x, kLongThreads,
      [&](const auto& at) {
        C v[std::extent_v<std::remove_reference_t<decltype(at)>> * W];
        load_runs(v, x, at);
        s.add(v);
      },
      [&](int64_t i) {
        const C v[1] = {widen<C>(x[i])};
        s.add(v);
      });
  s = group_join(s, kLongThreads, State::none(), State::join, shared);
  const C top = s.top, last = last_term<kLog>(s);
  auto result = [&](C v) { return kLog ? v - top - last : exp_of<C, kQuickExp<T>>(v - top) * last; };
  for_row<2>(
      pieces, threadIdx.x, kLongThreads,
      [&](const auto& at) {
        constexpr int N = std::extent_v<std::remove_reference_t<decltype(at)>> * W;
        C v[N];
        load_runs(v, x, at);
#pragma unroll
        for (int j = 0; j < N; ++j) v[j] = result(v[j]);
        store_runs(y, at, v);
      },
      [&](int64_t i) { y[i] = narrow<T>(result(widen<C>(x[i]))); });
}

template <class T, bool kLog>
__global__ void __launch_bounds__(kLongThreads) softmax_long_backward_kernel(RowsOf<T> a) {
  using C = Compute<T>;
  constexpr int W = kPackedWidth<T>;
  __shared__ C shared[kLongThreads / kWarp];
  const int64_t first = int64_t(blockIdx.x) * a.n;
  const T *dy = a.x + first, *y = a.y + first;
  T* dx = a.to + first;
  const Pieces<T> pieces(dy, a.n, a.vectors);
  C sum = 0;
  for_row<2>(
      pieces, threadIdx.x, kLongThreads,
      [&](const auto& at) {
        constexpr int N = std::extent_v<std::remove_reference_t<decltype(at)>> * W;
        C g[N], v[N];
        load_runs(g, dy, at);
        if constexpr (!kLog) load_runs(v, y, at);
#pragma unroll
        for (int j = 0; j < N; ++j) g[j] = kLog ? g[j] : g[j] * v[j];
        sum += fold_tree<N>(g, [](C z) { return z; }, Plus2{});
      },
      [&](int64_t i) { sum += kLog ? widen<C>(dy[i]) : widen<C>(dy[i]) * widen<C>(y[i]); });
  sum = group_join(sum, kLongThreads, C(0), Plus2{}, shared);
  auto result = [&](C g, C v) { return kLog ? g - exp_of<C, kQuickExp<T>>(v) * sum : v * (g - sum); };
  for_row<2>(
      pieces, threadIdx.x, kLongThreads,
      [&](const auto& at) {
        constexpr int N = std::extent_v<std::remove_reference_t<decltype(at)>> * W;
        C g[N], v[N];
        load_runs(g, dy, at);
        load_runs(v, y, at);
#pragma unroll
        for (int j = 0; j < N; ++j) g[j] = result(g[j], v[j]);
        store_runs(dx, at, g);
      },
      [&](int64_t i) { dx[i] = narrow<T>(result(widen<C>(dy[i]), widen<C>(y[i]))); });
}

// ---- columns: [outer, n, inner] with inner > 1 ----
template <class T>
struct ColumnsOf {
  T* to;
  const T *x, *y;
  int64_t n, inner, tiles;  // tiles of `across` columns
  int across;

  WT_DEVICE int64_t column() const { return blockIdx.x % tiles * across + threadIdx.x % across; }
  WT_DEVICE int64_t first() const { return blockIdx.x / tiles * n * inner + column(); }
};

template <class T, bool kLog>
__global__ void __launch_bounds__(kColumnThreads) softmax_columns_kernel(ColumnsOf<T> a) {
  using C = Compute<T>;
  using State = TopSum<C, kQuickExp<T>>;
  constexpr int U = 4;
  const bool mine = a.column() < a.inner;
  const T* x = a.x + a.first();
  T* y = a.to + a.first();
  const int64_t begin = threadIdx.x / a.across, step = kColumnThreads / a.across, n = mine ? a.n : 0;
  State s[1] = {State::none()};
  for (int64_t k = begin; k < n; k += U * step) {
    C v[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      v[u] = k + u * step < n ? widen<C>(x[(k + u * step) * a.inner]) : -C(__builtin_inf());
    s[0].add(v);
  }
  columns_join(s, a.across, State::join);
  const C top = s[0].top, last = last_term<kLog>(s[0]);
#pragma unroll 4
  for (int64_t k = begin; k < n; k += step) {
    const C v = widen<C>(x[k * a.inner]);
    y[k * a.inner] = narrow<T>(kLog ? v - top - last : exp_of<C, kQuickExp<T>>(v - top) * last);
  }
}

template <class T, bool kLog>
__global__ void __launch_bounds__(kColumnThreads) softmax_columns_backward_kernel(ColumnsOf<T> a) {
  using C = Compute<T>;
  const bool mine = a.column() < a.inner;
  const T *dy = a.x + a.first(), *y = a.y + a.first();
  T* dx = a.to + a.first();
  const int64_t begin = threadIdx.x / a.across, step = kColumnThreads / a.across, n = mine ? a.n : 0;
  C sum[1] = {C(0)};
#pragma unroll 4
  for (int64_t k = begin; k < n; k += step)
    sum[0] += kLog ? widen<C>(dy[k * a.inner]) : widen<C>(dy[k * a.inner]) * widen<C>(y[k * a.inner]);
  columns_join(sum, a.across, Plus2{});
#pragma unroll 4
  for (int64_t k = begin; k < n; k += step) {
    const C g = widen<C>(dy[k * a.inner]), v = widen<C>(y[k * a.inner]);
    dx[k * a.inner] = narrow<T>(kLog ? g - exp_of<C, kQuickExp<T>>(v) * sum[0] : v * (g - sum[0]));
  }
}

// ---- launching ----
template <class T, class Kernel, class State>
void launch_columns(const LaunchContext& ctx, const char* name, Kernel* kernel, State, ColumnsOf<T> a,
                    int64_t outer) {
  // As wide as a warp, unless there are few entries to share.
  const int widest = a.n >= 16 ? kWarp : kColumnThreads;
  a.across = min(widest, ceil_power_of_2(a.inner));
  a.tiles = ceil_div(a.inner, a.across);
  launch(ctx, name, kernel, dim3(unsigned(outer * a.tiles)), dim3(kColumnThreads),
         sizeof(State) * kColumnThreads / 2 + sizeof(State) * kWarp, a);
}

template <bool kLog>
void forward(const LaunchContext& ctx, const View& y, const View& x, int64_t outer, int64_t n,
             int64_t inner) {
  const char* name = kLog ? "log_softmax" : "softmax";
  if (n == 0 || outer == 0 || inner == 0) return;
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if (inner != 1)
      return launch_columns(ctx, name, softmax_columns_kernel<T, kLog>, TopSum<Compute<T>>{},
                            ColumnsOf<T>{y.as<T>(), x.as<T>(), nullptr, n, inner, 0, 0}, outer);
    const RowGrid g = row_grid<T>({x.data, y.data}, outer, n, kMostThreads);
    const RowsOf<T> a{y.as<T>(), x.as<T>(), nullptr, outer, n, g.lanes, g.vectors};
    if (g.fits)
      launch(ctx, name, softmax_kernel<T, kLog>, dim3(unsigned(g.blocks)), dim3(g.threads), 0, a);
    else
      launch(ctx, name, softmax_long_kernel<T, kLog>, dim3(unsigned(outer)), dim3(kLongThreads), 0, a);
  });
}

template <bool kLog>
void backward(const LaunchContext& ctx, const View& dx, const View& dy, const View& y, int64_t outer,
              int64_t n, int64_t inner) {
  const char* name = kLog ? "log_softmax_backward" : "softmax_backward";
  if (n == 0 || outer == 0 || inner == 0) return;
  dispatch(FloatTypes{}, y.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if (inner != 1)
      return launch_columns(ctx, name, softmax_columns_backward_kernel<T, kLog>, Compute<T>{},
                            ColumnsOf<T>{dx.as<T>(), dy.as<T>(), y.as<T>(), n, inner, 0, 0}, outer);
    const RowGrid g = row_grid<T>({dy.data, y.data, dx.data}, outer, n, kMostThreads);
    const RowsOf<T> a{dx.as<T>(), dy.as<T>(), y.as<T>(), outer, n, g.lanes, g.vectors};
    if (g.fits)
      launch(ctx, name, softmax_backward_kernel<T, kLog>, dim3(unsigned(g.blocks)), dim3(g.threads), 0, a);
    else
      launch(ctx, name, softmax_long_backward_kernel<T, kLog>, dim3(unsigned(outer)), dim3(kLongThreads), 0,
             a);
  });
}

WT_KERNEL(softmax, forward<false>);
WT_KERNEL(log_softmax, forward<true>);
WT_KERNEL(softmax_backward, backward<false>);
WT_KERNEL(log_softmax_backward, backward<true>);

}  // namespace
}  // namespace warptape::kernels::cuda
