// Reading by index: gather, index_select, index_get, and the copying of whole rows that they share with
// embedding.
#include "kernels/cuda/common/memory.cuh"
#include "kernels/cuda/index/index_keys.cuh"
#include "kernels/cuda/index/rows.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;  // elements of a thread, so that their loads overlap
dim3 blocks_for(int64_t n) { return dim3(unsigned(ceil_div(n, int64_t(kThreads) * kEach))); }

// ---- rows ----

struct RowArgs {
  RowCopy c;
  FastDivide units, count;  // of a row; rows of one outer
  int64_t n;                // units in all
  bool wide;
  FaultSink sink;
};

template <bool Wide, class U>
WT_DEVICE void copy_units(const RowArgs& a) {
  const int64_t first = int64_t(blockIdx.x) * (kThreads * kEach) + threadIdx.x;
  U values[kEach];
  bool valid[kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const int64_t t = first + u * kThreads;
    valid[u] = t < a.n;
    if (!valid[u]) continue;
    const int64_t row = a.units.quotient<Wide>(t), unit = t - row * a.units.divisor;
    const int64_t o = a.c.outer == 1 ? 0 : a.count.quotient<Wide>(row), i = row - o * a.c.count;
    const int64_t key = a.c.keys[i * a.c.key_step];
    valid[u] = key >= 0 && key < a.c.bound;
    if (!valid[u]) {
      if (!a.c.reported) a.sink.report(key, a.c.bound);
      continue;
    }
    const char* from = static_cast<const char*>(a.c.from) + o * a.c.from_outer + key * a.c.from_step;
    values[u] = reinterpret_cast<const U*>(from)[unit];
  }
#pragma unroll
  for (int u = 0; u < kEach; ++u)
    if (valid[u]) static_cast<U*>(a.c.to)[first + u * kThreads] = values[u];
}
template <class U>
__global__ void __launch_bounds__(kThreads) rows_kernel(const __grid_constant__ RowArgs a) {
  a.wide ? copy_units<true, U>(a) : copy_units<false, U>(a);
}

template <class U>
bool try_rows(const LaunchContext& ctx, const char* op, const RowCopy& c) {
  const size_t size = sizeof(U);
  const auto fits = [&](int64_t bytes) { return bytes % int64_t(size) == 0; };
  if (!is_aligned(c.to, size) || !is_aligned(c.from, size) || !fits(c.row_bytes) || !fits(c.from_step) ||
      !fits(c.from_outer))
    return false;
  RowArgs a{c, FastDivide(c.row_bytes / int64_t(size)), FastDivide(c.count), 0, false, fault_sink(ctx, op)};
  a.n = c.outer * c.count * (c.row_bytes / int64_t(size));
  a.wide = a.n > INT32_MAX;
  launch(ctx, op, rows_kernel<U>, blocks_for(a.n), dim3(kThreads), 0, a);
  return true;
}

}  // namespace

void take_rows(const LaunchContext& ctx, const char* op, const RowCopy& c) {
  if (c.outer == 0 || c.count == 0 || c.row_bytes == 0) return;
  try_rows<uint4>(ctx, op, c) || try_rows<uint64_t>(ctx, op, c) || try_rows<uint32_t>(ctx, op, c) ||
      try_rows<uint16_t>(ctx, op, c) || try_rows<uint8_t>(ctx, op, c);
}

namespace {

// ---- gather ----

struct GatherArgs {
  IndexMap<2, kManyDims> map;  // over index's shape: offsets in x (without dim) and in index
  const void* x;
  const int64_t* index;
  void* out;
  int64_t n, bound, step;  // of x in dim
  FaultSink sink;
};

template <class U>
__global__ void __launch_bounds__(kThreads) gather_kernel(const __grid_constant__ GatherArgs a) {
  const int64_t first = int64_t(blockIdx.x) * (kThreads * kEach) + threadIdx.x;
  int64_t from[kEach];  // -1: nothing to read
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const int64_t t = first + u * kThreads;
    from[u] = -1;
    if (t >= a.n) continue;
    const auto at = a.map(t);
    const int64_t i = a.index[at.of[1]];
    if (i >= 0 && i < a.bound)
      from[u] = at.of[0] + i * a.step;
    else
      a.sink.report(i, a.bound);
  }
  U values[kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u)
    if (from[u] >= 0) values[u] = static_cast<const U*>(a.x)[from[u]];
#pragma unroll
  for (int u = 0; u < kEach; ++u)
    if (from[u] >= 0) static_cast<U*>(a.out)[first + u * kThreads] = values[u];
}

void gather_named(const LaunchContext& ctx, const char* op, const View& out, const View& x, const View& index,
                  int dim) {
  GatherArgs a{};
  a.n = index.numel();
  if (a.n == 0) return;
  int64_t strides[kMaxDims];
  const View spread = without_dim(x, dim, index, strides);
  make_index_map(a.map, {&spread, &index});
  a.x = x.data;
  a.index = index.as<const int64_t>();
  a.out = out.data;
  a.bound = x.ndim ? x.sizes[dim] : 1;
  a.step = x.ndim ? x.strides[dim] : 0;
  a.sink = fault_sink(ctx, op);
  dispatch_size(MoveTypes{}, itemsize(x.dtype), [&](auto t) {
    launch(ctx, op, gather_kernel<typename decltype(t)::type>, blocks_for(a.n), dim3(kThreads), 0, a);
  });
}

void gather(const LaunchContext& ctx, const View& out, const View& x, const View& index, int dim) {
  gather_named(ctx, "gather", out, x, index, dim);
}

// ---- index_select ----

// The stride at which dims [first, last) are one run, 0 where they have one element, -1 where they are none.
int64_t run_stride(const View& x, int first, int last) {
  int64_t stride = 0, next = 0;  // next: the stride that the following dim to the left must have
  for (int d = last - 1; d >= first; --d) {
    if (x.sizes[d] == 1) continue;
    if (stride == 0)
      stride = x.strides[d];
    else if (x.strides[d] != next)
      return -1;
    if (stride == 0) return -1;  // broadcast
    next = x.strides[d] * x.sizes[d];
  }
  return stride;
}
int64_t product(const int64_t* sizes, int first, int last) {
  int64_t n = 1;
  for (int d = first; d < last; ++d) n *= sizes[d];
  return n;
}

void index_select(const LaunchContext& ctx, const View& out, const View& x, const View& index, int dim) {
  const int64_t item = int64_t(itemsize(x.dtype));
  const int64_t inner = run_stride(x, dim + 1, x.ndim), outer = run_stride(x, 0, dim);
  if ((inner == 0 || inner == 1) && outer >= 0) {
    RowCopy c{};
    c.to = out.data;
    c.from = x.data;
    c.row_bytes = product(x.sizes, dim + 1, x.ndim) * item;
    c.from_step = x.strides[dim] * item;
    c.from_outer = outer * item;
    c.outer = product(x.sizes, 0, dim);
    c.keys = index.as<const int64_t>();
    c.key_step = index.ndim ? index.strides[0] : 0;
    c.count = out.sizes[dim];
    c.bound = x.sizes[dim];
    return take_rows(ctx, "index_select", c);
  }
  int64_t strides[kMaxDims] = {};
  strides[dim] = index.ndim ? index.strides[0] : 0;
  View spread = index;
  spread.sizes = out.sizes;
  spread.strides = strides;
  spread.ndim = out.ndim;
  gather_named(ctx, "index_select", out, x, spread, dim);
}

// ---- index_get ----

struct BlockArgs {
  IndexMap<1, kManyDims> rest;  // over the dims that are not indexed
  const void* x;
  void* out;
  const int64_t* keys;
  int64_t n, unit;
  FastDivide block;  // elements of one position
  bool wide;
};

template <class U>
__global__ void __launch_bounds__(kThreads) index_get_kernel(const __grid_constant__ BlockArgs a) {
  const int64_t first = int64_t(blockIdx.x) * (kThreads * kEach) + threadIdx.x;
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const int64_t t = first + u * kThreads;
    if (t >= a.n) return;
    const int64_t p = a.wide ? a.block.quotient<true>(t) : a.block.quotient<false>(t);
    const int64_t key = a.keys[p];
    if (key < 0) continue;
    static_cast<U*>(a.out)[t] =
        static_cast<const U*>(a.x)[key * a.unit + a.rest(t - p * a.block.divisor).of[0]];
  }
}

void index_get(const LaunchContext& ctx, const View& out, const View& x, const View* indices, int count) {
  const int64_t positions = indices[0].numel(), block = product(x.sizes, count, x.ndim);
  if (positions == 0 || block == 0) return;
  const IndexKeys keys(x, indices, count);
  auto* offsets = static_cast<int64_t*>(ctx.scratch(size_t(positions) * sizeof(int64_t)));
  keys.write(ctx, "index", offsets, nullptr, 0, positions);
  const int64_t item = int64_t(itemsize(x.dtype));
  const int64_t run = run_stride(x, count, x.ndim);
  if (run == 0 || run == 1) {
    RowCopy c{};
    c.to = out.data;
    c.from = x.data;
    c.row_bytes = block * item;
    c.from_step = keys.unit * item;
    c.outer = 1;
    c.keys = offsets;
    c.key_step = 1;
    c.count = positions;
    c.bound = INT64_MAX;
    c.reported = true;
    return take_rows(ctx, "index", c);
  }
  BlockArgs a{};
  const View rest{x.data, x.sizes + count, x.strides + count, x.ndim - count, x.dtype};
  make_index_map(a.rest, {&rest});
  a.x = x.data;
  a.out = out.data;
  a.keys = offsets;
  a.n = positions * block;
  a.unit = keys.unit;
  a.block = FastDivide(block);
  a.wide = a.n > INT32_MAX;
  dispatch_size(MoveTypes{}, item, [&](auto t) {
    launch(ctx, "index", index_get_kernel<typename decltype(t)::type>, blocks_for(a.n), dim3(kThreads), 0, a);
  });
}

}  // namespace

WT_KERNEL(gather, gather);
WT_KERNEL(index_select, index_select);
WT_KERNEL(index_get, index_get);

}  // namespace warptape::kernels::cuda
