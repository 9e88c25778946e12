// Attention over keys and values that lie in pages of a fixed number of tokens, which sequences take in any
// order. See "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 4.
//
// A row of the result depends on its own query and its own sequence alone, to the bit: neither on the other
// rows of the call, nor on where the pages lie, nor on the number of threads. Sums run in an order that only
// absolute key positions decide: blocks of one page from position 0, an online softmax within each split of
// kPagedSplit keys, and the splits one after the other.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

inline constexpr int64_t kPagedTokens = 32;   // of a page
inline constexpr int64_t kPagedSplit = 1024;  // keys of a split

// N tokens of R sequences, H query heads, K key heads (H % K == 0: query head h reads head h / (H / K)), P
// pages, D head size. All are contiguous; pages have the dtype of what is stored, or Int8 with scales.
struct PagedCacheView {
  View keys;          // [P, K, D, kPagedTokens]: a page's keys lie across the lanes of a vector
  View values;        // [P, K, kPagedTokens, D]
  View key_scales;    // Float32 [P, K, kPagedTokens] where pages are Int8, else null data
  View value_scales;  // likewise
};

struct PagedAttentionPlan {
  View q;  // [N, H, D]
  PagedCacheView cache;
  // The page table, starts and lengths lie where the pages do.
  const int32_t* page_table;  // [R, max_pages]: the pages of a sequence, in order
  int64_t max_pages;
  const int32_t* starts;   // [R + 1]: sequence r has the queries starts[r] to starts[r + 1] - 1
  const int32_t* lengths;  // [R]: keys of a sequence; its last query is at position lengths[r] - 1
  int64_t sequences;       // R
  double scale;
  int64_t window;      // how many of the last keys a query sees, its own included; INT64_MAX for all
  double cap;          // c of c tanh(score / c), which scores become; 0 for none
  const float* sinks;  // [H]: a score of each head that has a weight and no value; null for none
};

// Slot "paged_attention": out [N, H, D], causal. What no query sees is not read.
using PagedAttentionFn = void(const LaunchContext&, const View& out, const PagedAttentionPlan&);

// Slot "paged_store": k, v [N, K, D] of Float32 or BFloat16 go to slots [N], Int64: page * kPagedTokens +
// place in the page. To Int8 with scale = largest magnitude / 127 per token and head, rounded to nearest.
using PagedStoreFn = void(const LaunchContext&, const PagedCacheView&, const View& k, const View& v,
                          const View& slots);

}  // namespace warptape::kernels
