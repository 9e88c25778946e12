// What the kernels of attention are told, and what a score becomes.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/philox.cuh"

namespace warptape::kernels::cuda {

// [B, H, T, D] with unit stride in the last dim.
struct Heads {
  void* data;
  int64_t strides[3];

  explicit Heads(const View& v) : data(v.data), strides{v.strides[0], v.strides[1], v.strides[2]} {}
  template <class T>
  WT_DEVICE T* at(int64_t b, int64_t h) const {
    return static_cast<T*>(data) + b * strides[0] + h * strides[1];
  }
};

struct Mask {
  const void* data;
  int64_t strides[4];
  bool is_bool;
};

struct Sizes {
  int64_t heads, readers;  // H, and how many of them read one key head
  int64_t queries, keys, d, e;
};

struct Problem {
  Sizes n;
  Heads q, k, v;
  Mask mask;
  double scale, keep;  // keep: 1 / (1 - p)
  bool causal;
  uint64_t threshold;  // of dropout; 0 for none
  PhiloxKey key;
  AttentionPlan::Numbers numbers;

  explicit Problem(const AttentionPlan& p)
      : n{p.q.sizes[1], p.k.sizes[1] ? p.q.sizes[1] / p.k.sizes[1] : 1,
          p.q.sizes[2], p.k.sizes[2],
          p.q.sizes[3], p.v.sizes[3]},
        q(p.q),
        k(p.k),
        v(p.v),
        mask{p.mask.data, {}, p.mask.dtype == DType::Bool},
        scale(p.scale),
        keep(p.dropout_p < 1 ? 1 / (1 - p.dropout_p) : 0),
        causal(p.causal),
        threshold(p.dropout_p > 0 ? dropout_threshold(p.dropout_p) : 0),
        key(p.key),
        numbers(p.numbers) {
    for (int d = 0; p.mask.data && d < 4; ++d) mask.strides[d] = p.mask.strides[d];
  }

  // A score as the softmax takes it; minus infinity where query t does not see key s.
  template <class T>
  WT_DEVICE Compute<T> masked(Compute<T> product, int64_t b, int64_t h, int64_t t, int64_t s) const {
    using C = Compute<T>;
    if (t >= n.queries || s >= n.keys || (causal && s > t)) return -C(__builtin_inf());
    C score = product * C(scale);
    if (!mask.data) return score;
    const int64_t at = b * mask.strides[0] + h * mask.strides[1] + t * mask.strides[2] + s * mask.strides[3];
    if (!mask.is_bool) return score + widen<C>(static_cast<const T*>(mask.data)[at]);
    return static_cast<const Bool*>(mask.data)[at] ? score : -C(__builtin_inf());
  }

  // What dropout multiplies a probability with.
  template <class C>
  WT_DEVICE C factor(int64_t b, int64_t h, int64_t t, int64_t s) const {
    if (threshold == 0) return C(1);
    const uint64_t row = numbers.row(static_cast<uint64_t>(b * n.heads + h), static_cast<uint64_t>(t));
    return philox_word(key, row + static_cast<uint64_t>(s)) >= threshold ? C(keep) : C(0);
  }
};

struct Slopes {
  Heads dout;
  const void *lse, *delta;  // [B, H, T], compute dtype
};

// Rows of one head.
template <class T>
struct Rows {
  const T* data;
  int64_t stride, count, width;
};
template <class T>
WT_DEVICE Rows<T> rows_of(const Heads& x, int64_t b, int64_t h, int64_t count, int64_t width) {
  return {x.at<T>(b, h), x.strides[2], count, width};
}

}  // namespace warptape::kernels::cuda
