// Writes in the order of the indices; see Note [order].
#include "kernels/cuda/index/order.cuh"

#include "kernels/cuda/common/memory.cuh"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // rows that a thread has in flight

struct OrderedArgs {
  OrderedWrite w;
  const uint64_t* keys;
  const uint32_t* positions;
  int64_t n, units;  // a unit is W columns
  FastDivide unit_divide;
  bool wide;
  int tile_shift;
  // Of pieces of a place that passes a tile's end: the piece in which it begins, and the one that begins a
  // tile.
  void *tail, *lead;

  // The unit and pair of a thread.
  WT_DEVICE int64_t split(int64_t thread, int64_t& unit) const {
    const int64_t i = wide ? unit_divide.quotient<true>(thread) : unit_divide.quotient<false>(thread);
    unit = thread - i * units;
    return i;
  }
};

template <class C>
WT_DEVICE C combine(ScatterMode mode, C a, C b) {
  switch (mode) {
    case ScatterMode::Assign:
      return b;
    case ScatterMode::Add:
      return C(a + b);
    case ScatterMode::Multiply:
      return C(a * b);
    case ScatterMode::AMin:
      return a != a || less(a, b) ? a : b;
    case ScatterMode::AMax:
      return a != a || less(b, a) ? a : b;
  }
  return b;
}

template <class T, int W>
WT_DEVICE void add_row(const OrderedWrite& w, Compute<T> (&sum)[W], const Packed<T, W>& row) {
  using C = Compute<T>;
#pragma unroll
  for (int k = 0; k < W; ++k) sum[k] = combine(w.mode, sum[k], C(C(w.alpha) * widen<C>(row[k])));
}

template <class C, int W>
WT_DEVICE Packed<C, W>* partial(void* array, int64_t at) {
  return static_cast<Packed<C, W>*>(array) + at;
}

// A thread for every pair and unit; those in the middle of a piece leave at once.
template <class T, int W>
__global__ void __launch_bounds__(kThreads) ordered_kernel(const __grid_constant__ OrderedArgs a) {
  using C = Compute<T>;
  const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= a.n * a.units) return;
  int64_t unit;
  const int64_t i = a.split(thread, unit), tile = i >> a.tile_shift;
  const uint64_t key = a.keys[i];
  if (key >= a.w.bound) return;
  const bool head = i == 0 || a.keys[i - 1] != key;
  if (!head && i != tile << a.tile_shift) return;
  const int64_t end = min(a.n, (tile + 1) << a.tile_shift);
  int64_t last = i + 1;
  while (last < end && a.keys[last] == key) ++last;
  const bool passes = last == end && last < a.n && a.keys[last] == key;

  const auto column = a.w.columns(unit * W);
  T* to = static_cast<T*>(a.w.to) + int64_t(key) * a.w.to_step + column.of[0];
  const T* from = static_cast<const T*>(a.w.from) + column.of[1];
  auto row = [&](int64_t j) { return load_packed<W>(from + a.w.rows(a.w.first + a.positions[j]).of[0]); };
  C sum[W];
  int64_t j = i;
  if (head && !a.w.replaces) {
    const auto before = load_packed<W>(to);
#pragma unroll
    for (int k = 0; k < W; ++k) sum[k] = widen<C>(before[k]);
  } else {
    const auto first = row(j++);
#pragma unroll
    for (int k = 0; k < W; ++k) sum[k] = C(C(a.w.alpha) * widen<C>(first[k]));
  }
  for (; j + kUnroll <= last; j += kUnroll) {
    Packed<T, W> rows[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) rows[u] = row(j + u);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) add_row<T, W>(a.w, sum, rows[u]);
  }
  for (; j < last; ++j) add_row<T, W>(a.w, sum, row(j));

  if (head && !passes) {
    Packed<T, W> result;
#pragma unroll
    for (int k = 0; k < W; ++k) result[k] = narrow<T>(sum[k]);
    store_packed(to, result);
    return;
  }
  Packed<C, W> result;
#pragma unroll
  for (int k = 0; k < W; ++k) result[k] = sum[k];
  *partial<C, W>(head ? a.tail : a.lead, tile * a.units + unit) = result;
}

// A thread for every tile and unit: the place that begins in this tile and goes on in the next is put
// together.
template <class T, int W>
__global__ void __launch_bounds__(kThreads) join_kernel(const __grid_constant__ OrderedArgs a) {
  using C = Compute<T>;
  const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  int64_t unit;
  const int64_t tile = a.split(thread, unit),
                tiles = (a.n + (int64_t{1} << a.tile_shift) - 1) >> a.tile_shift;
  if (tile + 1 >= tiles) return;
  const uint64_t key = a.keys[(tile + 1) << a.tile_shift];
  const int64_t begin = tile << a.tile_shift;
  if (key >= a.w.bound || a.keys[((tile + 1) << a.tile_shift) - 1] != key) return;
  if (begin > 0 && a.keys[begin - 1] == key) return;  // it began earlier
  C sum[W];
  const Packed<C, W> first = *partial<C, W>(a.tail, tile * a.units + unit);
#pragma unroll
  for (int k = 0; k < W; ++k) sum[k] = first[k];
  int64_t t = tile + 1, last = tiles;  // `last`: the first tile that does not begin with the key
  for (int64_t low = t; low < last;) {
    const int64_t middle = (low + last) / 2;
    if (a.keys[middle << a.tile_shift] == key)
      low = middle + 1;
    else
      last = middle;
  }
  for (; t < last; t += kUnroll) {
    Packed<C, W> pieces[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (t + u < last) pieces[u] = *partial<C, W>(a.lead, (t + u) * a.units + unit);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (t + u >= last) break;
#pragma unroll
      for (int k = 0; k < W; ++k) sum[k] = combine(a.w.mode, sum[k], pieces[u][k]);
    }
  }
  Packed<T, W> result;
#pragma unroll
  for (int k = 0; k < W; ++k) result[k] = narrow<T>(sum[k]);
  const auto column = a.w.columns(unit * W);
  store_packed(static_cast<T*>(a.w.to) + int64_t(key) * a.w.to_step + column.of[0], result);
}

// The last write to a place stays. U is an unsigned type of the dtype's size.
template <class U>
__global__ void __launch_bounds__(kThreads) assign_kernel(const __grid_constant__ OrderedArgs a) {
  const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= a.n * a.units) return;
  int64_t unit;
  const int64_t i = a.split(thread, unit);
  const uint64_t key = a.keys[i];
  if (key >= a.w.bound || (!a.w.any_order && i + 1 < a.n && a.keys[i + 1] == key)) return;
  const auto column = a.w.columns(unit);
  const int64_t row = a.w.rows(a.w.first + a.positions[i]).of[0];
  static_cast<U*>(a.w.to)[int64_t(key) * a.w.to_step + column.of[0]] =
      static_cast<const U*>(a.w.from)[row + column.of[1]];
}

// Whether columns move W at a time, 16 bytes.
bool is_packed(const OrderedWrite& w, int64_t width) {
  bool packed = w.columns.ndim == 1 && w.columns.strides[0][0] == 1 && w.columns.strides[1][0] == 1 &&
                w.column_count % width == 0 && w.to_step % width == 0;
  for (int d = 0; d < w.rows.ndim; ++d) packed = packed && w.rows.strides[0][d] % width == 0;
  return packed && is_aligned(w.to, 16) && is_aligned(w.from, 16);
}

void set_units(OrderedArgs& a, int64_t width) {
  a.units = a.w.column_count / width;
  a.unit_divide = FastDivide(a.units);
  a.wide = a.n * a.units > INT32_MAX;
}
dim3 blocks_for(int64_t threads) { return dim3(unsigned(ceil_div(threads, kThreads))); }

template <class T, int W>
void run_ordered(const LaunchContext& ctx, const char* op, OrderedArgs a) {
  set_units(a, W);
  a.tile_shift = a.units >= 32 ? 5 : 7;
  const int64_t tiles = ceil_div(a.n, int64_t{1} << a.tile_shift);
  if (tiles > 1) {
    const size_t bytes = size_t(tiles * a.units) * W * sizeof(Compute<T>);
    a.tail = ctx.scratch(bytes);
    a.lead = ctx.scratch(bytes);
  }
  launch(ctx, op, ordered_kernel<T, W>, blocks_for(a.n * a.units), dim3(kThreads), 0, a);
  if (tiles > 1) launch(ctx, op, join_kernel<T, W>, blocks_for(tiles * a.units), dim3(kThreads), 0, a);
}

__global__ void __launch_bounds__(kThreads)
    pairs_kernel(Sorted pairs, const int64_t* index, int64_t step, int64_t n, int64_t bound, int64_t left_out,
                 FaultSink sink) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t at = index[i * step];
  const bool valid = at >= 0 && at < bound;
  if (!valid) sink.report(at, bound);
  pairs.keys[i] = uint64_t(valid && at != left_out ? at : bound);
  pairs.positions[i] = uint32_t(i);
}

}  // namespace

Sorted pairs_of_index(const LaunchContext& ctx, const char* op, const int64_t* index, int64_t step, int64_t n,
                      int64_t bound, int64_t left_out) {
  const Sorted pairs = make_pairs(ctx, n);
  launch(ctx, op, pairs_kernel, blocks_for(n), dim3(kThreads), 0, pairs, index, step, n, bound, left_out,
         fault_sink(ctx, op));
  return pairs;
}

void write_ordered(const LaunchContext& ctx, const char* op, const Sorted& pairs, int64_t n,
                   const OrderedWrite& w) {
  if (n == 0 || w.column_count == 0) return;
  OrderedArgs a{};
  a.w = w;
  a.keys = pairs.keys;
  a.positions = pairs.positions;
  a.n = n;
  if (w.mode == ScatterMode::Assign) {
    set_units(a, 1);
    dispatch_size(MoveTypes{}, itemsize(w.dtype), [&](auto t) {
      launch(ctx, op, assign_kernel<typename decltype(t)::type>, blocks_for(n * a.units), dim3(kThreads), 0,
             a);
    });
    return;
  }
  dispatch(Stored<Complex<double>>{}, w.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if constexpr (is_floating(dtype_of<T>))
      if (is_packed(w, kPackedWidth<T>)) return run_ordered<T, kPackedWidth<T>>(ctx, op, a);
    run_ordered<T, 1>(ctx, op, a);
  });
}

}  // namespace warptape::kernels::cuda
