// The reduction driver. A reducer says what one element adds to a state, how two states join and how a state
// is stored; the driver cuts the work by its geometry alone:
//   rows:    the fastest dim is reduced. Up to a block of threads for each output, 16 bytes an access.
//   columns: a kept dim is the fastest. Threads lie across the outputs, and rows over the rest of the block.
// Few outputs of many elements are cut further, into parts that a second launch joins in order.
//
// A reducer has the types Value (what elements are converted to), State, Center and Fast, kInputs, and
//   Center center(int64_t to): what elements of output `to` are seen from
//   State identity()
//   void fold<N>(State&, const Value (&x)[kInputs][N], Center): takes in N elements at once
//   void one(State&, const Value (&x)[kInputs], int64_t index, Center): one element, in order within a thread
//   State join(State, State)
//   void store(const State&, int64_t to)
// With kIndexed it has no fold. Fast lists the types that are loaded without a look at the dtype of each
// element. Where it is empty there are no kernels by rows, which compile slowly.
#pragma once

#include "kernels/cuda/common/groups.cuh"
#include "kernels/cuda/common/index.cuh"

namespace warptape::kernels::cuda {

inline constexpr int kReduceThreads = 256;
inline constexpr int kReduceMost = 48;  // bytes of a state, for the shared memory
// Constants, not the device's size, so that all devices cut alike.
inline constexpr int64_t kWantedBlocks = 1056;  // 8 for each multiprocessor of the largest devices
inline constexpr int64_t kEnoughBlocks = 528;   // with these no output is cut
inline constexpr int64_t kMostSteps = 512;      // accesses of one thread, one after the other

struct ReduceDim {
  int64_t size;
  int64_t stride;  // of the input, in elements
  int64_t to;      // of the output
};

// Kept and reduced dims by falling stride (what is broadcast counts as slowest), merged where both sides
// allow it, each list with at least one.
struct ReduceGeometry {
  const char* data[2] = {nullptr, nullptr};
  DType dtype;
  int kept_dims = 0, reduced_dims = 0;
  ReduceDim kept[kMaxDims], reduced[kMaxDims];
  int64_t kept_count = 1, reduced_count = 1;
};

namespace reduce_detail {

inline void insert(ReduceDim* dims, int& count, ReduceDim d) {
  if (d.size == 1) return;
  auto slowness = [](const ReduceDim& x) { return x.stride == 0 ? INT64_MAX : x.stride; };
  int at = count++;
  for (; at > 0 && slowness(dims[at - 1]) < slowness(d); --at) dims[at] = dims[at - 1];
  dims[at] = d;
}
inline void merge(ReduceDim* dims, int& count) {
  int n = 0;
  for (int i = 0; i < count; ++i) {
    ReduceDim& last = dims[n ? n - 1 : 0];
    if (n && last.stride == dims[i].stride * dims[i].size && last.to == dims[i].to * dims[i].size)
      last = {last.size * dims[i].size, dims[i].stride, dims[i].to};
    else
      dims[n++] = dims[i];
  }
  if (n == 0) dims[n++] = {1, 0, 0};
  count = n;
}

}  // namespace reduce_detail

inline ReduceGeometry reduce_geometry(const View& out, const View& in) {
  ReduceGeometry g;
  g.data[0] = static_cast<const char*>(in.data);
  g.dtype = in.dtype;
  int64_t to = 1, places[kMaxDims];
  for (int d = in.ndim - 1; d >= 0; --d) {
    places[d] = to;
    to *= out.sizes[d];
  }
  for (int d = 0; d < in.ndim; ++d) {
    const bool keeps = out.sizes[d] == in.sizes[d];
    (keeps ? g.kept_count : g.reduced_count) *= in.sizes[d];
    reduce_detail::insert(keeps ? g.kept : g.reduced, keeps ? g.kept_dims : g.reduced_dims,
                          {in.sizes[d], in.strides[d], keeps ? places[d] : 0});
  }
  reduce_detail::merge(g.kept, g.kept_dims);
  reduce_detail::merge(g.reduced, g.reduced_dims);
  return g;
}

template <class Red>
struct ReduceArgs {
  Red red;
  const char* data[Red::kInputs];
  DType dtype;
  IndexMap<2> kept;     // of an output, or a run of outputs: place in the input and in the output
  IndexMap<1> reduced;  // of an element; by rows: of a piece of memory
  int64_t outputs;      // runs, by columns
  int64_t count;        // reduced elements; by rows: chunks
  int64_t per_part;     // of `count`
  int lanes;            // by rows: threads of an output; by columns: threads across outputs
  // By rows
  int64_t row;  // elements in one run of memory
  FastDivide chunks;
  bool one_row, wide;
  // Where states go that are not the whole: [part, output], or null.
  typename Red::State* parts;
  int64_t part, total;
  int64_t to;  // the first output

  WT_DEVICE void put(const typename Red::State& state, int64_t place) const {
    if (parts)
      parts[(part + blockIdx.y) * total + place] = state;
    else
      red.store(state, place);
  }
};

// N elements from `index` on.
template <class Red, int N>
WT_DEVICE void take_all(const Red& red, typename Red::State& state,
                        const typename Red::Value (&x)[Red::kInputs][N], int64_t index,
                        typename Red::Center center) {
  if constexpr (Red::kIndexed) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      typename Red::Value v[Red::kInputs];
#pragma unroll
      for (int k = 0; k < Red::kInputs; ++k) v[k] = x[k][i];
      red.one(state, v, index + i, center);
    }
  } else {
    red.fold(state, x, center);
  }
}

// ---- rows ----
// Where chunk `chunk` lies: run of memory and element in it.
struct ChunkPlace {
  int64_t run, first;
  bool whole;
};
template <class T, class Red>
WT_DEVICE ChunkPlace place_chunk(const ReduceArgs<Red>& a, int64_t base, int64_t chunk) {
  int64_t run = 0;
  if (!a.one_row) {
    run = a.wide ? chunk / a.chunks.divisor : a.chunks.quotient32(uint32_t(chunk));
    chunk -= run * a.chunks.divisor;
    base += a.reduced(run).of[0];
  }
  const Pieces<T> pieces(reinterpret_cast<const T*>(a.data[0]) + base, a.row, true);
  const int64_t first = pieces.first(chunk);
  return {base, first, pieces.whole(first)};
}

template <class T, int U, class Red>
WT_DEVICE void load_chunks(const ReduceArgs<Red>& a, const ChunkPlace (&at)[U],
                           typename Red::Value (&x)[Red::kInputs][U * kPackedWidth<T>]) {
  constexpr int W = kPackedWidth<T>;
  Packed<T, W> raw[Red::kInputs][U];
#pragma unroll
  for (int u = 0; u < U; ++u)
#pragma unroll
    for (int k = 0; k < Red::kInputs; ++k)
      raw[k][u] = load_packed<W>(reinterpret_cast<const T*>(a.data[k]) + at[u].run + at[u].first);
#pragma unroll
  for (int k = 0; k < Red::kInputs; ++k)
#pragma unroll
    for (int i = 0; i < U * W; ++i) x[k][i] = widen<typename Red::Value>(raw[k][i / W][i % W]);
}

template <class T, class Red>
WT_DEVICE void fold_chunk(const ReduceArgs<Red>& a, int64_t base, int64_t chunk, typename Red::Center center,
                          typename Red::State& state) {
  using Value = typename Red::Value;
  constexpr int I = Red::kInputs, W = kPackedWidth<T>;
  const ChunkPlace at[1] = {place_chunk<T>(a, base, chunk)};
  if (at[0].whole) {
    Value x[I][W];
    load_chunks<T, 1>(a, at, x);
    return take_all(a.red, state, x, at[0].first, center);
  }
  const int64_t begin = max(at[0].first, int64_t(0)), end = min(at[0].first + W, a.row);
  for (int64_t i = begin; i < end; ++i) {
    Value x[I];
#pragma unroll
    for (int k = 0; k < I; ++k) x[k] = widen<Value>(reinterpret_cast<const T*>(a.data[k])[at[0].run + i]);
    a.red.one(state, x, i, center);
  }
}

template <class T, class Red>
WT_DEVICE void fold_row(const ReduceArgs<Red>& a, int64_t base, int64_t begin, int64_t end, int lane,
                        typename Red::Center center, typename Red::State& state) {
  using Value = typename Red::Value;
  constexpr int I = Red::kInputs, W = kPackedWidth<T>, kWanted = W >= 16 ? 1 : W == 2 ? 4 : 16 / W;
  constexpr int U = Red::kIndexed ? 1 : I == 2 && kWanted > 2 ? 2 : kWanted;
  int64_t q = begin + lane;
  for (; U > 1 && q + int64_t(U - 1) * a.lanes < end; q += int64_t(U) * a.lanes) {
    ChunkPlace at[U];
    bool whole = true;
#pragma unroll
    for (int u = 0; u < U; ++u) {
      at[u] = place_chunk<T>(a, base, q + int64_t(u) * a.lanes);
      whole = whole && at[u].whole;
    }
    if (whole) {
      Value x[I][U * W];
      load_chunks<T, U>(a, at, x);
      if constexpr (U > 1) a.red.fold(state, x, center);
      continue;
    }
#pragma unroll 1
    for (int u = 0; u < U; ++u) fold_chunk<T>(a, base, q + int64_t(u) * a.lanes, center, state);
  }
#pragma unroll 1
  for (; q < end; q += a.lanes) fold_chunk<T>(a, base, q, center, state);
}

template <class Red>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_rows_kernel(const __grid_constant__ ReduceArgs<Red> a) {
  using State = typename Red::State;
  __shared__ State shared[kReduceThreads / kWarp];
  const int lane = threadIdx.x % a.lanes;
  const int64_t output = int64_t(blockIdx.x) * (kReduceThreads / a.lanes) + threadIdx.x / a.lanes;
  const bool mine = output < a.outputs;
  const auto places = a.kept(mine ? output : 0);
  State state = a.red.identity();
  const int64_t begin = blockIdx.y * a.per_part;
  const int64_t end = !mine ? begin : min(a.count, begin + a.per_part);
  const int64_t to = places.of[1] + a.to;
  const auto center = a.red.center(to);
  dispatch(typename Red::Fast{}, a.dtype, [&](auto t) {
    fold_row<typename decltype(t)::type>(a, places.of[0], begin, end, lane, center, state);
  });
  state = group_join(
      state, a.lanes, a.red.identity(), [&](const State& x, const State& y) { return a.red.join(x, y); },
      shared);
  if (mine && lane == 0) a.put(state, to);
}

// ---- columns ----
inline constexpr int kColumnRun = 4;    // outputs of a thread where the input's type is fast
inline constexpr int kColumnLoads = 4;  // rows that a thread has in flight

// load(x, at): the values of N rows that lie at[0], ..., at[N - 1] from the first.
template <class Red, int W, class Load>
WT_DEVICE void fold_columns(const ReduceArgs<Red>& a, int64_t begin, int64_t end, int ty, int step,
                            const typename Red::Center (&center)[W], typename Red::State (&state)[W],
                            Load&& load) {
  constexpr int I = Red::kInputs, U = Red::kIndexed ? 1 : kColumnLoads;
  using Value = typename Red::Value;
  auto take = [&](int64_t r, auto rows) {
    constexpr int N = decltype(rows)::value;
    int64_t at[N];
#pragma unroll
    for (int u = 0; u < N; ++u) {
      const int64_t k = r + int64_t(u) * step;
      at[u] = a.reduced.ndim == 1 ? k * a.reduced.strides[0][0] : a.reduced(k).of[0];
    }
    Value x[W][I][N];
    load(x, at);
#pragma unroll
    for (int w = 0; w < W; ++w) take_all(a.red, state[w], x[w], r, center[w]);
  };
  int64_t r = begin + ty;
  if constexpr (U > 1)
    for (; r + int64_t(U - 1) * step < end; r += int64_t(U) * step) take(r, std::integral_constant<int, U>{});
#pragma unroll 1
  for (; r < end; r += step) take(r, std::integral_constant<int, 1>{});
}

template <class Red, int W>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_columns_kernel(const __grid_constant__ ReduceArgs<Red> a) {
  using State = typename Red::State;
  using Value = typename Red::Value;
  constexpr int I = Red::kInputs;
  const int tx = threadIdx.x % a.lanes, ty = threadIdx.x / a.lanes;
  const int64_t output = int64_t(blockIdx.x) * a.lanes + tx;
  const bool mine = output < a.outputs;
  const auto places = a.kept(mine ? output : 0);
  const int64_t begin = blockIdx.y * a.per_part;
  const int64_t end = !mine ? begin : min(a.count, begin + a.per_part);
  State state[W];
  typename Red::Center center[W];
  const int64_t to = places.of[1] + a.to, next = W == 1 ? 0 : a.row;  // between outputs of the run
#pragma unroll
  for (int w = 0; w < W; ++w) {
    state[w] = a.red.identity();
    center[w] = a.red.center(to + w * next);
  }
  const int step = kReduceThreads / a.lanes;
  auto run = [&](auto types) {
    fold_columns<Red, W>(a, begin, end, ty, step, center, state, [&](auto& x, const auto& at) {
      constexpr int U = std::extent_v<std::remove_reference_t<decltype(at)>>;
      dispatch(types, a.dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        Packed<T, W> raw[I][U];
#pragma unroll
        for (int k = 0; k < I; ++k)
#pragma unroll
          for (int u = 0; u < U; ++u)
            raw[k][u] = load_packed<W>(reinterpret_cast<const T*>(a.data[k]) + places.of[0] + at[u]);
#pragma unroll
        for (int k = 0; k < I; ++k)
#pragma unroll
          for (int u = 0; u < U; ++u)
#pragma unroll
            for (int w = 0; w < W; ++w) x[w][k][u] = widen<Value>(raw[k][u][w]);
      });
    });
  };
  // The dtype is looked at by element, or once.
  if constexpr (W == 1)
    run(AllTypes{});
  else
    dispatch(typename Red::Fast{}, a.dtype, [&](auto t) { run(Types<typename decltype(t)::type>{}); });
  columns_join(state, a.lanes, [&](const State& x, const State& y) { return a.red.join(x, y); });
  if (mine && ty == 0)
#pragma unroll
    for (int w = 0; w < W; ++w) a.put(state[w], to + w * next);
}

// ---- the second launch ----
template <class Red>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_parts_kernel(Red red, const typename Red::State* parts, int64_t count, int64_t outputs,
                        int across) {
  const int tx = threadIdx.x % across, ty = threadIdx.x / across;
  const int64_t output = int64_t(blockIdx.x) * across + tx;
  typename Red::State state[1] = {red.identity()};
  if (output < outputs)
    for (int64_t p = ty; p < count; p += kReduceThreads / across)
      state[0] = red.join(state[0], parts[p * outputs + output]);
  using State = typename Red::State;
  columns_join(state, across, [&](const State& x, const State& y) { return red.join(x, y); });
  if (output < outputs && ty == 0) red.store(state[0], output);
}

// ---- launching ----
// One way through a reduction, all but the parts and the data settled.
template <class Red>
struct ReduceWay {
  ReduceArgs<Red> args;
  int kind = 0;  // 0 rows, 1 columns, 4 runs of four columns
  int64_t blocks = 0, parts = 1;
};

template <class Red> inline constexpr bool kHasFast = !std::is_same_v<typename Red::Fast, Types<>>;
template <class Red>
bool fast_dtype([[maybe_unused]] DType dtype) {
  if constexpr (kHasFast<Red>) return try_dispatch(typename Red::Fast{}, dtype, [](auto) {});
  return false;
}

// The map of `n` dims into a.kept (and the output) or a.reduced, the last one in runs of `run`.
template <int Count>
void set_reduce_map(IndexMap<Count>& map, const ReduceDim* dims, int n, int64_t run) {
  int64_t sizes[kIndexDims], numel = 1;
  for (int d = 0; d < n; ++d) {
    sizes[d] = d == n - 1 ? dims[d].size / run : dims[d].size;
    map.strides[0][d] = d == n - 1 ? dims[d].stride * run : dims[d].stride;
    if constexpr (Count == 2) map.strides[1][d] = d == n - 1 ? dims[d].to * run : dims[d].to;
    numel *= sizes[d];
  }
  map.set_dims(n, sizes, numel);
}

inline bool columns_in_runs(const ReduceGeometry& g, int inputs) {
  const int64_t item = static_cast<int64_t>(itemsize(g.dtype)), run = kColumnRun;
  const ReduceDim& last = g.kept[g.kept_dims - 1];
  if (last.stride != 1 || last.size % run) return false;
  for (int d = 0; d + 1 < g.kept_dims; ++d)
    if (g.kept[d].stride % run) return false;
  for (int d = 0; d < g.reduced_dims; ++d)
    if (g.reduced[d].stride % run) return false;
  for (int k = 0; k < inputs; ++k)
    if (!is_aligned(g.data[k], static_cast<size_t>(item * run < 16 ? item * run : 16))) return false;
  return true;
}

// Parts for `blocks` blocks of which every thread takes `steps` loads: none where there is enough to do.
inline int64_t reduce_parts(int64_t blocks, int64_t steps) {
  int64_t parts = 1;
  if (blocks < kEnoughBlocks) parts = ceil_div(kWantedBlocks, blocks < 1 ? 1 : blocks);
  if (parts > steps / 2) parts = steps / 2;  // a part has two steps at least
  if (parts < ceil_div(steps, kMostSteps)) parts = ceil_div(steps, kMostSteps);
  return parts < 1 ? 1 : parts > kMaxGridY ? kMaxGridY : parts;
}

template <class Red>
void go_by_rows(ReduceWay<Red>& way, const ReduceGeometry& g) {
  ReduceArgs<Red>& a = way.args;
  const ReduceDim& row = g.reduced[g.reduced_dims - 1];
  const int64_t item = static_cast<int64_t>(itemsize(g.dtype)), width = 16 / item;
  bool aligned = is_aligned(g.data[0], 16) && row.size % width == 0;
  for (int d = 0; d < g.kept_dims; ++d) aligned = aligned && g.kept[d].stride % width == 0;
  for (int d = 0; d + 1 < g.reduced_dims; ++d) aligned = aligned && g.reduced[d].stride % width == 0;
  const int64_t chunks = ceil_div(row.size + (aligned ? 0 : width - 1), width);
  way.kind = 0;
  a.row = row.size;
  a.one_row = g.reduced_dims == 1;
  a.chunks = FastDivide(chunks);
  set_reduce_map(a.reduced, g.reduced, g.reduced_dims - 1, 1);
  set_reduce_map(a.kept, g.kept, g.kept_dims, 1);
  a.count = chunks * (row.size ? g.reduced_count / row.size : 0);
  a.wide = a.count > INT32_MAX / 2;  // chunks beyond the end are divided too
  a.outputs = g.kept_count;
  const int loads = width >= 4 ? 2 : 4;
  a.lanes = ceil_power_of_2(ceil_div(a.count, loads));
  if (a.lanes > kReduceThreads) a.lanes = kReduceThreads;
  way.blocks = ceil_div(a.outputs, kReduceThreads / a.lanes);
  way.parts = reduce_parts(way.blocks, ceil_div(a.count, int64_t(a.lanes)));
}

template <class Red>
void go_by_columns(ReduceWay<Red>& way, const ReduceGeometry& g, int run) {
  ReduceArgs<Red>& a = way.args;
  const ReduceDim& last = g.kept[g.kept_dims - 1];
  way.kind = run;
  a.row = last.to;
  set_reduce_map(a.kept, g.kept, g.kept_dims, run);
  set_reduce_map(a.reduced, g.reduced, g.reduced_dims, 1);
  a.count = g.reduced_count;
  a.outputs = g.kept_count / run;
  // Threads lie across what is faster in memory.
  const int64_t step = g.reduced[g.reduced_dims - 1].stride;
  const bool down = step != 0 && (last.size == 1 || step < last.stride);
  if (down) {
    const int rows = ceil_power_of_2(ceil_div(a.count, int64_t(kColumnLoads)));
    a.lanes = kReduceThreads / (rows < kReduceThreads ? rows : kReduceThreads);
  } else {
    a.lanes = ceil_power_of_2(a.outputs);
    // Wider than a warp only where there are not enough rows to share.
    const int widest = a.count >= 8 * kColumnLoads ? kWarp : kReduceThreads;
    if (a.lanes > widest) a.lanes = widest;
  }
  way.blocks = ceil_div(a.outputs, a.lanes);
  way.parts = reduce_parts(way.blocks, ceil_div(a.count, int64_t(kReduceThreads / a.lanes)));
}

template <class Red>
void launch_reduce(const LaunchContext& ctx, const char* name, ReduceWay<Red>& way) {
  ReduceArgs<Red>& a = way.args;
  a.per_part = ceil_div(a.count, way.parts);
  const dim3 grid(unsigned(way.blocks), unsigned(way.parts)), block(kReduceThreads);
  const size_t shared = sizeof(typename Red::State) * kReduceThreads * (way.kind == 4 ? 4 : 1) / 2;
  if (way.kind == 1) return launch(ctx, name, reduce_columns_kernel<Red, 1>, grid, block, shared, a);
  if constexpr (kHasFast<Red>) {
    if (way.kind == 0)
      launch(ctx, name, reduce_rows_kernel<Red>, grid, block, 0, a);
    else
      launch(ctx, name, reduce_columns_kernel<Red, kColumnRun>, grid, block, shared, a);
  }
}

// Calls f(offset in the input, place in the output) for each of the dims that are too many for a map.
template <class F>
void for_outer_dims(const ReduceDim* dims, int count, F&& f, int64_t from = 0, int64_t to = 0) {
  if (count == 0) return f(from, to);
  for (int64_t i = 0; i < dims[0].size; ++i)
    for_outer_dims(dims + 1, count - 1, f, from + i * dims[0].stride, to + i * dims[0].to);
}

// Whether rows of memory are reduced, long enough for accesses of 16 bytes.
template <class Red>
bool suits_rows(const ReduceGeometry& g) {
  const ReduceDim& row = g.reduced[g.reduced_dims - 1];
  const int64_t width = 16 / static_cast<int64_t>(itemsize(g.dtype));
  if (row.stride != 1 || (g.reduced_dims > 1 && row.size < 2 * width)) return false;
  if constexpr (Red::kInputs == 2)
    return (reinterpret_cast<uintptr_t>(g.data[1]) - reinterpret_cast<uintptr_t>(g.data[0])) % 16 == 0;
  return true;
}

// Reduces g into what `red` stores to.
template <class Red>
void reduce(const LaunchContext& ctx, const char* name, const ReduceGeometry& given, const Red& red) {
  using State = typename Red::State;
  static_assert(sizeof(State) <= kReduceMost);
  if (given.kept_count == 0) return;
  ReduceGeometry g = given;
  // Truth is told from bytes.
  if (std::is_same_v<typename Red::Fast, Types<uint8_t>> && g.dtype == DType::Bool) g.dtype = DType::UInt8;
  if (g.reduced_count == 0) g.reduced[0] = {0, 1, 0}, g.reduced_dims = 1;
  const int kept_over = g.kept_dims > kIndexDims ? g.kept_dims - kIndexDims : 0;
  const int reduced_over = g.reduced_dims > kIndexDims ? g.reduced_dims - kIndexDims : 0;
  int64_t slices = 1;
  for (int d = 0; d < kept_over; ++d) g.kept_count /= given.kept[d].size;
  for (int d = 0; d < reduced_over; ++d) slices *= given.reduced[d].size;
  g.reduced_count /= slices;
  g.kept_dims -= kept_over;
  g.reduced_dims -= reduced_over;
  if (kept_over)
    for (int d = 0; d < g.kept_dims; ++d) g.kept[d] = given.kept[d + kept_over];
  if (reduced_over)
    for (int d = 0; d < g.reduced_dims; ++d) g.reduced[d] = given.reduced[d + reduced_over];
  ReduceWay<Red> way{};
  const bool fast = fast_dtype<Red>(g.dtype), many = kept_over || reduced_over;
  if (fast && !many && suits_rows<Red>(g))
    go_by_rows(way, g);
  else
    go_by_columns(way, g, fast && !many && columns_in_runs(g, Red::kInputs) ? kColumnRun : 1);
  ReduceArgs<Red>& a = way.args;
  a.red = red;
  a.dtype = g.dtype;
  a.total = given.kept_count;
  const int64_t parts = way.parts * slices;
  a.parts = parts == 1 ? nullptr : static_cast<State*>(ctx.scratch(size_t(parts * a.total) * sizeof(State)));
  const size_t item = itemsize(g.dtype);
  int64_t slice = 0;
  for_outer_dims(given.reduced, reduced_over, [&](int64_t along, int64_t) {
    for_outer_dims(given.kept, kept_over, [&](int64_t from, int64_t to) {
      for (int k = 0; k < Red::kInputs; ++k) a.data[k] = g.data[k] + (along + from) * int64_t(item);
      a.part = slice * way.parts;
      a.to = to;
      launch_reduce(ctx, name, way);
    });
    ++slice;
  });
  if (parts == 1) return;
  int across = ceil_power_of_2(a.total);
  if (across > kWarp) across = kWarp;
  launch(ctx, name, reduce_parts_kernel<Red>, dim3(unsigned(ceil_div(a.total, across))), dim3(kReduceThreads),
         sizeof(State) * kReduceThreads / 2, red, a.parts, parts, a.total, across);
}

}  // namespace warptape::kernels::cuda
