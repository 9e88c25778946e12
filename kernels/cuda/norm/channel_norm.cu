// Group and batch norm of [batch, channels, inner]. Sums per channel go through the reduction driver; what is
// left is an affine map of every element with coefficients of its channel. Group norm reads a group that a
// block holds in registers once.
#include "kernels/cuda/norm/norm.cuh"
#include "kernels/cuda/reduce/reduce.cuh"

namespace warptape::kernels::cuda {
namespace {

inline constexpr int kThreads = 256;
inline constexpr int kPiecesEach = 2;  // of a thread in the map
// A group this long is cut where there are fewer groups than multiprocessors.
inline constexpr int64_t kLongGroup = 65536, kFewGroups = 128;

struct Sizes {
  int64_t batch, channels, inner;
  int64_t per;  // channels of a group
  int64_t rows() const { return batch * channels; }
  int64_t numel() const { return rows() * inner; }
};

// The reduction over all of [batch, channels, inner] but the channels, or over `inner` alone.
ReduceGeometry geometry(const Sizes& z, const View& x, const View* second, bool over_batch, int64_t rows) {
  const int64_t sizes[3] = {over_batch ? z.batch : 1, over_batch ? z.channels : rows,
                            over_batch ? z.inner : z.numel() / rows};
  const int64_t strides[3] = {sizes[1] * sizes[2], sizes[2], 1}, kept[3] = {1, sizes[1], 1};
  View in{x.data, sizes, strides, 3, x.dtype}, out{nullptr, kept, strides, 3, x.dtype};
  ReduceGeometry g = reduce_geometry(out, in);
  if (second) g.data[1] = static_cast<const char*>(second->data);
  return g;
}

// ---- the affine map ----
template <class C>
struct Coefficient {
  C a, b, k;  // a * first + b * second + k
};

// From statistics, by channel or by group.
template <class T>
struct FromStatistics {
  using C = Compute<T>;
  static constexpr bool kTwo = false;
  const C *mean, *rstd;
  Coefficients<T> weight, bias;
  FastDivide channels, per;
  bool grouped;

  WT_DEVICE Coefficient<C> at(int64_t row, bool wide) const {
    const int64_t c =
        row - (wide ? row / channels.divisor : channels.quotient32(uint32_t(row))) * channels.divisor;
    const int64_t s = !grouped ? c : wide ? row / per.divisor : per.quotient32(uint32_t(row));
    const C factor = weight.data ? weight.at(c) * rstd[s] : rstd[s];
    return {factor, C(0), (bias.data ? bias.at(c) : C(0)) - mean[s] * factor};
  }
};

// Kept for every channel, or for every row.
template <class T>
struct FromTable {
  using C = Compute<T>;
  static constexpr bool kTwo = true;
  const Coefficient<C>* table;
  FastDivide channels;
  bool by_row;

  WT_DEVICE Coefficient<C> at(int64_t row, bool wide) const {
    if (by_row) return table[row];
    return table[row -
                 (wide ? row / channels.divisor : channels.quotient32(uint32_t(row))) * channels.divisor];
  }
};

template <class T, class Table>
struct MapArgs {
  T* out;
  const T *first, *second;
  int64_t n;
  FastDivide inner;
  bool wide, vectors;
  Table table;

  WT_DEVICE int64_t row(int64_t i) const { return wide ? i / inner.divisor : inner.quotient32(uint32_t(i)); }
};

template <class T, class Table>
__global__ void __launch_bounds__(kThreads) map_kernel(const __grid_constant__ MapArgs<T, Table> a) {
  using C = Compute<T>;
  constexpr int W = kPackedWidth<T>, U = kPiecesEach;
  const Pieces<T> pieces(a.first, a.n, a.vectors);
  auto value = [&](C u, C v, const Coefficient<C>& f) {
    return Table::kTwo ? fma(u, f.a, fma(v, f.b, f.k)) : fma(u, f.a, f.k);
  };
  int64_t at[U];
  Packed<T, W> u[U], v[U];
#pragma unroll
  for (int p = 0; p < U; ++p) {
    at[p] = pieces.first((int64_t(blockIdx.x) * U + p) * kThreads + threadIdx.x);
    if (!pieces.whole(at[p])) continue;
    u[p] = load_packed<W>(a.first + at[p]);
    if constexpr (Table::kTwo) v[p] = load_packed<W>(a.second + at[p]);
  }
#pragma unroll
  for (int p = 0; p < U; ++p) {
    if (!pieces.whole(at[p])) {
      for (int64_t i = max(at[p], int64_t(0)); i < min(at[p] + W, a.n); ++i)
        a.out[i] = narrow<T>(value(widen<C>(a.first[i]), Table::kTwo ? widen<C>(a.second[i]) : C(0),
                                   a.table.at(a.row(i), a.wide)));
      continue;
    }
    const int64_t row = a.row(at[p]);
    const bool same = a.row(at[p] + W - 1) == row;
    Coefficient<C> f = a.table.at(row, a.wide);
    Packed<T, W> out;
#pragma unroll
    for (int j = 0; j < W; ++j) {
      if (j > 0 && !same) f = a.table.at(a.row(at[p] + j), a.wide);
      out[j] = narrow<T>(value(widen<C>(u[p][j]), Table::kTwo ? widen<C>(v[p][j]) : C(0), f));
    }
    store_packed(a.out + at[p], out);
  }
}

template <class T, class Table>
void launch_map(const LaunchContext& ctx, const char* name, const Sizes& z, const View& out,
                const View& first, const View* second, const Table& table) {
  constexpr int64_t W = kPackedWidth<T>;
  MapArgs<T, Table> a{out.as<T>(),
                      first.as<T>(),
                      second ? second->as<T>() : nullptr,
                      z.numel(),
                      FastDivide(z.inner),
                      z.numel() > INT32_MAX,
                      in_step<T>({out.data, first.data, second ? second->data : out.data}),
                      table};
  const int64_t pieces = ceil_div(a.n + (a.vectors ? W - 1 : 0), W);
  launch(ctx, name, map_kernel<T, Table>, dim3(unsigned(ceil_div(pieces, kThreads * kPiecesEach))),
         dim3(kThreads), 0, a);
}

// ---- statistics ----
template <class C>
struct Statistics : MomentsReducer<C> {
  C *mean, *rstd;
  Output running_mean, running_var;
  double momentum, eps, count;

  WT_DEVICE void move(const Output& running, int64_t to, C value) const {
    if (!running.data) return;
    const char* at = static_cast<const char*>(running.data) + to * int64_t(itemsize(running.dtype));
    const double old = load_as<double>(at, running.dtype);
    running.put((1 - momentum) * old + momentum * double(value), to);
  }
  WT_DEVICE void store(const Moments<C>& s, int64_t to) const {
    mean[to] = s.mean;
    rstd[to] = inverse_std(s.squares / C(count), C(eps));
    move(running_mean, to, s.mean);
    move(running_var, to, s.squares / C(count - 1));
  }
};

// Sums of dy and of dy * (x - mean); `of` says which mean belongs to an output and takes the sums.
template <class C, class Of>
struct GradientSums {
  using Value = C;
  struct State {
    C dy, dy_x;
  };
  using Center = C;
  using Fast = FastTypes<C>;
  static constexpr int kInputs = 2;
  static constexpr bool kIndexed = false;
  Of of;

  WT_DEVICE Center center(int64_t to) const { return of.mean_of(to); }
  WT_DEVICE State identity() const { return {C(0), C(0)}; }
  WT_DEVICE State join(const State& a, const State& b) const { return {a.dy + b.dy, a.dy_x + b.dy_x}; }
  template <int N>
  WT_DEVICE void fold(State& s, const Value (&x)[2][N], Center mean) const {
    C products[N];
#pragma unroll
    for (int i = 0; i < N; ++i) products[i] = x[0][i] * (x[1][i] - mean);
    s.dy += fold_tree<N>(x[0], [](C v) { return v; }, Join2{});
    s.dy_x += fold_tree<N>(products, [](C v) { return v; }, Join2{});
  }
  WT_DEVICE void one(State& s, const Value (&x)[2], int64_t, Center mean) const {
    s.dy += x[0];
    s.dy_x = fma(x[0], x[1] - mean, s.dy_x);
  }
  WT_DEVICE void store(const State& s, int64_t to) const { of.take(s.dy, s.dy_x, to); }
};

// ---- group norm ----
template <class T>
struct GroupAffine {
  using C = Compute<T>;
  Coefficients<T> weight, bias;
  int64_t per, groups, n;
  FastDivide inner;
  bool wide;
  int64_t channel = 0;  // the first of the row's

  WT_DEVICE void begin(int64_t row) { channel = row % groups * per; }
  WT_DEVICE int64_t channel_of(int64_t i) const {
    i = max(int64_t(0), min(i, n - 1));
    return channel + (wide ? i / inner.divisor : inner.quotient32(uint32_t(i)));
  }
  template <int N>
  WT_DEVICE void apply(C (&v)[N], int64_t i, bool) const {
    int64_t c = channel_of(i);
    const bool same = c == channel_of(i + N - 1);
    C w = weight.data ? weight.at(c) : C(1), b = bias.data ? bias.at(c) : C(0);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (j > 0 && !same) {
        c = channel_of(i + j);
        w = weight.data ? weight.at(c) : C(1);
        b = bias.data ? bias.at(c) : C(0);
      }
      v[j] = fma(v[j], w, b);
    }
  }
};

void group_norm(const LaunchContext& ctx, const View& y, const View& mean, const View& rstd, const View& x,
                const View& weight, const View& bias, int64_t batch, int64_t channels, int64_t inner,
                int64_t groups, double eps) {
  const char* name = "group_norm";
  const Sizes z{batch, channels, inner, channels / groups};
  if (z.numel() == 0) return;
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const auto w = coefficients<T>(ctx, name, weight, channels),
               b = coefficients<T>(ctx, name, bias, channels);
    const int64_t rows = batch * groups, n = z.per * inner;
    if (rows >= kFewGroups || n < kLongGroup)
      return launch_norm<T, true>(ctx, name, y, mean, rstd, x, rows, n, eps,
                                  GroupAffine<T>{w, b, z.per, groups, n, FastDivide(inner), n > INT32_MAX});
    reduce(ctx, name, geometry(z, x, nullptr, false, rows),
           Statistics<C>{{}, mean.as<C>(), rstd.as<C>(), {}, {}, 0, eps, double(n)});
    launch_map<T>(
        ctx, name, z, y, x, nullptr,
        FromStatistics<T>{mean.as<C>(), rstd.as<C>(), w, b, FastDivide(channels), FastDivide(z.per), true});
  });
}

// [batch * channels]: sums of dy and of dy * h.
template <class C>
struct RowSums {
  C dy, dy_h;
  WT_DEVICE static RowSums join(const RowSums& a, const RowSums& b) { return {a.dy + b.dy, a.dy_h + b.dy_h}; }
};
template <class C>
struct GroupRows {
  const C *mean, *rstd;
  int64_t per;
  RowSums<C>* sums;
  WT_DEVICE C mean_of(int64_t row) const { return mean[row / per]; }
  WT_DEVICE void take(C dy, C dy_x, int64_t row) const { sums[row] = {dy, dy_x * rstd[row / per]}; }
};

// A warp for each group: the coefficients of its rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    group_table_kernel(Coefficient<Compute<T>>* table, const RowSums<Compute<T>>* sums,
                       GroupRows<Compute<T>> of, Coefficients<T> weight, int64_t groups, int64_t per_batch,
                       Compute<T> n) {
  using C = Compute<T>;
  using Sums = RowSums<C>;
  __shared__ Sums shared[1];
  const int64_t group = int64_t(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp, per = of.per;
  const int lane = threadIdx.x % kWarp;
  const int64_t channel = group % per_batch * per, count = group < groups ? per : 0;
  Sums s{C(0), C(0)};
  for (int64_t k = lane; k < count; k += kWarp) {
    const Sums row = sums[group * per + k];
    const C w = weight.data ? weight.at(channel + k) : C(1);
    s = Sums::join(s, {row.dy * w, row.dy_h * w});
  }
  s = group_join(s, kWarp, Sums{C(0), C(0)}, Sums::join, shared);
  if (count == 0) return;
  const C m = of.mean[group], r = of.rstd[group];
  const C slope = -s.dy_h / n * r * r, constant = -s.dy / n * r - slope * m;
  for (int64_t k = lane; k < count; k += kWarp)
    table[group * per + k] = {weight.data ? weight.at(channel + k) * r : r, slope, constant};
}

template <class C>
__global__ void __launch_bounds__(kThreads)
    sum_batch_kernel(const RowSums<C>* sums, int64_t batch, int64_t channels, Output dweight, Output dbias) {
  const int64_t c = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= channels) return;
  RowSums<C> s{C(0), C(0)};
#pragma unroll 4
  for (int64_t i = 0; i < batch; ++i) s = RowSums<C>::join(s, sums[i * channels + c]);
  dweight.put(s.dy_h, c);
  dbias.put(s.dy, c);
}

void group_norm_backward(const LaunchContext& ctx, const View& dx, const View& dweight, const View& dbias,
                         const View& dy, const View& x, const View& mean, const View& rstd,
                         const View& weight, int64_t batch, int64_t channels, int64_t inner, int64_t groups) {
  const char* name = "group_norm_backward";
  const Sizes z{batch, channels, inner, channels / groups};
  if (z.numel() == 0) return;
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    auto* sums = static_cast<RowSums<C>*>(ctx.scratch(size_t(z.rows()) * sizeof(RowSums<C>)));
    const GroupRows<C> of{mean.as<C>(), rstd.as<C>(), z.per, sums};
    reduce(ctx, name, geometry(z, dy, &x, false, z.rows()), GradientSums<C, GroupRows<C>>{of});
    if (dx.data) {
      auto* table = static_cast<Coefficient<C>*>(ctx.scratch(size_t(z.rows()) * sizeof(Coefficient<C>)));
      const auto w = coefficients<T>(ctx, name, weight, channels);
      launch(ctx, name, group_table_kernel<T>, dim3(unsigned(ceil_div(batch * groups, kThreads / kWarp))),
             dim3(kThreads), 0, table, sums, of, w, batch * groups, groups, C(z.per * inner));
      launch_map<T>(ctx, name, z, dx, dy, &x, FromTable<T>{table, FastDivide(channels), true});
    }
    if (dweight.data || dbias.data)
      launch(ctx, name, sum_batch_kernel<C>, dim3(unsigned(ceil_div(channels, kThreads))), dim3(kThreads), 0,
             sums, batch, channels, Output{dweight.data, dweight.dtype}, Output{dbias.data, dbias.dtype});
  });
}

// ---- batch norm ----
void batch_norm_stats(const LaunchContext& ctx, const View& mean, const View& rstd, const View& running_mean,
                      const View& running_var, const View& x, int64_t batch, int64_t channels, int64_t inner,
                      double momentum, double eps) {
  const Sizes z{batch, channels, inner, 1};
  auto run = [&](auto tag) {
    using C = typename decltype(tag)::type;
    reduce(ctx, "batch_norm", geometry(z, x, nullptr, true, 0),
           Statistics<C>{{},
                         mean.as<C>(),
                         rstd.as<C>(),
                         {running_mean.data, running_mean.dtype},
                         {running_var.data, running_var.dtype},
                         momentum,
                         eps,
                         double(batch * inner)});
  };
  if (x.dtype == DType::Float64)
    run(Tag<double>{});
  else
    run(Tag<float>{});
}

void batch_norm_apply(const LaunchContext& ctx, const View& y, const View& x, const View& mean,
                      const View& rstd, const View& weight, const View& bias, int64_t batch, int64_t channels,
                      int64_t inner) {
  const char* name = "batch_norm";
  const Sizes z{batch, channels, inner, 1};
  if (z.numel() == 0) return;
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const auto w = coefficients<T>(ctx, name, weight, channels),
               b = coefficients<T>(ctx, name, bias, channels);
    launch_map<T>(ctx, name, z, y, x, nullptr,
                  FromStatistics<T>{mean.as<C>(), rstd.as<C>(), w, b, FastDivide(channels), {}, false});
  });
}

template <class C>
struct BatchChannels {
  const C *mean, *rstd;
  const void* weight;  // or null
  DType weight_dtype;
  Coefficient<C>* table;
  Output dweight, dbias;
  C count;
  bool train;

  WT_DEVICE C mean_of(int64_t c) const { return mean[c]; }
  WT_DEVICE void take(C sum_dy, C sum_dy_x, int64_t c) const {
    const C s = rstd[c], sum_dy_h = sum_dy_x * s;
    dweight.put(sum_dy_h, c);
    dbias.put(sum_dy, c);
    const auto* w = static_cast<const char*>(weight) + c * int64_t(itemsize(weight_dtype));
    const C by = weight ? load_as<C>(w, weight_dtype) * s : s;
    const C slope = train ? -by * s * sum_dy_h / count : C(0);
    table[c] = {by, slope, train ? -by * sum_dy / count - slope * mean[c] : C(0)};
  }
};

void batch_norm_backward(const LaunchContext& ctx, const View& dx, const View& dweight, const View& dbias,
                         const View& dy, const View& x, const View& mean, const View& rstd,
                         const View& weight, int64_t batch, int64_t channels, int64_t inner, bool train) {
  const char* name = "batch_norm_backward";
  const Sizes z{batch, channels, inner, 1};
  if (z.numel() == 0) return;
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    auto* table = static_cast<Coefficient<C>*>(ctx.scratch(size_t(channels) * sizeof(Coefficient<C>)));
    const BatchChannels<C> of{mean.as<C>(),
                              rstd.as<C>(),
                              weight.data,
                              weight.dtype,
                              table,
                              {dweight.data, dweight.dtype},
                              {dbias.data, dbias.dtype},
                              C(batch * inner),
                              train};
    reduce(ctx, name, geometry(z, dy, &x, true, 0), GradientSums<C, BatchChannels<C>>{of});
    if (dx.data) launch_map<T>(ctx, name, z, dx, dy, &x, FromTable<T>{table, FastDivide(channels), false});
  });
}

WT_KERNEL(group_norm, group_norm);
WT_KERNEL(group_norm_backward, group_norm_backward);
WT_KERNEL(batch_norm_stats, batch_norm_stats);
WT_KERNEL(batch_norm_apply, batch_norm_apply);
WT_KERNEL(batch_norm_backward, batch_norm_backward);

}  // namespace
}  // namespace warptape::kernels::cuda
