// What the kernels of paged attention share: the keys that a query sees, the pages that a block walks over,
// and how the sums of splits become one. See paged_attention.cu.
#pragma once

#include "kernels/attention/paged_attention.h"
#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/memory.cuh"
#include "kernels/cuda/common/ptx.cuh"

namespace warptape::kernels::cuda {

inline constexpr int kPage = int(kPagedTokens);
inline constexpr int kSplitPages = 8;  // of a split, whose sums are merged with those of the others in order
inline constexpr int kSplitKeys = kSplitPages * kPage;
inline constexpr float kLowest = -__builtin_inff();
inline constexpr float kExponents = 1.4426950408889634f;  // log2(e): scores are exponents of two
inline constexpr int kPartialHead = 4;  // floats before a split's sums: the largest score, the sum of weights

struct PagedArgs {
  const void* q;  // [N, H, D]
  void* out;
  int64_t q_token, q_head, out_token, out_head;  // strides
  const void *keys, *values;
  const float *key_scales, *value_scales;  // or null
  const int32_t *page_table, *starts, *lengths;
  int64_t max_pages, sequences, pages, key_heads, window;
  int group, d;
  float scale;         // of scores, which are exponents of two
  float cap;           // of these; 0 for none
  const float* sinks;  // [H], or null
  int buffers;         // pages in shared memory, where the kernel has the choice
  int splits;          // of the longest sequence that the table has room for
  int width;           // of a split's sums in `partial`: a multiple of 4
  float* partial;      // [N, H, splits, width] where splits have blocks of their own, else null
  FaultSink faults;

  WT_DEVICE float* partial_of(int64_t token, int64_t head, int split) const {
    return partial + ((token * key_heads * group + head) * splits + split) * width;
  }
  // A score as an exponent of two, from what it is before the cap: tanh by one power of two.
  WT_DEVICE float capped(float x) const {
    return cap > 0 ? cap - 2 * cap / (1 + power_of_two(x * (2 * kExponents / cap))) : x;
  }
  WT_DEVICE float sink(int64_t head) const { return sinks ? __fmul_rn(sinks[head], kExponents) : kLowest; }
  template <class Q>
  WT_DEVICE const Q* query(int64_t token, int64_t head) const {
    return static_cast<const Q*>(q) + token * q_token + head * q_head;
  }
  template <class Q>
  WT_DEVICE Q* output(int64_t token, int64_t head) const {
    return static_cast<Q*>(out) + token * out_token + head * out_head;
  }
};

// Keys [first, last) of its sequence, which a query sees. All lanes of the warp call.
struct SeenKeys {
  const int32_t* table = nullptr;  // the sequence's pages
  int64_t pages, key_heads, head;
  int first = 0, last = 0;

  WT_DEVICE SeenKeys(const PagedArgs& a, int64_t token, int64_t key_head)
      : pages(a.pages), key_heads(a.key_heads), head(key_head) {
    if (a.sequences == 0) return;
    const int64_t sequence = find(a, token);
    table = a.page_table + sequence * a.max_pages;
    const int64_t end = int64_t{a.lengths[sequence]} - a.starts[sequence + 1] + token + 1;
    last = int(max(min(end, a.max_pages * kPage), int64_t{0}));
    first = last > a.window ? int(last - a.window) : 0;
  }
  // The last sequence that starts at the token or before, of 32 candidates a round.
  WT_DEVICE static int64_t find(const PagedArgs& a, int64_t token) {
    int64_t from = 0, end = a.sequences;
    while (end - from > 1) {
      const int64_t step = ceil_div(end - from, kWarp), mine = from + threadIdx.x % kWarp * step;
      const bool begun = mine < end && a.starts[mine] <= token;
      const int count = __popc(__ballot_sync(kAllLanes, begun));
      from += (count > 0 ? count - 1 : 0) * step;
      end = min(end, from + step);
    }
    return from;
  }
  WT_DEVICE int first_split() const { return first / kSplitKeys; }
  WT_DEVICE int end_split() const { return int(ceil_div(last, kSplitKeys)); }
  // Of a page, the keys that are seen: [begin, end).
  WT_DEVICE int begin_in(int page) const { return max(first - page * kPage, 0); }
  WT_DEVICE int end_in(int page) const { return min(last - page * kPage, kPage); }
  WT_DEVICE bool sees_all(int page) const { return begin_in(page) == 0 && end_in(page) == kPage; }
};

// The pages of every `stride`-th split that a query sees, from the `start`-th on.
struct PageWalk {
  int page, end, stride;

  WT_DEVICE PageWalk(const SeenKeys& seen, int start, int stride)
      : page(max((seen.first_split() + start) * kSplitPages, seen.first / kPage)),
        end(int(ceil_div(seen.last, kPage))),
        stride(stride) {}
  WT_DEVICE bool has_page() const { return page < end; }
  WT_DEVICE void next() {
    if (++page % kSplitPages == 0) page += (stride - 1) * kSplitPages;
  }
  WT_DEVICE bool ends_split() const { return page + 1 == end || (page + 1) % kSplitPages == 0; }
  WT_DEVICE int split() const { return page / kSplitPages; }
};

// The pages that are next to be copied: the number of one is read from the table a page ahead.
struct NextPage {
  PageWalk walk;
  int number = 0;

  WT_DEVICE NextPage(const PageWalk& from, const SeenKeys& seen) : walk(from) { read(seen); }
  WT_DEVICE void read(const SeenKeys& seen) {
    if (walk.has_page()) number = seen.table[walk.page];
  }
  WT_DEVICE void next(const SeenKeys& seen) {
    walk.next();
    read(seen);
  }
  // Where the page lies, in pages of one head; -1, and a fault, where the table names no page.
  WT_DEVICE int64_t place(const SeenKeys& seen, const FaultSink& faults) const {
    if (number >= 0 && number < seen.pages) return number * seen.key_heads + seen.head;
    faults.report(number, seen.pages);
    return -1;
  }
};

// Sums so far and those of later keys become one: each is multiplied with its weight. What is summed is to be
// divided by the sum of weights; a query that saw no key has sum 0. Sums of one query are merged in one order
// and by these functions alone, whoever has them.
struct MergeWeights {
  float old, added;

  WT_DEVICE float merge(float into, float from) const {
    return added == 0 ? into : fma(from, added, __fmul_rn(into, old));
  }
};
WT_DEVICE MergeWeights merge_weights(float top, float sum, float before, float now) {
  return {before == kLowest ? 0.f : power_of_two(before - now), sum == 0         ? 0.f
                                                                : now == kLowest ? 1.f
                                                                                 : power_of_two(top - now)};
}
struct RunningSum {
  float top = kLowest, sum = 0;

  WT_DEVICE MergeWeights merge(float other_top, float other_sum) {
    const float now = other_sum == 0 ? top : fmaxf(top, other_top);
    const MergeWeights w = merge_weights(other_top, other_sum, top, now);
    sum = w.merge(sum, other_sum), top = now;
    return w;
  }
  // What the sums are multiplied by: 1 / weights, a sink's (kLowest: there is none) among them.
  WT_DEVICE float factor(float sink) const {
    if (sum == 0) return 0;
    if (sink == kLowest) return 1 / sum;
    const float now = fmaxf(top, sink), weight = power_of_two(top - now);
    return weight / fma(sum, weight, power_of_two(sink - now));
  }
};
// A zero has no sign, or it could tell of keys that weigh nothing.
template <class Q>
WT_DEVICE Q finished(float value, float factor) {
  return narrow<Q>(__fmul_rn(value, factor) + 0.f);
}

// Launches the kernel for tensor cores where it serves the call: queries of bfloat16. See paged_mma.cu.
bool attend_by_mma(const LaunchContext& ctx, const PagedArgs& a, DType queries, DType pages, int64_t tokens);
// Sets a.partial where `blocks` of each token are too few to fill the device; returns how many blocks then
// share the splits, else 1.
unsigned share_splits(const LaunchContext& ctx, PagedArgs& a, int64_t tokens, int64_t blocks);
// The output of what the splits left in a.partial.
void merge_splits(const LaunchContext& ctx, const PagedArgs& a, DType queries, int64_t tokens);

}  // namespace warptape::kernels::cuda
