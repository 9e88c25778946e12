// Paged attention. A warp has one row, a query of one query head, and works alone: keys of a page lie across
// its lanes for scores, the head size for outputs. A block has the heads that share a key head, which read
// the same page at the same time.
//
// The order of a row's sums is that of kernels/attention/paged_attention.h: pages from position 0, an online
// softmax within each split, splits merged in order. Where a call has few rows, the splits are blocks of
// their own, and a second kernel merges what they leave, by the same function. Prompts run as single rows
// too: no product here has the tile of queries that tensor cores want.
#include "kernels/attention/paged_attention.h"

#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/memory.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

inline constexpr int kPage = int(kPagedTokens);
static_assert(kPage == kWarp);  // a lane is a key
inline constexpr int kSplitPages = int(kPagedSplit) / kPage;
inline constexpr int kMostWarps = 8;
inline constexpr size_t kMostShared = 48 * 1024;
inline constexpr size_t kMostPartial = size_t{256} << 20;  // bytes of what splits leave
inline constexpr float kLowest = -__builtin_inff();

struct AttendArgs {
  const void* q;  // [N, H, D]
  void* out;
  int64_t q_token, q_head, out_token, out_head;  // strides
  const void *keys, *values;
  const float *key_scales, *value_scales;  // or null
  const int32_t *page_table, *starts, *lengths;
  int64_t max_pages, sequences, pages, key_heads, window;
  int group, d;
  float scale;
  int splits;      // of the longest sequence that the table has room for
  float* partial;  // [N, H, splits, D + 2] where splits are blocks, else null
  FaultSink faults;
};

// Softmax-weighted sums over some keys: out has still to be divided by sum. A row that saw none has sum 0.
struct Sums {
  float top = kLowest, sum = 0;
  float* out;  // [D]; a lane has every 32nd element
};

// Adds the sums of later keys.
WT_DEVICE void merge(Sums& into, const Sums& from, int d) {
  if (from.sum == 0) return;
  const bool empty = into.sum == 0;
  const float top = empty || from.top > into.top ? from.top : into.top;
  const float old = empty ? 0.f : exp(into.top - top), added = empty ? 1.f : exp(from.top - top);
  for (int i = threadIdx.x % kWarp; i < d; i += kWarp)
    into.out[i] = empty ? from.out[i] : fma(from.out[i], added, __fmul_rn(into.out[i], old));
  into.sum = empty ? from.sum : fma(from.sum, added, __fmul_rn(into.sum, old));
  into.top = top;
}

template <class Q>
WT_DEVICE void store_row(Q* to, const Sums& s, int d) {
  const float inverse = s.sum == 0 ? 0.f : 1 / s.sum;
  // A zero has no sign, or it could tell of keys that weigh nothing.
  for (int i = threadIdx.x % kWarp; i < d; i += kWarp) to[i] = narrow<Q>(__fmul_rn(s.out[i], inverse) + 0.f);
}

// One row's way through its keys.
template <class T>
struct Row {
  const AttendArgs& a;
  int64_t sequence, head;  // of keys
  int64_t first, last;     // the keys that it sees
  const float* q;          // [D], scaled
  float* p;                // [kPage]

  // Finds the sequence of a query: the last one that starts there or before.
  WT_DEVICE Row(const AttendArgs& args, int64_t token, int64_t key_head, const float* scaled, float* weights)
      : a(args), sequence(0), head(key_head), q(scaled), p(weights) {
    for (int64_t end = a.sequences; end - sequence > 1;) {
      const int64_t middle = (sequence + end) / 2;
      (a.starts[middle] <= token ? sequence : end) = middle;
    }
    last = int64_t{a.lengths[sequence]} - a.starts[sequence + 1] + token + 1;
    last = min(last, a.max_pages * kPage);
    first = last > a.window ? last - a.window : 0;
  }
  WT_DEVICE int64_t first_split() const { return first / kPagedSplit; }
  WT_DEVICE int64_t end_split() const { return (last + kPagedSplit - 1) / kPagedSplit; }

  // Takes a page in; `lane_sum` is the lane's part of the sum.
  WT_DEVICE void page(int64_t index, Sums& s, float& lane_sum) const {
    const int lane = threadIdx.x % kWarp, d = a.d;
    const int64_t number = a.page_table[sequence * a.max_pages + index];
    if (number < 0 || number >= a.pages) return a.faults.report(number, a.pages);
    const int begin = int(max(first - index * kPage, int64_t{0}));
    const int end = int(min(last - index * kPage, int64_t{kPage}));
    const int64_t at = number * a.key_heads + head;
    const T* keys = static_cast<const T*>(a.keys) + at * d * kPage + lane;
    float x = 0;
    for (int i = 0; i < d; ++i) x = fma(q[i], widen<float>(keys[i * kPage]), x);
    if (a.key_scales) x = __fmul_rn(x, a.key_scales[at * kPage + lane]);
    if (lane < begin || lane >= end) x = kLowest;  // whatever lies there, not even a NaN
    const float found = warp_reduce(x > kLowest ? x : kLowest, MaximumOf{});
    float shrink = 1;
    if (found > s.top) {
      shrink = exp(s.top - found);
      s.top = found;
    }
    float weight = exp(x - (s.top == kLowest ? 0.f : s.top));
    lane_sum = fma(lane_sum, shrink, weight);
    if (a.value_scales && lane >= begin && lane < end)
      weight = __fmul_rn(weight, a.value_scales[at * kPage + lane]);
    p[lane] = weight;
    __syncwarp();
    const T* values = static_cast<const T*>(a.values) + at * d * kPage;
    for (int i = lane; i < d; i += kWarp) {
      float sum = __fmul_rn(s.out[i], shrink);
      for (int j = begin; j < end; ++j) sum = fma(p[j], widen<float>(values[j * d + i]), sum);
      s.out[i] = sum;
    }
    __syncwarp();  // before p is written again
  }

  WT_DEVICE void split(int64_t index, Sums& s) const {
    for (int i = threadIdx.x % kWarp; i < a.d; i += kWarp) s.out[i] = 0;
    s.top = kLowest;
    const int64_t begin = max(first / kPage, index * kSplitPages);
    const int64_t end = min((last + kPage - 1) / kPage, (index + 1) * kSplitPages);
    float lane_sum = 0;
    for (int64_t i = begin; i < end; ++i) page(i, s, lane_sum);
    s.sum = warp_reduce(lane_sum, SumOf{});
  }
};

// A block has a token (x), a key head (y) and, where splits are blocks, a split (z); a warp has every
// warps-th of the query heads. Shared memory of a warp: q, sums of a split and of all [D], weights [kPage].
template <class Q, class T>
__global__ void attend_kernel(const __grid_constant__ AttendArgs a) {
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  float* memory = dynamic_shared<float>() + warp * (3 * a.d + kPage);
  const int64_t token = blockIdx.x, key_head = blockIdx.y, heads = a.key_heads * a.group;
  const Row<T> row(a, token, key_head, memory, memory + 3 * a.d);
  Sums part, total;
  part.out = memory + a.d;
  total.out = memory + 2 * a.d;
  for (int r = warp; r < a.group; r += warps) {
    const int64_t head = key_head * a.group + r;
    const Q* q = static_cast<const Q*>(a.q) + token * a.q_token + head * a.q_head;
    __syncwarp();  // the last row's reads of q are over
    for (int i = lane; i < a.d; i += kWarp) memory[i] = __fmul_rn(widen<float>(q[i]), a.scale);
    __syncwarp();
    total.top = kLowest, total.sum = 0;
    for (int i = lane; i < a.d; i += kWarp) total.out[i] = 0;
    const int64_t begin = a.partial ? blockIdx.z : row.first_split();
    const int64_t end = a.partial ? begin + 1 : row.end_split();
    for (int64_t s = begin; s < end; ++s) {
      row.split(s, part);
      merge(total, part, a.d);
    }
    if (a.partial) {
      float* to = a.partial + ((token * heads + head) * a.splits + blockIdx.z) * (a.d + 2);
      for (int i = lane; i < a.d; i += kWarp) to[2 + i] = total.out[i];
      if (lane == 0) to[0] = total.top, to[1] = total.sum;
    } else {
      store_row(static_cast<Q*>(a.out) + token * a.out_token + head * a.out_head, total, a.d);
    }
  }
}

// One warp a row: merges what the blocks of its splits left.
template <class Q>
__global__ void merge_kernel(const __grid_constant__ AttendArgs a) {
  const int64_t token = blockIdx.x, head = blockIdx.y, heads = gridDim.y;
  float* part = a.partial + (token * heads + head) * a.splits * (a.d + 2);
  Sums total;
  total.out = dynamic_shared<float>();
  for (int s = 0; s < a.splits; ++s, part += a.d + 2) {
    Sums from{part[0], part[1], part + 2};
    merge(total, from, a.d);
  }
  if (total.sum == 0)
    for (int i = threadIdx.x; i < a.d; i += kWarp) total.out[i] = 0;
  store_row(static_cast<Q*>(a.out) + token * a.out_token + head * a.out_head, total, a.d);
}

template <class Q, class T>
void attend(const LaunchContext& ctx, AttendArgs a, int64_t tokens) {
  const char* op = "_paged_attention";
  const int64_t heads = a.key_heads * a.group;
  const size_t each = sizeof(float) * size_t(3 * a.d + kPage);
  int warps = a.group < kMostWarps ? a.group : kMostWarps;
  while (warps > 1 && size_t(warps) * each > kMostShared) --warps;
  const size_t bytes = sizeof(float) * size_t(tokens * heads * a.splits) * size_t(a.d + 2);
  const bool few = tokens * a.key_heads < 4 * multi_processor_count(ctx.device_index);
  if (few && a.splits > 1 && a.splits <= kMaxGridY && bytes <= kMostPartial)
    a.partial = static_cast<float*>(ctx.scratch(bytes));
  launch(ctx, op, attend_kernel<Q, T>,
         dim3(unsigned(tokens), unsigned(a.key_heads), a.partial ? unsigned(a.splits) : 1), warps * kWarp,
         size_t(warps) * each, a);
  if (a.partial)
    launch(ctx, op, merge_kernel<Q>, dim3(unsigned(tokens), unsigned(heads)), kWarp,
           sizeof(float) * size_t(a.d), a);
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
  const AttendArgs a{plan.q.data,
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
                     int(plan.q.sizes[2]),
                     float(plan.scale),
                     int(ceil_div(plan.max_pages, kSplitPages)),
                     nullptr,
                     fault_sink(ctx, "_paged_attention")};
  dispatch_pages(plan.q.dtype, c.keys.dtype, [&](auto q, auto t) {
    attend<typename decltype(q)::type, typename decltype(t)::type>(ctx, a, plan.q.sizes[0]);
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

WT_KERNEL(paged_attention, paged_attention);
WT_KERNEL(paged_store, paged_store);

}  // namespace warptape::kernels::cuda
