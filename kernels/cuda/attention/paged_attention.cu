// Paged attention: the choice of the kernel, the one for float32, for heads that tensor cores do not serve
// (paged_mma.cu), and what merges splits. A block has one token and a key head, and reads each page once for
// all of its query heads, of which a warp has one: keys of a page lie across its lanes for scores, the head
// size for outputs. Pages come to shared memory 16 bytes a thread, the next one while a block works on this.
//
// Sums run in an order that only absolute key positions decide: pages from position 0, an online softmax
// within each split, splits merged in order. Where a call has few blocks, several share its splits, and
// a second kernel merges what these leave, with the same numbers. Prompts run token by token: a tile of
// queries would multiply values that some of its queries do not see, and these may be infinite.
#include "kernels/attention/paged_attention.h"

#include "kernels/cuda/attention/paged_rows.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

inline constexpr int kMostWarps = 8, kMostMergeThreads = 256;
inline constexpr size_t kMostShared = 96 * 1024;           // of a block: two fit on a multiprocessor
inline constexpr size_t kMostPartial = size_t{256} << 20;  // bytes of what splits leave

// Pages of one key head in shared memory: keys, then values, each as it lies in the cache. Without buffers
// they are read where they lie.
template <class T>
struct PageBuffers {
  char* memory;
  int64_t half;  // bytes of keys, and of values: a multiple of 16, for a page has 32 tokens
  int count;

  WT_DEVICE PageBuffers(void* at, int d, int buffers)
      : memory(static_cast<char*>(at)), half(int64_t(d) * kPage * sizeof(T)), count(buffers) {}
  WT_DEVICE char* end() const { return memory + count * 2 * half; }
  WT_DEVICE char* page(int turn) const { return memory + turn * 2 * half; }
  // By all threads of the block; to be waited for.
  WT_DEVICE void fetch(int turn, const T* keys, const T* values) const {
    char* to = page(turn);
    for (int64_t i = int64_t(threadIdx.x) * 16; i < half; i += blockDim.x * 16) {
      copy_async<16>(to + i, reinterpret_cast<const char*>(keys) + i);
      copy_async<16>(to + half + i, reinterpret_cast<const char*>(values) + i);
    }
  }
};

// A warp's query head and its sums. Lanes have every 32nd element of what is [D].
template <class T>
struct PlainRow {
  const PagedArgs& a;
  const SeenKeys& seen;
  float *q, *sums, *total, *weights;  // [D], of the split and of those before it [D], [kPage]
  float top = kLowest, lane_sum = 0;
  RunningSum all;

  WT_DEVICE PlainRow(const PagedArgs& args, const SeenKeys& keys, float* memory)
      : a(args),
        seen(keys),
        q(memory),
        sums(memory + a.d),
        total(memory + 2 * a.d),
        weights(memory + 3 * a.d) {}
  WT_DEVICE static int64_t floats(int d) { return 3 * int64_t(d) + kPage; }

  template <class Q>
  WT_DEVICE void begin(const Q* query) {
    for (int i = threadIdx.x % kWarp; i < a.d; i += kWarp) {
      q[i] = __fmul_rn(widen<float>(query[i]), a.scale);
      sums[i] = total[i] = 0;
    }
    __syncwarp();
  }

  // Takes a page in, the `at`-th of one head in the cache.
  WT_DEVICE void take_page(int index, int64_t at, const T* keys, const T* values) {
    const int lane = threadIdx.x % kWarp, d = a.d;
    const int begin = seen.begin_in(index), end = seen.end_in(index);
    const bool shown = lane >= begin && lane < end;
    float x = 0;
#pragma unroll 8
    for (int i = 0; i < d; ++i) x = fma(q[i], widen<float>(keys[i * kPage + lane]), x);
    if (a.key_scales && shown) x = __fmul_rn(x, a.key_scales[at * kPage + lane]);
    x = shown ? a.capped(x) : kLowest;  // whatever lies there, not even a NaN
    const float found = warp_reduce(x > kLowest ? x : kLowest, MaximumOf{});
    float shrink = 1;
    if (found > top) {
      shrink = power_of_two(top - found);
      top = found;
    }
    float weight = power_of_two(x - (top == kLowest ? 0.f : top));
    lane_sum = fma(lane_sum, shrink, weight);
    if (a.value_scales && shown) weight = __fmul_rn(weight, a.value_scales[at * kPage + lane]);
    weights[lane] = weight;
    __syncwarp();
    for (int i = lane; i < d; i += kWarp) {
      float sum = __fmul_rn(sums[i], shrink);
#pragma unroll 8
      for (int j = begin; j < end; ++j) sum = fma(weights[j], widen<float>(values[j * d + i]), sum);
      sums[i] = sum;
    }
    __syncwarp();  // before the weights are written again
  }

  // The split is over: its sums go to `partial`, or to those of the splits before it.
  WT_DEVICE void end_split(float* partial) {
    const float sum = warp_reduce(lane_sum, SumOf{});
    const int lane = threadIdx.x % kWarp;
    if (partial) {
      if (lane == 0) partial[0] = top, partial[1] = sum;
      for (int i = lane; i < a.d; i += kWarp) partial[kPartialHead + i] = sums[i];
    } else {
      const MergeWeights w = all.merge(top, sum);
      for (int i = lane; i < a.d; i += kWarp) total[i] = w.merge(total[i], sums[i]);
    }
    for (int i = lane; i < a.d; i += kWarp) sums[i] = 0;
    top = kLowest, lane_sum = 0;
  }
  template <class Q>
  WT_DEVICE void store(Q* to, int64_t head) const {
    const float factor = all.factor(a.sink(head));
    for (int i = threadIdx.x % kWarp; i < a.d; i += kWarp) to[i] = finished<Q>(total[i], factor);
  }
};

// Blocks: tokens by x, key heads and as many of their query heads as there are warps by y, and those that
// share the splits by z. Shared memory: pages, then that of each warp's row.
template <class Q, class T>
__global__ void __launch_bounds__(kMostWarps* kWarp) paged_plain(const __grid_constant__ PagedArgs a) {
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const int64_t token = blockIdx.x, key_head = blockIdx.y % a.key_heads;
  const int64_t r = blockIdx.y / a.key_heads * warps + warp, head = key_head * a.group + r;
  const bool has_row = r < a.group;  // a warp without a row copies only
  const PageBuffers<T> buffers(dynamic_shared<char>(), a.d, a.buffers);
  const SeenKeys seen(a, token, key_head);
  PlainRow<T> row(a, seen, reinterpret_cast<float*>(buffers.end()) + warp * PlainRow<T>::floats(a.d));
  if (has_row) row.begin(a.query<Q>(token, head));
  PageWalk walk(seen, int(blockIdx.z), int(gridDim.z));
  auto keys = [&](int64_t at) { return static_cast<const T*>(a.keys) + at * a.d * kPage; };
  auto values = [&](int64_t at) { return static_cast<const T*>(a.values) + at * a.d * kPage; };
  NextPage next(walk, seen);
  int64_t places[2] = {-1, -1};  // of the pages in the buffers
  auto fetch = [&](int turn) {
    const int64_t at = next.walk.has_page() ? next.place(seen, a.faults) : -1;
    if (at >= 0 && a.buffers) buffers.fetch(turn, keys(at), values(at));
    commit_copies();
    (turn ? places[1] : places[0]) = at;
    next.next(seen);
  };
  fetch(0);
  if (a.buffers > 1) fetch(1);
  for (int turn = 0; walk.has_page(); walk.next()) {
    if (a.buffers > 1)
      wait_copies<1>();
    else
      wait_copies<0>();
    __syncthreads();  // all threads' copies of this page are there
    const int64_t at = turn ? places[1] : places[0];
    if (has_row && at >= 0) {
      const T* page = reinterpret_cast<const T*>(buffers.page(turn));
      row.take_page(walk.page, at, a.buffers ? page : keys(at), a.buffers ? page + a.d * kPage : values(at));
    }
    if (has_row && walk.ends_split())
      row.end_split(a.partial ? a.partial_of(token, head, walk.split()) : nullptr);
    __syncthreads();  // before its buffer is filled again
    fetch(turn);
    if (a.buffers > 1) turn ^= 1;
  }
  wait_copies<0>();
  if (has_row && !a.partial) row.store(a.output<Q>(token, head), head);
}

// A block has a token and a query head, a warp 32 elements of it at once. Lanes have 32 splits: the largest
// score before each by a scan, and from that the weights that merging one after the other would find. Sums
// come to a place of each thread's in shared memory: from registers the compiler would ask for one by one.
template <class Q>
__global__ void __launch_bounds__(kMostMergeThreads) paged_merge(const __grid_constant__ PagedArgs a) {
  const int lane = threadIdx.x % kWarp;
  const int64_t token = blockIdx.x, head = blockIdx.y;
  const SeenKeys seen(a, token, head / a.group);
  const int end = seen.end_split();
  float* mine = dynamic_shared<float>() + threadIdx.x;
  for (int from = threadIdx.x - lane; from < a.d; from += blockDim.x) {
    const int column = min(from + lane, a.d - 1);
    RunningSum all;
    float value = 0;
    for (int first = seen.first_split(); first < end; first += kWarp) {
      const float* parts = a.partial_of(token, head, first);
      for (int i = 0; i < kWarp; ++i)
        copy_async<4>(mine + i * int(blockDim.x), parts + i * a.width + kPartialHead + column,
                      first + i < end ? 4 : 0);
      commit_copies();
      const bool there = first + lane < end;
      const float sum = there ? parts[lane * a.width + 1] : 0.f;
      const float top = sum == 0 ? kLowest : parts[lane * a.width];
      float now = fmaxf(top, all.top);
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const float other = __shfl_up_sync(kAllLanes, now, step);
        if (lane >= step) now = fmaxf(now, other);
      }
      float before = __shfl_up_sync(kAllLanes, now, 1);
      if (lane == 0) before = all.top;
      const MergeWeights weights = merge_weights(top, sum, before, now);
      all.top = __shfl_sync(kAllLanes, now, kWarp - 1);
      wait_copies<0>();
#pragma unroll
      for (int i = 0; i < kWarp; ++i) {
        const MergeWeights w{__shfl_sync(kAllLanes, weights.old, i),
                             __shfl_sync(kAllLanes, weights.added, i)};
        all.sum = w.merge(all.sum, __shfl_sync(kAllLanes, sum, i));
        value = w.merge(value, mine[i * int(blockDim.x)]);
      }
    }
    if (from + lane < a.d) a.output<Q>(token, head)[column] = finished<Q>(value, all.factor(a.sink(head)));
  }
}

template <class Q, class T>
void attend_plain(const LaunchContext& ctx, PagedArgs a, DType queries, int64_t tokens) {
  const size_t page = 2 * sizeof(T) * size_t(a.d) * kPage, each = sizeof(float) * PlainRow<T>::floats(a.d);
  const bool copies = is_aligned(a.keys, 16) && is_aligned(a.values, 16);
  a.buffers = !copies || page + each > kMostShared ? 0 : 2 * page + each > kMostShared ? 1 : 2;
  const size_t pages = size_t(a.buffers) * page;
  int warps = min(a.group, kMostWarps);
  while (warps > 1 && pages + size_t(warps) * each > kMostShared) --warps;
  const int64_t blocks = a.key_heads * ceil_div(a.group, warps);
  const unsigned sharing = share_splits(ctx, a, tokens, blocks);
  launch(ctx, "_paged_attention", paged_plain<Q, T>, dim3(unsigned(tokens), unsigned(blocks), sharing),
         warps * kWarp, pages + size_t(warps) * each, a);
  if (a.partial) merge_splits(ctx, a, queries, tokens);
}

// From the dtypes of q, or k and v, and of the pages to types.
template <class F>
void dispatch_pages(DType q, DType pages, F&& f) {
  dispatch(Types<float, BFloat16>{}, q, [&](auto t) {
    if (pages == DType::Int8)
      f(t, Tag<int8_t>{});
    else
      f(t, t);
  });
}

void paged_attention(const LaunchContext& ctx, const View& out, const PagedAttentionPlan& plan) {
  const PagedCacheView& c = plan.cache;
  const int d = int(plan.q.sizes[2]);
  const PagedArgs a{plan.q.data,
                    out.data,
                    plan.q.strides[0],
                    plan.q.strides[1],
                    out.strides[0],
                    out.strides[1],
                    c.keys.data,
                    c.values.data,
                    c.key_scales.as<const float>(),
                    c.value_scales.as<const float>(),
                    plan.page_table,
                    plan.starts,
                    plan.lengths,
                    plan.max_pages,
                    plan.sequences,
                    c.keys.sizes[0],
                    c.keys.sizes[1],
                    plan.window,
                    int(plan.q.sizes[1] / c.keys.sizes[1]),
                    d,
                    float(plan.scale) * kExponents,
                    float(plan.cap) * kExponents,
                    plan.sinks,
                    0,
                    int(ceil_div(plan.max_pages, kSplitPages)),
                    kPartialHead + int(ceil_div(d, 4)) * 4,
                    nullptr,
                    fault_sink(ctx, "_paged_attention")};
  const int64_t tokens = plan.q.sizes[0];
  if (attend_by_mma(ctx, a, plan.q.dtype, c.keys.dtype, tokens)) return;
  dispatch_pages(plan.q.dtype, c.keys.dtype, [&](auto q, auto t) {
    attend_plain<typename decltype(q)::type, typename decltype(t)::type>(ctx, a, plan.q.dtype, tokens);
  });
}

// ---- storing: one warp a token and key head ----

struct StoreArgs {
  const void *k, *v;                         // [N, K, D]
  int64_t k_token, k_head, v_token, v_head;  // strides
  void *keys, *values;
  float *key_scales, *value_scales;  // or null
  const int64_t* slots;
  int64_t tokens, heads, bound;
  int d;
  FaultSink faults;
};

// x [D] to elements `step` apart, as values of T; returns the scale for int8.
template <class Q, class T>
WT_DEVICE float quantise(const Q* x, int d, T* to, int64_t step) {
  const int lane = threadIdx.x % kWarp;
  if constexpr (std::is_same_v<Q, T>) {
    for (int i = lane; i < d; i += kWarp) to[i * step] = x[i];
    return 1;
  } else {
    float most = 0;
    for (int i = lane; i < d; i += kWarp) most = maximum(abs(widen<float>(x[i])), most);
    most = warp_reduce(most, MaximumOf{});
    // What cannot be scaled, infinite or NaN, makes the scale a NaN and so whoever reads it.
    const float factor = most > 0 ? 127 / most : 0;
    for (int i = lane; i < d; i += kWarp) {
      const float y = round(widen<float>(x[i]) * factor);
      to[i * step] = T(y >= -127 && y <= 127 ? y : 0);
    }
    return most < __builtin_inff() ? most / 127 : __builtin_nanf("");
  }
}

template <class Q, class T>
__global__ void store_kernel(const __grid_constant__ StoreArgs a) {
  const int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  if (i >= a.tokens * a.heads) return;
  const int64_t token = i / a.heads, head = i % a.heads, slot = a.slots[token];
  if (slot < 0 || slot >= a.bound) return a.faults.report(slot, a.bound);
  const int64_t at = slot / kPage * a.heads + head, place = slot % kPage, d = a.d;
  const float key_scale = quantise(static_cast<const Q*>(a.k) + token * a.k_token + head * a.k_head, a.d,
                                   static_cast<T*>(a.keys) + at * d * kPage + place, kPage);
  const float value_scale = quantise(static_cast<const Q*>(a.v) + token * a.v_token + head * a.v_head, a.d,
                                     static_cast<T*>(a.values) + (at * kPage + place) * d, 1);
  if (!a.key_scales || threadIdx.x % kWarp) return;
  a.key_scales[at * kPage + place] = key_scale;
  a.value_scales[at * kPage + place] = value_scale;
}

void paged_store(const LaunchContext& ctx, const PagedCacheView& c, const View& k, const View& v,
                 const View& slots) {
  const char* op = "_paged_store";
  const StoreArgs a{k.data,
                    v.data,
                    k.strides[0],
                    k.strides[1],
                    v.strides[0],
                    v.strides[1],
                    c.keys.data,
                    c.values.data,
                    c.key_scales.as<float>(),
                    c.value_scales.as<float>(),
                    slots.as<const int64_t>(),
                    k.sizes[0],
                    k.sizes[1],
                    c.keys.sizes[0] * kPage,
                    int(k.sizes[2]),
                    fault_sink(ctx, op)};
  dispatch_pages(k.dtype, c.keys.dtype, [&](auto q, auto t) {
    launch(ctx, op, store_kernel<typename decltype(q)::type, typename decltype(t)::type>,
           dim3(unsigned(ceil_div(a.tokens * a.heads, kMostWarps))), kMostWarps * kWarp, 0, a);
  });
}

}  // namespace

unsigned share_splits(const LaunchContext& ctx, PagedArgs& a, int64_t tokens, int64_t blocks) {
  const int64_t all = tokens * blocks, processors = multi_processor_count(ctx.device_index);
  const size_t bytes = sizeof(float) * size_t(tokens * a.key_heads * a.group * a.splits) * size_t(a.width);
  if (a.splits <= 1 || all >= 4 * processors || bytes > kMostPartial) return 1;
  a.partial = static_cast<float*>(ctx.scratch(bytes));
  return unsigned(min(int64_t{a.splits}, ceil_div(16 * processors, all)));
}

void merge_splits(const LaunchContext& ctx, const PagedArgs& a, DType queries, int64_t tokens) {
  const int threads = min(int(ceil_div(a.d, kWarp)) * kWarp, kMostMergeThreads);
  dispatch(Types<float, BFloat16>{}, queries, [&](auto q) {
    launch(ctx, "_paged_attention", paged_merge<typename decltype(q)::type>,
           dim3(unsigned(tokens), unsigned(a.key_heads * a.group)), threads, kWarp * threads * sizeof(float),
           a);
  });
}

WT_KERNEL(paged_attention, paged_attention);
WT_KERNEL(paged_store, paged_store);

}  // namespace warptape::kernels::cuda
