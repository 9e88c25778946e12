// Writing by index: scatter, index_add, index_put, in the order of the indices. Where lines along dim are
// many or short, one thread goes along each, for lines meet nowhere; else see Note [order].
#include "kernels/cuda/common/memory.cuh"
#include "kernels/cuda/index/index_keys.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;
dim3 blocks_for(int64_t n) { return dim3(unsigned(ceil_div(n, kThreads))); }

template <class F>
void for_ranges(int64_t n, F&& f) {
  for (int64_t first = 0; first < n; first += kMostPositions)
    f(first, n - first < kMostPositions ? n - first : kMostPositions);
}

// ---- along lines ----

struct LineArgs {
  IndexMap<3, kManyDims> map;  // over the lines: offsets in self, index, src
  void* self;
  const int64_t* index;
  const void* src;
  int64_t lines, length;
  int64_t self_step, index_step, src_step;  // along dim
  int64_t bound;
  ScatterMode mode;
  FaultSink sink;
};

template <class T>
WT_DEVICE T combined(ScatterMode mode, T old, T value) {
  using C = Compute<T>;
  const C a = widen<C>(old), b = widen<C>(value);
  switch (mode) {
    case ScatterMode::Assign:
      return value;
    case ScatterMode::Add:
      return narrow<T>(C(a + b));
    case ScatterMode::Multiply:
      return narrow<T>(C(a * b));
    case ScatterMode::AMin:
      return a != a || less(a, b) ? old : value;
    case ScatterMode::AMax:
      return a != a || less(b, a) ? old : value;
  }
  return value;
}

// T is the dtype, or for Assigns an unsigned type of its size.
template <class T, bool Assigns>
__global__ void __launch_bounds__(kThreads) lines_kernel(const __grid_constant__ LineArgs a) {
  constexpr int kUnroll = 4;
  const int64_t line = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (line >= a.lines) return;
  const auto at = a.map(line);
  T* self = static_cast<T*>(a.self) + at.of[0];
  const int64_t* index = a.index + at.of[1];
  const T* src = static_cast<const T*>(a.src) + at.of[2];
  for (int64_t first = 0; first < a.length; first += kUnroll) {
    int64_t places[kUnroll];
    T values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      places[u] = -1;
      if (first + u >= a.length) continue;
      const int64_t i = index[(first + u) * a.index_step];
      values[u] = src[(first + u) * a.src_step];
      if (i >= 0 && i < a.bound)
        places[u] = i * a.self_step;
      else
        a.sink.report(i, a.bound);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (places[u] < 0) continue;
      if constexpr (Assigns)
        self[places[u]] = values[u];
      else
        self[places[u]] = combined(a.mode, self[places[u]], values[u]);
    }
  }
}

void scatter_lines(const LaunchContext& ctx, const View& self, const View& index, const View& src, int dim,
                   ScatterMode mode) {
  LineArgs a{};
  const WithoutDim to(self, index, dim), at(index, index, dim), from(src, index, dim);
  make_index_map(a.map, {&to.view, &at.view, &from.view});
  a.self = self.data;
  a.index = index.as<const int64_t>();
  a.src = src.data;
  a.length = index.ndim ? index.sizes[dim] : 1;
  a.lines = index.numel() / a.length;
  a.self_step = self.ndim ? self.strides[dim] : 0;
  a.index_step = index.ndim ? index.strides[dim] : 0;
  a.src_step = src.ndim ? src.strides[dim] : 0;
  a.bound = self.ndim ? self.sizes[dim] : 1;
  a.mode = mode;
  a.sink = fault_sink(ctx, "scatter");
  const auto run = [&](auto kernel) {
    launch(ctx, "scatter", kernel, blocks_for(a.lines), dim3(kThreads), 0, a);
  };
  if (mode == ScatterMode::Assign)
    dispatch_size(MoveTypes{}, itemsize(self.dtype),
                  [&](auto t) { run(lines_kernel<typename decltype(t)::type, true>); });
  else
    dispatch(Stored<Complex<double>>{}, self.dtype,
             [&](auto t) { run(lines_kernel<typename decltype(t)::type, false>); });
}

// ---- by place ----

struct PlaceArgs {
  IndexMap<2, kManyDims> map;  // over index's shape: offsets in self (without dim) and in index
  const int64_t* index;
  int64_t bound, step, unit;  // of self in dim; keys are offsets by unit
  int64_t first, n;
  Sorted pairs;
  FaultSink sink;
};

__global__ void __launch_bounds__(kThreads) places_kernel(const __grid_constant__ PlaceArgs a) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.n) return;
  const auto at = a.map(a.first + i);
  const int64_t found = a.index[at.of[1]];
  const bool valid = found >= 0 && found < a.bound;
  if (!valid) a.sink.report(found, a.bound);
  a.pairs.keys[i] = valid ? uint64_t((at.of[0] + found * a.step) / a.unit) : ~uint64_t{0};
  a.pairs.positions[i] = uint32_t(i);
}

void scatter_places(const LaunchContext& ctx, const View& self, const View& index, const View& src, int dim,
                    ScatterMode mode) {
  const char* op = "scatter";
  OrderedWrite w{};
  w.dtype = self.dtype;
  w.mode = mode;
  w.to = self.data;
  w.from = src.data;
  w.bound = 1;
  w.to_step = 0;
  for (int d = 0; d < self.ndim; ++d)
    if (self.sizes[d] > 1) w.to_step = std::gcd(w.to_step, self.strides[d]);
  if (w.to_step == 0) w.to_step = 1;
  for (int d = 0; d < self.ndim; ++d)
    if (self.sizes[d] > 1) w.bound += uint64_t(self.sizes[d] - 1) * uint64_t(self.strides[d] / w.to_step);
  make_index_map(w.rows, {&src});
  w.rows.wide = index.numel() > INT32_MAX;

  PlaceArgs a{};
  int64_t strides[kMaxDims];
  const View spread = without_dim(self, dim, index, strides);
  make_index_map(a.map, {&spread, &index});
  a.index = index.as<const int64_t>();
  a.bound = self.sizes[dim];
  a.step = self.strides[dim];
  a.unit = w.to_step;
  a.sink = fault_sink(ctx, op);
  for_ranges(index.numel(), [&](int64_t first, int64_t n) {
    w.first = a.first = first;
    a.n = n;
    a.pairs = make_pairs(ctx, n);
    launch(ctx, op, places_kernel, blocks_for(n), dim3(kThreads), 0, a);
    write_ordered(ctx, op, sort_pairs(ctx, op, a.pairs, n, bits_of(w.bound)), n, w);
  });
}

void scatter(const LaunchContext& ctx, const View& self, const View& index, const View& src, int dim,
             ScatterMode mode) {
  const int64_t n = index.numel();
  if (n == 0) return;
  const int64_t length = index.ndim ? index.sizes[dim] : 1, lines = n / length;
  // It rounds after every element, where sums in narrow dtypes stop growing.
  const bool narrow = self.dtype == DType::Float16 || self.dtype == DType::BFloat16;
  const bool rounds = narrow && length > 1 && (mode == ScatterMode::Add || mode == ScatterMode::Multiply);
  // A thread per line is quick where lines are short, or as many as the device has threads.
  if ((!rounds && (length <= 16 || (lines >= 65536 && length <= 4096))) || self.ndim == 0)
    scatter_lines(ctx, self, index, src, dim, mode);
  else
    scatter_places(ctx, self, index, src, dim, mode);
}

// ---- index_add: rows of dim are positions, all else is columns ----

void index_add(const LaunchContext& ctx, const View& self, const View& index, const View& src, int dim,
               double alpha) {
  const char* op = "index_add";
  OrderedWrite w{};
  w.dtype = self.dtype;
  w.mode = ScatterMode::Add;
  w.alpha = alpha;
  w.to = self.data;
  w.to_step = self.ndim ? self.strides[dim] : 0;
  w.from = src.data;
  w.bound = uint64_t(self.ndim ? self.sizes[dim] : 1);
  const int64_t n = src.ndim ? src.sizes[dim] : 1;
  const WithoutDim to(self, src, dim), from(src, src, dim);
  make_index_map(w.columns, {&to.view, &from.view});
  w.column_count = to.view.numel();
  w.rows.set_dims(1, &n, n);
  w.rows.strides[0][0] = src.ndim ? src.strides[dim] : 0;
  const int64_t step = index.ndim ? index.strides[0] : 0;
  for_ranges(n, [&](int64_t first, int64_t count) {
    w.first = first;
    const Sorted pairs =
        pairs_of_index(ctx, op, index.as<const int64_t>() + first * step, step, count, int64_t(w.bound), -1);
    write_ordered(ctx, op, sort_pairs(ctx, op, pairs, count, bits_of(w.bound)), count, w);
  });
}

// ---- index_put ----

void index_put(const LaunchContext& ctx, const View& self, const View& values, const View* indices, int count,
               bool accumulate) {
  const char* op = "index_put_";
  const View& shape = indices[0];
  const IndexKeys keys(self, indices, count);
  OrderedWrite w{};
  w.dtype = self.dtype;
  w.mode = accumulate ? ScatterMode::Add : ScatterMode::Assign;
  w.to = self.data;
  w.to_step = keys.unit;
  w.from = values.data;
  w.bound = keys.bound;
  const View rows{values.data, shape.sizes, values.strides, shape.ndim, values.dtype};
  make_index_map(w.rows, {&rows});
  w.rows.wide = shape.numel() > INT32_MAX;
  const View to{self.data, self.sizes + count, self.strides + count, self.ndim - count, self.dtype};
  const View from{values.data, to.sizes, values.strides + shape.ndim, to.ndim, values.dtype};
  make_index_map(w.columns, {&to, &from});
  w.column_count = to.numel();
  // One value for every position: whoever writes it first or last, it is the same.
  w.any_order = !accumulate;
  for (int d = 0; d < shape.ndim; ++d)
    w.any_order = w.any_order && (values.strides[d] == 0 || shape.sizes[d] == 1);
  for_ranges(shape.numel(), [&](int64_t first, int64_t n) {
    w.first = first;
    Sorted pairs = make_pairs(ctx, n);
    keys.write(ctx, op, reinterpret_cast<int64_t*>(pairs.keys), pairs.positions, first, n);
    if (!w.any_order) pairs = sort_pairs(ctx, op, pairs, n, bits_of(w.bound));
    write_ordered(ctx, op, pairs, n, w);
  });
}

}  // namespace

WT_KERNEL(scatter, scatter);
WT_KERNEL(index_add, index_add);
WT_KERNEL(index_put, index_put);

}  // namespace warptape::kernels::cuda
