// Layer and RMS norm. Backward: a fixed number of blocks walks over the rows; every thread keeps to its
// columns and adds up their dweight and dbias in registers. The blocks' sums are added in order by a second
// launch. While the sums of a row are joined the next row is on its way to shared memory.
#include "kernels/cuda/common/ptx.cuh"
#include "kernels/cuda/norm/norm.cuh"
#include "kernels/cuda/norm/norm_parts.h"

namespace warptape::kernels::cuda {
namespace {

inline constexpr int kColumnThreads = 256;

template <bool kCentered>
void forward(const LaunchContext& ctx, const View& y, const View& mean, const View& rstd, const View& x,
             const View& weight, const View& bias, int64_t rows, int64_t n, double eps) {
  const char* name = kCentered ? "layer_norm" : "rms_norm";
  if (rows == 0 || n == 0) return;
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    ElementAffine<T> affine{coefficients<T>(ctx, name, weight, n), {}, n};
    if (kCentered) affine.bias = coefficients<T>(ctx, name, bias, n);
    launch_norm<T, kCentered>(ctx, name, y, mean, rstd, x, rows, n, eps, affine);
  });
}

template <class T>
struct BackwardArgs {
  using C = Compute<T>;
  T* dx;  // or null
  const T *dy, *x;
  const C *mean, *rstd;
  Coefficients<T> weight;
  int64_t rows, n;
  C* parts;  // [block, 2, n] or null: sums of dy * h and of dy
  int lanes;
  bool vectors;
};
// The pieces of a thread's next row, in shared memory: they take no registers, and as no other thread reads
// them no barrier.
template <class T>
struct NextRow {
  static constexpr int K = kHeld<T>, W = kPackedWidth<T>;
  using Raw = Packed<T, W>;
  static constexpr size_t bytes(int threads) { return size_t(threads) * 2 * K * sizeof(Raw); }

  Raw* memory = dynamic_shared<Raw>() + threadIdx.x;

  WT_DEVICE Raw& at(int which, int k) const { return memory[(which * K + k) * int(blockDim.x)]; }
  WT_DEVICE void fetch(const RowTile<T, K>& tile, const T* dy, const T* x) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!tile.whole(tile.first(k))) continue;
      copy_async<16>(&at(0, k), dy + tile.first(k));
      copy_async<16>(&at(1, k), x + tile.first(k));
    }
    commit_copies();
  }
  WT_DEVICE void take(const RowTile<T, K>& tile, Raw (&dy)[K], Raw (&x)[K]) const {
    wait_copies<0>();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!tile.whole(tile.first(k))) continue;
      dy[k] = at(0, k);
      x[k] = at(1, k);
    }
  }
};

template <class T, bool kCentered>
__global__ void __launch_bounds__(kNormBackwardThreads)
    backward_kernel(const __grid_constant__ BackwardArgs<T> a) {
  using C = Compute<T>;
  using Sums = RowSums<C>;
  constexpr int K = kHeld<T>, W = kPackedWidth<T>;
  __shared__ Sums shared[kNormBackwardThreads / kWarp];
  C sums[2][K][W] = {};
  const int groups = int(blockDim.x) / a.lanes;
  // Rows begin alike (see launch_backward), so columns stay with their threads.
  RowTile<T, kHeld<T>> tile(a.dy, 0, a.vectors, a.lanes);
  const NextRow<T> next_row;
  RowStats<C> next{C(0), C(0)};
  auto fetch = [&](int64_t row) {
    tile.n = row < a.rows ? int(a.n) : 0;
    if (row < a.rows) next = {kCentered ? a.mean[row] : C(0), a.rstd[row]};
    if (a.vectors) next_row.fetch(tile, a.dy + row * a.n, a.x + row * a.n);
  };
  const int64_t step = int64_t(gridDim.x) * groups;
  fetch(int64_t(blockIdx.x) * groups + threadIdx.x / a.lanes);
  for (int64_t first = int64_t(blockIdx.x) * groups; first < a.rows; first += step) {
    const int64_t row = first + threadIdx.x / a.lanes, at = row < a.rows ? row * a.n : 0;
    Packed<T, W> dy[K], x[K];
    if (a.vectors) {
      next_row.take(tile, dy, x);
    } else {
      tile.load(dy, a.dy + at, narrow<T>(C(0)));
      tile.load(x, a.x + at, narrow<T>(C(0)));
    }
    const RowStats<C> stats = next;
    fetch(row + step);
    tile.n = row < a.rows ? int(a.n) : 0;
    Sums s{C(0), C(0)};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!tile.has(tile.first(k))) continue;
      C w[W];
      if (a.weight.data) a.weight.load(w, tile.first(k), a.n, tile.whole(tile.first(k)));
      add_gradients<kCentered>(dy[k], x[k], stats, a.weight.data, w, sums[0][k], sums[1][k], s);
    }
    if (!a.dx) continue;
    s = group_join(s, a.lanes, Sums{C(0), C(0)}, Sums::join, shared);
    const RowGradient<C> gradient(stats, kCentered, s, a.n);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (!tile.has(tile.first(k))) continue;
      C w[W];
      if (a.weight.data) a.weight.load(w, tile.first(k), a.n, tile.whole(tile.first(k)));
      Packed<T, W> out;
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const C up = widen<C>(dy[k][j]);
        out[j] = narrow<T>(gradient(a.weight.data ? up * w[j] : up, widen<C>(x[k][j])));
      }
      tile.store(a.dx + at, k, out);
    }
  }
  if (!a.parts) return;
  __syncthreads();  // the memory of rows becomes that of sums
  store_parts(a.parts, a.n, tile, sums);
}

// ---- rows that do not fit: dx by a block each, the columns apart ----
template <class T, bool kCentered>
__global__ void __launch_bounds__(kNormThreads)
    long_backward_kernel(const __grid_constant__ BackwardArgs<T> a) {
  using C = Compute<T>;
  using Sums = RowSums<C>;
  constexpr int W = kPackedWidth<T>;
  __shared__ Sums shared[kNormThreads / kWarp];
  const int64_t row = blockIdx.x;
  const T *dy = a.dy + row * a.n, *x = a.x + row * a.n;
  T* dx = a.dx + row * a.n;
  const Pieces<T> pieces(dy, a.n, a.vectors);
  const RowStats<C> stats{kCentered ? a.mean[row] : C(0), a.rstd[row]};
  Sums s{C(0), C(0)};
  // g and h of elements i, ..., i + N - 1.
  auto normal = [&](auto& g, auto& h, int64_t i) {
    constexpr int N = std::extent_v<std::remove_reference_t<decltype(g)>>;
    C w[N];
    if (a.weight.data) a.weight.load(w, i, a.n, true);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (a.weight.data) g[j] *= w[j];
      h[j] = stats.normal(h[j]);
    }
  };
  auto take = [&](auto& g, auto& h, int64_t i) {
    normal(g, h, i);
#pragma unroll
    for (int j = 0; j < int(std::extent_v<std::remove_reference_t<decltype(g)>>); ++j) {
      s.g += g[j];
      s.gh = fma(g[j], h[j], s.gh);
    }
  };
  for_row<1>(
      pieces, threadIdx.x, kNormThreads,
      [&](const auto& at) {
        C g[W], h[W];
        load_runs(g, dy, at);
        load_runs(h, x, at);
        take(g, h, at[0]);
      },
      [&](int64_t i) {
        C g[1] = {widen<C>(dy[i])}, h[1] = {widen<C>(x[i])};
        take(g, h, i);
      });
  s = group_join(s, kNormThreads, Sums{C(0), C(0)}, Sums::join, shared);
  const C share_g = kCentered ? s.g / C(a.n) : C(0), share_gh = s.gh / C(a.n);
  auto result = [&](C g, C h) { return fma(-h, share_gh, g - share_g) * stats.rstd; };
  for_row<1>(
      pieces, threadIdx.x, kNormThreads,
      [&](const auto& at) {
        C g[W], h[W];
        load_runs(g, dy, at);
        load_runs(h, x, at);
        normal(g, h, at[0]);
#pragma unroll
        for (int j = 0; j < W; ++j) g[j] = result(g[j], h[j]);
        store_runs(dx, at, g);
      },
      [&](int64_t i) {
        C g[1] = {widen<C>(dy[i])}, h[1] = {widen<C>(x[i])};
        normal(g, h, i);
        dx[i] = narrow<T>(result(g[0], h[0]));
      });
}

// Columns [32 blockIdx.x, ...) of the rows that belong to part blockIdx.y.
template <class T, bool kCentered>
__global__ void __launch_bounds__(kColumnThreads)
    column_parts_kernel(const __grid_constant__ BackwardArgs<T> a, int64_t per_part) {
  using C = Compute<T>;
  const int64_t column = int64_t(blockIdx.x) * kWarp + threadIdx.x % kWarp;
  const int64_t begin = blockIdx.y * per_part, end = column < a.n ? min(a.rows, begin + per_part) : 0;
  C sums[2] = {C(0), C(0)};
#pragma unroll 4
  for (int64_t r = begin + threadIdx.x / kWarp; r < end; r += kColumnThreads / kWarp) {
    const C up = widen<C>(a.dy[r * a.n + column]);
    sums[0] =
        fma(up, (widen<C>(a.x[r * a.n + column]) - (kCentered ? a.mean[r] : C(0))) * a.rstd[r], sums[0]);
    sums[1] += up;
  }
  columns_join(sums, kWarp, Join2{});
  if (int(threadIdx.x) < kWarp && column < a.n)
    for (int k = 0; k < 2; ++k) a.parts[(blockIdx.y * 2 + k) * a.n + column] = sums[k];
}

template <class C>
__global__ void __launch_bounds__(1024)
    sum_parts_kernel(const C* parts, int64_t count, int64_t n, Output dweight, Output dbias) {
  const int64_t column = int64_t(blockIdx.x) * kWarp + threadIdx.x % kWarp;
  const Output out = blockIdx.y ? dbias : dweight;
  if (!out.data) return;
  C sum[1] = {C(0)};
#pragma unroll 4
  for (int64_t p = threadIdx.x / kWarp; column < n && p < count; p += 32)
    sum[0] += parts[(2 * p + blockIdx.y) * n + column];
  columns_join(sum, kWarp, Join2{});
  if (int(threadIdx.x) < kWarp && column < n) out.put(sum[0], column);
}

// Fills a.dx and a.parts; returns how many parts there are.
template <class T, bool kCentered>
int64_t launch_backward(const LaunchContext& ctx, const char* name, BackwardArgs<T>& a, bool wants_parts) {
  using C = Compute<T>;
  RowGrid g = row_grid<T>({a.dy, a.x, a.dx ? a.dx : a.x}, a.rows, a.n, kNormBackwardThreads, kHeld<T>);
  a.lanes = g.lanes;
  auto parts_of = [&](int64_t count) {
    if (wants_parts) a.parts = static_cast<C*>(ctx.scratch(size_t(count * 2 * a.n) * sizeof(C)));
    return count;
  };
  if (g.fits) {
    a.vectors = g.vectors && is_aligned(a.dy, 16) && a.n % kPackedWidth<T> == 0;
    const int64_t blocks = parts_of(min(kNormPartBlocks, g.blocks));
    const size_t of_parts = a.lanes < g.threads ? size_t(2 * a.n) * sizeof(C) : 0;
    const size_t of_rows = a.vectors ? NextRow<T>::bytes(g.threads) : 0;
    launch(ctx, name, backward_kernel<T, kCentered>, dim3(unsigned(blocks)), dim3(unsigned(g.threads)),
           max(of_parts, of_rows), a);
    return blocks;
  }
  a.vectors = g.vectors;
  if (a.dx)
    launch(ctx, name, long_backward_kernel<T, kCentered>, dim3(unsigned(a.rows)), dim3(kNormThreads), 0, a);
  const int64_t tiles = ceil_div(a.n, kWarp),
                wanted = min(ceil_div(4 * kNormPartBlocks, tiles), ceil_div(a.rows, 32));
  const int64_t per_part = ceil_div(a.rows, wanted), parts = parts_of(ceil_div(a.rows, per_part));
  if (a.parts)
    launch(ctx, name, column_parts_kernel<T, kCentered>, dim3(unsigned(tiles), unsigned(parts)),
           dim3(kColumnThreads), sizeof(C) * kColumnThreads, a, per_part);
  return parts;
}

template <bool kCentered>
void backward(const LaunchContext& ctx, const View& dx, const View& dweight, const View& dbias,
              const View& dy, const View& x, const View& mean, const View& rstd, const View& weight,
              int64_t rows, int64_t n) {
  const char* name = kCentered ? "layer_norm_backward" : "rms_norm_backward";
  if (rows == 0 || n == 0) return;
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    BackwardArgs<T> a{dx.as<T>(),   dy.as<T>(),
                      x.as<T>(),    mean.as<C>(),
                      rstd.as<C>(), coefficients<T>(ctx, name, weight, n),
                      rows,         n,
                      nullptr,      0,
                      false};
    const int64_t parts = launch_backward<T, kCentered>(ctx, name, a, dweight.data || dbias.data);
    if (a.parts) sum_norm_parts<C>(ctx, name, a.parts, parts, n, dweight, dbias);
  });
}

WT_KERNEL(layer_norm, forward<true>);
WT_KERNEL(rms_norm, forward<false>);
WT_KERNEL(layer_norm_backward, backward<true>);
WT_KERNEL(rms_norm_backward, backward<false>);

}  // namespace

template <class C>
void sum_norm_parts(const LaunchContext& ctx, const char* op, const C* parts, int64_t count, int64_t n,
                    const View& dweight, const View& dbias) {
  launch(ctx, op, sum_parts_kernel<C>, dim3(unsigned(ceil_div(n, kWarp)), 2), dim3(1024), sizeof(C) * 512,
         parts, count, n, Output{dweight.data, dweight.dtype}, Output{dbias.data, dbias.dtype});
}
template void sum_norm_parts(const LaunchContext&, const char*, const float*, int64_t, int64_t, const View&,
                             const View&);
template void sum_norm_parts(const LaunchContext&, const char*, const double*, int64_t, int64_t, const View&,
                             const View&);

}  // namespace warptape::kernels::cuda
