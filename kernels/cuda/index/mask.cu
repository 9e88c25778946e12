// What depends on how many earlier elements are set: count_nonzero, nonzero, masked_select, masked_scatter.
// Tiles count theirs, one block adds the counts up, then tiles write from where they begin. And bincount.
#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/memory.cuh"
#include "kernels/cuda/index/order.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRounds = 16;  // elements of a thread
constexpr int64_t kTile = kThreads * kRounds;
constexpr int kWarps = kThreads / kWarp;
constexpr int kSums = 1024;  // threads of the block that adds counts up

// ---- the set elements of a tile ----

// Values are looked at as unsigned numbers of their size; the sign of a float does not count.
uint64_t counted_bits(DType dtype) {
  return is_floating(dtype) ? ~uint64_t{0} >> (65 - 8 * itemsize(dtype)) : ~uint64_t{0};
}

// Bit r: whether element r * kThreads + threadIdx.x of the block's tile is set. `at(i)` is its offset.
template <class U, class At>
WT_DEVICE uint32_t set_bits(const U* x, U counted, int64_t n, At&& at) {
  const int64_t first = int64_t(blockIdx.x) * kTile + threadIdx.x;
  uint32_t bits = 0;
#pragma unroll 4
  for (int r = 0; r < kRounds; ++r) {
    const int64_t i = first + r * kThreads;
    if (i < n && (x[at(i)] & counted) != 0) bits |= 1u << r;
  }
  return bits;
}

// Calls f(element, how many before it in the tile are set) for the thread's set elements. All threads call.
template <class F>
WT_DEVICE void for_set(uint32_t bits, F&& f) {
  __shared__ int counts[kRounds * kWarps];  // in the order of elements: a warp's 32 of a round
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  unsigned set[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    set[r] = __ballot_sync(kAllLanes, bits >> r & 1);
    if (lane == 0) counts[r * kWarps + warp] = __popc(set[r]);
  }
  __syncthreads();
  if (warp == 0) {  // a running sum, four counts a lane
    constexpr int kEach = kRounds * kWarps / kWarp;
    int mine[kEach], total = 0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      mine[k] = total;
      total += counts[lane * kEach + k];
    }
    int before = total;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, before, step);
      if (lane >= step) before += other;
    }
    before -= total;
#pragma unroll
    for (int k = 0; k < kEach; ++k) counts[lane * kEach + k] = before + mine[k];
  }
  __syncthreads();
  const unsigned earlier = (1u << lane) - 1;
#pragma unroll
  for (int r = 0; r < kRounds; ++r)
    if (bits >> r & 1)
      f(int64_t(blockIdx.x) * kTile + r * kThreads + threadIdx.x,
        counts[r * kWarps + warp] + __popc(set[r] & earlier));
}

// ---- counts of tiles ----

template <class U>
__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ IndexMap<1, kManyDims> map,
                                                         const U* x, U counted, int64_t n, int64_t* counts) {
  __shared__ int shared[kWarps];
  const uint32_t bits = set_bits(x, counted, n, [&](int64_t i) { return map(i).of[0]; });
  const int total = block_reduce(__popc(bits), 0, SumOf{}, shared);
  if (threadIdx.x == 0) counts[blockIdx.x] = total;
}

// counts[i] becomes the sum of those before it; *total, where wanted, that of all. One block.
__global__ void __launch_bounds__(kSums) running_sum_kernel(int64_t* counts, int64_t n, int64_t* total) {
  __shared__ int64_t warps[kSums / kWarp];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  int64_t carried = 0;
  for (int64_t first = 0; first < n; first += kSums) {
    const int64_t i = first + threadIdx.x, own = i < n ? counts[i] : 0;
    int64_t sum = own;  // up to and with this thread's, within the warp
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int64_t other = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += other;
    }
    __syncthreads();  // the last round's reads are over
    if (lane == kWarp - 1) warps[warp] = sum;
    __syncthreads();
    int64_t before = 0, all = 0;
    for (int w = 0; w < kSums / kWarp; ++w) {
      if (w < warp) before += warps[w];
      all += warps[w];
    }
    if (i < n) counts[i] = carried + before + sum - own;
    carried += all;
  }
  if (total && threadIdx.x == 0) *total = carried;
}

// How many elements are set before each tile.
int64_t* count_tiles(const LaunchContext& ctx, const char* op, const View& x, int64_t* total) {
  const int64_t n = x.numel(), tiles = ceil_div(n, kTile);
  auto* counts = static_cast<int64_t*>(ctx.scratch(size_t(tiles + 1) * sizeof(int64_t)));
  IndexMap<1, kManyDims> map;
  make_index_map(map, {&x});
  dispatch_size(SizeTypes{}, itemsize(x.dtype), [&](auto t) {
    using U = typename decltype(t)::type;
    launch(ctx, op, count_kernel<U>, dim3(unsigned(tiles)), dim3(kThreads), 0, map, x.as<const U>(),
           U(counted_bits(x.dtype)), n, counts);
  });
  launch(ctx, op, running_sum_kernel, dim3(1), dim3(kSums), 0, counts, tiles, total);
  return counts;
}

void count_nonzero(const LaunchContext& ctx, const View& out, const View& x) {
  count_tiles(ctx, "count_nonzero", x, out.as<int64_t>());
}

// ---- nonzero ----

struct Coordinates {
  int ndim;
  bool wide;
  FastDivide sizes[kManyDims];
};

template <class U>
__global__ void __launch_bounds__(kThreads)
    nonzero_kernel(const __grid_constant__ IndexMap<1, kManyDims> map, const __grid_constant__ Coordinates c,
                   const U* x, U counted, int64_t n, const int64_t* before, int64_t* out) {
  const uint32_t bits = set_bits(x, counted, n, [&](int64_t i) { return map(i).of[0]; });
  for_set(bits, [&](int64_t i, int rank) {
    int64_t* to = out + (before[blockIdx.x] + rank) * c.ndim;
    for (int d = c.ndim - 1; d >= 0; --d) {
      const int64_t q = c.wide ? c.sizes[d].quotient<true>(i) : c.sizes[d].quotient<false>(i);
      to[d] = i - q * c.sizes[d].divisor;
      i = q;
    }
  });
}

void nonzero(const LaunchContext& ctx, const View& out, const View& x) {
  const int64_t n = x.numel();
  if (n == 0 || x.ndim == 0) return;
  const int64_t* before = count_tiles(ctx, "nonzero", x, nullptr);
  IndexMap<1, kManyDims> map;
  make_index_map(map, {&x});
  Coordinates c{};
  c.ndim = x.ndim;
  c.wide = n > INT32_MAX;
  for (int d = 0; d < x.ndim; ++d) c.sizes[d] = FastDivide(x.sizes[d]);
  dispatch_size(SizeTypes{}, itemsize(x.dtype), [&](auto t) {
    using U = typename decltype(t)::type;
    launch(ctx, "nonzero", nonzero_kernel<U>, dim3(unsigned(ceil_div(n, kTile))), dim3(kThreads), 0, map, c,
           x.as<const U>(), U(counted_bits(x.dtype)), n, before, out.as<int64_t>());
  });
}

// ---- masked_select, masked_scatter: between x, of any strides, and elements one after the other ----

struct MaskedArgs {
  IndexMap<2, kManyDims> map;  // offsets in x and in the mask
  void *x, *packed;
  const uint8_t* mask;
  int64_t n;
  const int64_t* before;
};

template <class U, bool Selects>
__global__ void __launch_bounds__(kThreads) masked_kernel(const __grid_constant__ MaskedArgs a) {
  const uint32_t bits = set_bits(a.mask, uint8_t(1), a.n, [&](int64_t i) { return a.map(i).of[1]; });
  for_set(bits, [&](int64_t i, int rank) {
    U* x = static_cast<U*>(a.x) + a.map(i).of[0];
    U* packed = static_cast<U*>(a.packed) + a.before[blockIdx.x] + rank;
    if constexpr (Selects)
      *packed = *x;
    else
      *x = *packed;
  });
}

template <bool Selects>
void run_masked(const LaunchContext& ctx, const char* op, const View& x, const View& mask, void* packed) {
  MaskedArgs a{};
  a.n = mask.numel();
  if (a.n == 0) return;
  a.before = count_tiles(ctx, op, mask, nullptr);
  View like = x;  // the mask says the shape
  like.sizes = mask.sizes;
  make_index_map(a.map, {&like, &mask});
  a.x = x.data;
  a.packed = packed;
  a.mask = mask.as<const uint8_t>();
  dispatch_size(MoveTypes{}, itemsize(x.dtype), [&](auto t) {
    launch(ctx, op, masked_kernel<typename decltype(t)::type, Selects>, dim3(unsigned(ceil_div(a.n, kTile))),
           dim3(kThreads), 0, a);
  });
}

void masked_select(const LaunchContext& ctx, const View& out, const View& x, const View& mask) {
  run_masked<true>(ctx, "masked_select", x, mask, out.data);
}
void masked_scatter(const LaunchContext& ctx, const View& self, const View& mask, const View& src) {
  run_masked<false>(ctx, "masked_scatter", self, mask, src.data);
}

// ---- bincount ----

constexpr int64_t kSharedBins = 4096;

// Integers may be added in any order. Few bins are counted in shared memory first.
template <bool Shared>
__global__ void __launch_bounds__(kThreads)
    bincount_kernel(unsigned long long* out, int64_t bins, const int64_t* x, int64_t n, FaultSink sink) {
  __shared__ unsigned int counts[Shared ? kSharedBins : 1];
  if constexpr (Shared) {
    for (int64_t b = threadIdx.x; b < bins; b += kThreads) counts[b] = 0;
    __syncthreads();
  }
  const int64_t first = int64_t(blockIdx.x) * kTile + threadIdx.x;
  for (int r = 0; r < kRounds; ++r) {
    const int64_t i = first + r * kThreads;
    if (i >= n) break;
    const int64_t bin = x[i];
    if (bin < 0 || bin >= bins)
      sink.report(bin, bins);
    else if constexpr (Shared)
      atomicAdd(counts + bin, 1u);
    else
      atomicAdd(out + bin, 1ull);
  }
  if constexpr (Shared) {
    __syncthreads();
    for (int64_t b = threadIdx.x; b < bins; b += kThreads)
      if (counts[b]) atomicAdd(out + b, static_cast<unsigned long long>(counts[b]));
  }
}

void bincount(const LaunchContext& ctx, const View& out, const View& x, const View& weights) {
  const char* op = "bincount";
  const int64_t n = x.numel(), bins = out.numel();
  if (bins == 0) return;
  use_device(ctx.device_index);
  check(
      cudaMemsetAsync(out.data, 0, size_t(bins) * itemsize(out.dtype), static_cast<cudaStream_t>(ctx.stream)),
      op);
  const auto* values = x.as<const int64_t>();
  if (!weights.data) {
    const auto kernel = bins <= kSharedBins ? bincount_kernel<true> : bincount_kernel<false>;
    launch(ctx, op, kernel, dim3(unsigned(ceil_div(n, kTile))), dim3(kThreads), 0,
           out.as<unsigned long long>(), bins, values, n, fault_sink(ctx, op));
    return;
  }
  OrderedWrite w{};
  w.dtype = out.dtype;
  w.mode = ScatterMode::Add;
  w.to = out.data;
  w.to_step = 1;
  w.from = weights.data;
  w.bound = uint64_t(bins);
  w.rows.set_dims(1, &n, n);
  w.rows.strides[0][0] = 1;
  for (; w.first < n; w.first += kMostPositions) {
    const int64_t some = n - w.first < kMostPositions ? n - w.first : kMostPositions;
    const Sorted pairs = pairs_of_index(ctx, op, values + w.first, 1, some, bins, -1);
    write_ordered(ctx, op, sort_pairs(ctx, op, pairs, some, bits_of(w.bound)), some, w);
  }
}

}  // namespace

WT_KERNEL(count_nonzero, count_nonzero);
WT_KERNEL(nonzero, nonzero);
WT_KERNEL(masked_select, masked_select);
WT_KERNEL(masked_scatter, masked_scatter);
WT_KERNEL(bincount, bincount);

}  // namespace warptape::kernels::cuda
