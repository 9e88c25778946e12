// Scaled dot-product attention in blocks: the score matrix is never stored. See "FlashAttention-2",
// section 3.1.
#pragma once

#include "kernels/random/random.h"

namespace warptape::kernels {

// Which keys a query sees: query t sees keys t + first to t + last.
struct Band {
  static constexpr int64_t kFar = int64_t(1) << 40;
  int64_t first = -kFar, last = kFar;

  static constexpr Band causal() { return {-kFar, 0}; }
  constexpr bool is_all() const { return first == -kFar && last == kFar; }
  constexpr bool is_causal() const { return first == -kFar && last == 0; }
  // Query t sees keys from(t) to until(t) - 1; none where those do not rise.
  constexpr int64_t from(int64_t t) const { return t + first > 0 ? t + first : 0; }
  constexpr int64_t until(int64_t t, int64_t keys) const {
    const int64_t end = t + last + 1;
    return end < 0 ? 0 : end < keys ? end : keys;
  }
};

// Shapes: B batch, H query heads, K key/value heads (H % K == 0: query head h reads head h / (H / K)), T
// queries, S keys, D and E head sizes. Any strides, but the last dim of q, k, v, out and of every gradient
// has stride 1.
struct AttentionPlan {
  // Which numbers dropout draws: probability (b, h, t, s) number row(b * H + h, t) + s, of heads that are a
  // part of all, and of `queries` x `keys` of which these begin at (query, key).
  struct Numbers {
    PhiloxPart heads;
    uint64_t queries = 0, keys = 0, query = 0, key = 0;

    constexpr uint64_t row(uint64_t head, uint64_t t) const {
      return (heads.at(head) * queries + query + t) * keys + key;
    }
  };

  // Sequences of several lengths, one behind the other (B = 1): sequence r has the queries starts[r] to
  // starts[r + 1] - 1 and the keys key_starts[r] to key_starts[r + 1] - 1, or as many of those from there on
  // as used_keys[r] says. The band is about places within a sequence whose last query sees its last key: it
  // is moved by the number of keys less that of queries. Results of queries and keys in no sequence are left
  // as they are. Numbers lie where the tensors do.
  struct Sequences {
    const int32_t *starts = nullptr, *key_starts = nullptr, *used_keys = nullptr;
    int64_t count = 0;                        // 0: no sequences, B batch elements
    int64_t most_queries = 0, most_keys = 0;  // of one, at most
  };

  View q;     // [B, H, T, D]
  View k;     // [B, K, S, D]
  View v;     // [B, K, S, E]
  View mask;  // [B, H, T, S] with strides 0 where broadcast; Bool (true: take part) or added to the scores,
              // in the dtype of q; null data for none
  double scale = 1;
  Band band;
  double dropout_p = 0;
  PhiloxKey key;
  Numbers numbers;
  Sequences sequences = {};  // with them neither a mask nor dropout
};

// Slot "attention": out [B, H, T, E]; lse [B, H, T] of the compute dtype, its last dim contiguous. A query
// that sees no key gets zeros and an lse of minus infinity.
using AttentionFn = void(const LaunchContext&, const View& out, const View& lse, const AttentionPlan&);

// Slot "attention_backward": dq, dk, dv (all wanted) in the shapes of q, k, v.
using AttentionBackwardFn = void(const LaunchContext&, const View& dq, const View& dk, const View& dv,
                                 const View& dout, const View& out, const View& lse, const AttentionPlan&);

}  // namespace warptape::kernels
