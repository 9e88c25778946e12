// What the kernels of attention are told, and what a score becomes.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/cuda/common/memory.cuh"
#include "kernels/cuda/random/philox.cuh"

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

struct Problem;

// A batch element, or a sequence of those that lie one behind the other: where its rows begin, how many they
// are, and its band.
struct Part {
  static constexpr int kFar = 1 << 29;
  int64_t b, query = 0, key = 0;
  int queries, keys, first, last;

  WT_DEVICE Part(const Problem& p, int64_t number);
  WT_DEVICE bool sees(int64_t t, int64_t s) const {
    return t < queries && s < keys && s <= t + last && s >= t + first;
  }
  // Whether so many queries from t0 on all see so many keys from s0 on; or those of them that are there do.
  WT_DEVICE bool sees_all(int64_t t0, int rows, int64_t s0, int cols) const {
    return t0 + rows <= queries && s0 + cols <= keys && is_within(t0, rows, s0, cols);
  }
  WT_DEVICE bool is_within(int64_t t0, int rows, int64_t s0, int cols) const {
    return s0 + cols - 1 <= t0 + last && s0 >= t0 + rows - 1 + first;
  }
  // Keys from() to until() - 1 are seen by some of the queries from t0 on, in tiles of `tile`.
  WT_DEVICE int64_t from(int64_t t0, int tile) const {
    return t0 + first > 0 ? (t0 + first) / tile * tile : 0;
  }
  WT_DEVICE int64_t until(int64_t t0, int rows) const { return minimum(t0 + rows + last, int64_t(keys)); }
  // The same of queries that see some of the keys from s0 on.
  WT_DEVICE int64_t query_from(int64_t s0, int tile) const {
    return s0 - last > 0 ? (s0 - last) / tile * tile : 0;
  }
  WT_DEVICE int64_t query_until(int64_t s0, int cols) const {
    return minimum(s0 + cols - first, int64_t(queries));
  }
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
  Band band;
  uint64_t threshold;  // of dropout; 0 for none
  PhiloxKey key;
  AttentionPlan::Numbers numbers;
  AttentionPlan::Sequences sequences;

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
        band(p.band),
        threshold(p.dropout_p > 0 ? dropout_threshold(p.dropout_p) : 0),
        key(p.key),
        numbers(p.numbers),
        sequences(p.sequences) {
    for (int d = 0; p.mask.data && d < 4; ++d) mask.strides[d] = p.mask.strides[d];
  }

  bool is_plain() const { return !mask.data && threshold == 0; }
  // Batch elements or sequences, and the most queries and keys of one: what grids are made for.
  int64_t parts(const AttentionPlan& p) const { return sequences.count ? sequences.count : p.q.sizes[0]; }
  int64_t most_queries() const { return sequences.count ? sequences.most_queries : n.queries; }
  int64_t most_keys() const { return sequences.count ? sequences.most_keys : n.keys; }

  WT_DEVICE int64_t mask_at(const Part& part, int64_t h, int64_t t, int64_t s) const {
    return part.b * mask.strides[0] + h * mask.strides[1] + t * mask.strides[2] + s * mask.strides[3];
  }
  WT_DEVICE bool is_seen(const Part& part, int64_t h, int64_t t, int64_t s) const {
    if (!part.sees(t, s)) return false;
    return !mask.data || !mask.is_bool || static_cast<const Bool*>(mask.data)[mask_at(part, h, t, s)];
  }
  // What a mask of T adds to the score of a pair that is seen.
  WT_DEVICE bool adds_mask() const { return mask.data && !mask.is_bool; }
  template <class T>
  WT_DEVICE Compute<T> added(const Part& part, int64_t h, int64_t t, int64_t s) const {
    return widen<Compute<T>>(static_cast<const T*>(mask.data)[mask_at(part, h, t, s)]);
  }
  // A score as the softmax takes it; minus infinity where query t does not see key s.
  template <class T>
  WT_DEVICE Compute<T> masked(Compute<T> product, const Part& part, int64_t h, int64_t t, int64_t s) const {
    using C = Compute<T>;
    if (!is_seen(part, h, t, s)) return -C(__builtin_inf());
    const C score = product * C(scale);
    return adds_mask() ? score + added<T>(part, h, t, s) : score;
  }

  // Where the log-sum-exps of a part's head begin, of [B, H, T].
  WT_DEVICE int64_t line(const Part& part, int64_t h) const {
    return (part.b * n.heads + h) * n.queries + part.query;
  }

  WT_DEVICE uint64_t number(int64_t b, int64_t h, int64_t t, int64_t s) const {
    return numbers.row(static_cast<uint64_t>(b * n.heads + h), static_cast<uint64_t>(t)) +
           static_cast<uint64_t>(s);
  }
  // Whether dropout keeps a probability.
  WT_DEVICE bool keeps(int64_t b, int64_t h, int64_t t, int64_t s) const {
    return philox_word(key, number(b, h, t, s)) >= threshold;
  }
  // The same of keys s and s + 1, as bits 0 and 1: mostly of one block of numbers.
  WT_DEVICE uint32_t keeps_two(int64_t b, int64_t h, int64_t t, int64_t s) const {
    const uint64_t i = number(b, h, t, s);
    const PhiloxBlock block = philox(key, i / 4);
    const uint32_t first = block.word(i);
    const uint32_t second = i % 4 == 3 ? philox(key, i / 4 + 1).words[0] : block.word(i + 1);
    return (first >= threshold ? 1 : 0) | (second >= threshold ? 2 : 0);
  }
  // What dropout multiplies a probability with.
  template <class C>
  WT_DEVICE C factor(int64_t b, int64_t h, int64_t t, int64_t s) const {
    return threshold == 0 ? C(1) : keeps(b, h, t, s) ? C(keep) : C(0);
  }
};

WT_DEVICE Part::Part(const Problem& p, int64_t number)
    : b(number),
      queries(int(p.n.queries)),
      keys(int(p.n.keys)),
      first(int(maximum(p.band.first, int64_t(-kFar)))),
      last(int(minimum(p.band.last, int64_t(kFar)))) {
  const auto& all = p.sequences;
  if (all.count == 0) return;
  // What is out of range is cut: numbers on a device were not looked at before.
  auto within = [](int64_t at, int64_t from, int64_t to) { return maximum(from, minimum(at, to)); };
  query = within(all.starts[number], 0, p.n.queries);
  key = within(all.key_starts[number], 0, p.n.keys);
  queries = int(within(all.starts[number + 1], query, p.n.queries) - query);
  keys = int(within(all.used_keys ? key + all.used_keys[number] : all.key_starts[number + 1], key, p.n.keys) -
             key);
  b = 0, first += keys - queries, last += keys - queries;
}

struct Slopes {
  Heads dout;
  const void *lse, *delta;  // [B, H, T], compute dtype
};

// Rows of one head.
template <class T>
struct Rows {
  T* data;
  int64_t stride, count, width;
};
template <class T>
WT_DEVICE Rows<T> rows_of(const Heads& x, const Part& part, int64_t h, int64_t first, int64_t count,
                          int64_t width) {
  return {x.at<T>(part.b, h) + first * x.strides[2], x.strides[2], count, width};
}
// Of queries, and of keys or values.
template <class T>
WT_DEVICE Rows<T> query_rows(const Heads& x, const Part& part, int64_t h, int64_t width) {
  return rows_of<T>(x, part, h, part.query, part.queries, width);
}
template <class T>
WT_DEVICE Rows<T> key_rows(const Heads& x, const Part& part, int64_t h, int64_t width) {
  return rows_of<T>(x, part, h, part.key, part.keys, width);
}

}  // namespace warptape::kernels::cuda
