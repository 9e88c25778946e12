// Scaled dot-product attention in blocks: the score matrix is never stored. See "FlashAttention-2",
// section 3.1.
#pragma once

#include "kernels/random.h"

namespace warptape::kernels {

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

  View q;     // [B, H, T, D]
  View k;     // [B, K, S, D]
  View v;     // [B, K, S, E]
  View mask;  // [B, H, T, S] with strides 0 where broadcast; Bool (true: take part) or added to the scores,
              // in the dtype of q; null data for none
  double scale;
  bool causal;  // query t sees keys 0..t
  double dropout_p;
  PhiloxKey key;
  Numbers numbers;
};

// Slot "attention": out [B, H, T, E]; lse [B, H, T] contiguous, of the compute dtype. A query that sees no
// key gets zeros and an lse of minus infinity.
using AttentionFn = void(const LaunchContext&, const View& out, const View& lse, const AttentionPlan&);

// Slot "attention_backward": dq, dk, dv (all wanted) in the shapes of q, k, v.
using AttentionBackwardFn = void(const LaunchContext&, const View& dq, const View& dk, const View& dv,
                                 const View& dout, const View& out, const View& lse, const AttentionPlan&);

}  // namespace warptape::kernels
