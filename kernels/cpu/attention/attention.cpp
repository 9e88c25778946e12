// Attention forward and backward on the CPU, after "FlashAttention-2" (algorithms 1 and 2): blocks of scores
// are made, used and forgotten. attention_block.h describes the layout.
#include "kernels/cpu/attention/attention_tiles.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

using cpu::parallel_for;

// Where the query was not scaled its scores are, together with the subtraction of what is above all of them;
// before that if something is added to them, or their order would change. Returns the factor that is left.
template <class P>
typename P::C scale_left(const Head<typename P::T>& head, typename P::C* scores, int64_t nk) {
  using C = typename P::C;
  if (P::kScalesQuery) return C(1);
  const C scale = C(head.plan.scale);
  const View& mask = head.plan.mask;
  if (scale > 0 && !(mask.data && mask.dtype != DType::Bool)) return scale;
  for_vectors<C>(nk * P::kQ,
                 [&](int64_t i, auto l) { store(scores + i, load(scores + i, l) * Vec<C>(scale), l); });
  return C(1);
}
template <class P, class C>
WT_FN Vec<C> scaled(Vec<C> x, C factor) {
  return P::kScalesQuery ? x : x * Vec<C>(factor);
}
// factor * x - shift.
template <class P, class C>
WT_FN Vec<C> less(Vec<C> x, C factor, Vec<C> shift) {
  return P::kScalesQuery ? x - shift : fma(x, Vec<C>(factor), Vec<C>(C(0)) - shift);
}

// Calls f(tag of how blocks are multiplied) for a floating dtype.
template <class F>
WT_INLINE void dispatch_attention(DType dtype, F&& f) {
#if defined(__AVX512F__)
  if (dtype == DType::BFloat16 && cpu::has_amx_bf16()) return f(AttentionTiles{});
#endif
  dispatch(FloatTypes{}, dtype, [&](auto t) { f(AttentionVectors<typename decltype(t)::type>{}); });
}

// ---- forward ----

template <class P>
struct Forward {
  using T = typename P::T;
  using C = typename P::C;
  using Operand = typename P::Operand;
  using V = Vec<C>;
  static constexpr int kQ = P::kQ, kL = V::kLanes;

  struct Memory {
    Operand *keys, *values;  // packed: rows of D and, per block of keys, rows of keys
    Operand *query, *weights;
    C *scores, *out, *factors, *rows;
    Memory(Carver& c, int64_t s, int64_t d, int64_t e)
        : keys(c.part<Operand>(round_up(s, P::kUnit) * P::depth(d) + kQ)),
          values(c.part<Operand>(P::depth(round_up(s, P::kKeys)) * round_up(e, P::kUnit) + kQ)),
          query(c.part<Operand>(P::depth(d) * kQ + kQ)),
          weights(c.part<Operand>(P::kScalesQuery ? 0 : P::depth(P::kKeys) * kQ)),
          scores(c.part<C>(P::kKeys * kQ)),
          out(c.part<C>(e * kQ)),
          factors(c.part<C>(P::kKeys * kQ)),
          rows(c.part<C>(kQ * e + kQ)) {}
  };

  const Head<T> head;
  Memory m;

  void pack(int64_t keys) const {
    const View &k = head.plan.k, &v = head.plan.v;
    const T* pk = head.at(k, head.b, head.shared_head());
    const T* pv = head.at(v, head.b, head.shared_head());
    P::pack_a(m.keys, pk, k.strides[2], 1, keys, head.d);
    for (int64_t k0 = 0; k0 < keys; k0 += P::kKeys) {
      const int64_t nk = keys - k0 < P::kKeys ? keys - k0 : P::kKeys;
      P::pack_a(m.values + P::depth(k0) * head.e, pv + k0 * v.strides[2], 1, v.strides[2], head.e, nk);
    }
  }

  // Scores become exp(factor * score - top); top and sum follow, and what was summed so far shrinks when top
  // grows.
  void softmax_step(int64_t nk, C factor, V (&top)[2], V (&sum)[2], bool first) const {
    V found[2] = {V(-__builtin_inf()), V(-__builtin_inf())};
    for (int64_t j = 0; j < nk; ++j)
      for (int half = 0; half < 2; ++half)
        found[half] = max_or_b(V::load(m.scores + j * kQ + half * kL), found[half]);
    V shift[2], shrink[2];
    for (int half = 0; half < 2; ++half) {
      found[half] = max_or_b(scaled<P>(found[half], factor), top[half]);
      // While a query has seen no key, top is -inf and its exponentials are to be 0, not NaN.
      shift[half] = select(found[half] == V(-__builtin_inf()), V(C(0)), found[half]);
      shrink[half] = exp_below(top[half] - shift[half]);
      top[half] = found[half];
      sum[half] *= shrink[half];
    }
    for (int64_t j = 0; j < nk; ++j)
      for (int half = 0; half < 2; ++half) {
        C* s = m.scores + j * kQ + half * kL;
        const V p = exp_below(less<P>(V::load(s), factor, shift[half]));
        sum[half] += p;
        p.store(s);
      }
    if (first) return;
    for (int64_t i = 0; i < head.e; ++i)
      for (int half = 0; half < 2; ++half) {
        C* o = m.out + i * kQ + half * kL;
        (V::load(o) * shrink[half]).store(o);
      }
  }

  // `packed`: how many keys pack() took.
  void block(const View& out, const View& lse, int64_t packed, int64_t q0, int64_t n) const {
    const View& q = head.plan.q;
    const bool drops = head.plan.dropout_p > 0;
    P::pack_b(m.query, head.at(q, head.b, head.h) + q0 * q.strides[2], q.strides[2], n, head.d,
              C(head.plan.scale));
    V top[2] = {V(-__builtin_inf()), V(-__builtin_inf())}, sum[2] = {V(C(0)), V(C(0))};
    const int64_t keys = head.seen(q0 + n), from = head.plan.band.from(q0) / P::kKeys * P::kKeys;
    for (int64_t k0 = from; k0 < keys; k0 += P::kKeys) {
      const KeyBlock<P> k(k0, packed, keys);
      const int64_t nk = k.count;
      P::product(nk, head.d, m.keys + k0 * P::depth(head.d), head.d, m.query, kQ, m.scores, kQ, false);
      const C factor = scale_left<P>(head, m.scores, nk);
      mask_scores(head, m.scores, q0, n, k0, nk);
      softmax_step(nk, factor, top, sum, k0 == from);
      if (drops) {
        dropout_factors(head, m.factors, q0, n, k0, nk);
        for_vectors<C>(nk * kQ, [&](int64_t i, auto l) {
          store(m.scores + i, load(m.scores + i, l) * load(m.factors + i, l), l);
        });
      }
      P::product(head.e, nk, m.values + P::depth(k0) * head.e, k.packed, P::as_b(m.weights, m.scores, nk), kQ,
                 m.out, kQ, k0 > from);
    }
    finish(out, lse, q0, n, top, sum, from < keys);
  }

  void finish(const View& out, const View& lse, int64_t q0, int64_t n, V (&top)[2], V (&sum)[2],
              bool any) const {
    C* l = head.lse_at(lse, q0);
    for (int half = 0; half < 2; ++half) {
      const Mask<C> none = sum[half] == V(C(0));
      const V inverse = select(none, V(C(0)), V(C(1)) / sum[half]);
      if (!any) std::memset(m.out, 0, sizeof(C) * head.e * kQ);
      for (int64_t i = 0; i < head.e; ++i) {
        C* o = m.out + i * kQ + half * kL;
        (V::load(o) * inverse).store(o);
      }
      const V value = select(none, V(-__builtin_inf()), top[half] + log(sum[half]));
      for (int64_t i = half * kL; i < n && i < (half + 1) * kL; ++i) l[i] = value.v[i - half * kL];
    }
    store_panel<T>(head.at(out, head.b, head.h) + q0 * out.strides[2], out.strides[2], n, head.e, m.out, C(1),
                   m.rows);
  }
};

// ---- forward of few queries: a step of generation ----

inline constexpr int64_t kFewQueries = 4;

// Packing would cost more than the products: keys and values are read once, where they are.
template <class T>
struct FewQueries {
  using C = Compute<T>;
  using V = Vec<C>;
  static constexpr int kL = V::kLanes;
  const Head<T> head;
  C* query;   // [D]
  C* scores;  // [S]

  void score(int64_t t, int64_t keys) const {
    const View &q = head.plan.q, &k = head.plan.k, &m = head.plan.mask;
    const T* pq = head.at(q, head.b, head.h) + t * q.strides[2];
    const V factor(head.plan.scale);
    for_vectors<C>(head.d, [&](int64_t i, auto l) { store(query + i, load(pq + i, l) * factor, l); });
    const T* row = head.at(k, head.b, head.shared_head());
    for (int64_t j = 0; j < keys; ++j, row += k.strides[2])
      scores[j] =
          sum_vectors<C>(head.d, [&](int64_t i, auto l) { return load(query + i, l) * load(row + i, l); });
    if (!m.data) return;
    const int64_t at = head.b * m.strides[0] + head.h * m.strides[1] + t * m.strides[2];
    for (int64_t j = 0; j < keys; ++j) {
      if (m.dtype != DType::Bool)
        scores[j] += C(m.as<T>()[at + j * m.strides[3]]);
      else if (!m.as<Bool>()[at + j * m.strides[3]])
        scores[j] = -__builtin_inf();
    }
  }

  // Two vectors of the output at a time, over all keys.
  void weigh(T* out, int64_t keys, C factor) const {
    const View& v = head.plan.v;
    const T* values = head.at(v, head.b, head.shared_head());
    auto columns = [&](int64_t i, auto lanes, auto next, bool two) {
      V a(C(0)), b(C(0));
      const T* row = values + i;
      for (int64_t j = 0; j < keys; ++j, row += v.strides[2]) {
        const V p(scores[j]);
        a = fma(p, load(row, lanes), a);
        if (two) b = fma(p, load(row + kL, next), b);
      }
      store(out + i, a * V(factor), lanes);
      if (two) store(out + i + kL, b * V(factor), next);
    };
    int64_t i = 0;
    for (; i + 2 * kL <= head.e; i += 2 * kL) columns(i, AllLanes{}, AllLanes{}, true);
    if (i + kL <= head.e) columns(i, AllLanes{}, AllLanes{}, false), i += kL;
    if (i < head.e) columns(i, FirstLanes{int(head.e - i)}, AllLanes{}, false);
  }

  void run(const View& out, const View& lse, int64_t t) const {
    const int64_t keys = head.seen(t + 1), from = head.plan.band.from(t);
    score(t, keys);
    for (int64_t j = 0; j < from && j < keys; ++j) scores[j] = -__builtin_inf();
    const C top = keys ? max_of_row(scores, keys) : C(-__builtin_inf());
    const V shift(top == C(-__builtin_inf()) ? C(0) : top);
    const C sum = sum_vectors<C>(keys, [&](int64_t i, auto l) {
      const V p = exp_below(load(scores + i, l) - shift);
      store(scores + i, p, l);
      return keep<C>(p, l);
    });
    weigh(head.at(out, head.b, head.h) + t * out.strides[2], keys, sum == 0 ? C(0) : C(1) / sum);
    *head.lse_at(lse, t) = sum == 0 ? C(-__builtin_inf()) : top + C(__builtin_log(double(sum)));
  }
};

template <class T>
void few_queries(const LaunchContext& ctx, const View& out, const View& lse, const AttentionPlan& p) {
  using C = Compute<T>;
  const int64_t heads = p.q.sizes[0] * p.q.sizes[1], s = p.k.sizes[2], d = p.q.sizes[3];
  C* scratch = static_cast<C*>(ctx.scratch(sizeof(C) * size_t(heads * (s + d) + 1)));
  parallel_for(heads, row_grain(p.q.sizes[2] * s * d), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      C* own = scratch + i * (s + d);
      const FewQueries<T> f{Head<T>(p, i / p.q.sizes[1], i % p.q.sizes[1]), own, own + d};
      for (int64_t t = 0; t < f.head.queries; ++t, cpu::poll_interrupt()) f.run(out, lse, t);
    }
  });
}

// ---- sequences one behind the other ----

// Scratch memory of one sequence after the other: the i-th piece of each is the same one, as long as it fits.
class Reused {
 public:
  explicit Reused(const LaunchContext& ctx) : from_(ctx), ctx_(ctx) {
    ctx_.allocate = allocate;
    ctx_.allocator = this;
  }
  const LaunchContext& next() {
    at_ = 0;
    return ctx_;
  }

 private:
  static void* allocate(void* self, size_t bytes) {
    auto& me = *static_cast<Reused*>(self);
    auto& [piece, size] = me.pieces_[me.at_++ % kPieces];
    if (size < bytes) size = 2 * bytes, piece = me.from_.scratch(size);
    return piece;
  }
  static constexpr size_t kPieces = 4;  // more than a call asks for
  const LaunchContext& from_;
  LaunchContext ctx_;
  std::pair<void*, size_t> pieces_[kPieces] = {};
  size_t at_ = 0;
};

// f(context, plan, queries, keys) of each: its plan, and what cuts a tensor to its queries or its keys. Each
// is computed as if it were alone.
template <class F>
void each_sequence(const LaunchContext& ctx, const AttentionPlan& p, F&& f) {
  const auto& all = p.sequences;
  Reused reused(ctx);
  for (int64_t r = 0; r < all.count; ++r) {
    const int64_t t0 = all.starts[r], s0 = all.key_starts[r], n = all.starts[r + 1] - t0;
    const int64_t keys = all.used_keys ? all.used_keys[r] : all.key_starts[r + 1] - s0;
    if (n == 0 && keys == 0) continue;
    int64_t sizes[9][4];
    int used = 0;
    auto cut = [&](const View& x, int64_t first, int64_t count) {
      View part = x;
      int64_t* to = sizes[used++];
      std::copy(x.sizes, x.sizes + x.ndim, to);
      to[2] = count;
      part.sizes = to;
      part.data = static_cast<char*>(x.data) + first * x.strides[2] * int64_t(itemsize(x.dtype));
      return part;
    };
    auto queries = [&](const View& x) { return cut(x, t0, n); };
    auto of_keys = [&](const View& x) { return cut(x, s0, keys); };
    AttentionPlan one = p;
    one.sequences = {};
    one.q = queries(p.q), one.k = of_keys(p.k), one.v = of_keys(p.v);
    one.band.first += keys - n, one.band.last += keys - n;
    f(reused.next(), one, queries, of_keys);
  }
}
void attention(const LaunchContext& ctx, const View& out, const View& lse, const AttentionPlan& p) {
  if (p.sequences.count)
    return each_sequence(ctx, p, [&](const LaunchContext& own, const AttentionPlan& one, auto queries, auto) {
      attention(own, queries(out), queries(lse), one);
    });
  dispatch_attention(p.q.dtype, [&](auto products) {
    using F = Forward<decltype(products)>;
    using T = typename F::T;
    const int64_t heads = p.q.sizes[0] * p.q.sizes[1], queries = p.q.sizes[2];
    if (queries <= kFewQueries && p.dropout_p == 0) return few_queries<T>(ctx, out, lse, p);
    const int64_t chunks = query_chunks(heads, queries, F::kQ);
    if (heads * chunks == 0) return;
    const int64_t chunk = round_up((queries + chunks - 1) / chunks, F::kQ);
    const int64_t s = p.k.sizes[2], d = p.q.sizes[3], e = p.v.sizes[3];
    Pieces pieces(ctx, Carver::bytes([&](Carver& c) { (void)typename F::Memory(c, s, d, e); }));
    parallel_for(heads * chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        char* piece = pieces.take();
        const int64_t h = i / chunks, first = i % chunks * chunk;
        const int64_t last = first + chunk < queries ? first + chunk : queries;
        Carver carver(piece);
        const F f{Head<T>(p, h / p.q.sizes[1], h % p.q.sizes[1]), typename F::Memory(carver, s, d, e)};
        const int64_t seen = f.head.seen(last);
        if (first < last) f.pack(seen);
        for (int64_t q0 = first; q0 < last; q0 += F::kQ, cpu::poll_interrupt())
          f.block(out, lse, seen, q0, last - q0 < F::kQ ? last - q0 : F::kQ);
        pieces.give(piece);
      }
    });
  });
}

// ---- backward ----

// For one shared (key and value) head: dk and dv are summed over the query heads that read it and over blocks
// of queries.
template <class P>
struct Backward {
  using T = typename P::T;
  using C = typename P::C;
  using Operand = typename P::Operand;
  using V = Vec<C>;
  static constexpr int kQ = P::kQ, kL = V::kLanes;
  // Row length of the operands and sums whose columns are a head's: whole pairs of vectors.
  static int64_t wide(int64_t d) { return round_up(d, kQ); }

  struct Memory {
    Operand *keys, *values, *keys_t;  // packed: by rows of D and E; by D with rows of a block of keys
    Operand *query, *grad;            // columns of b, D and E deep
    Operand *query_rows, *grad_rows;  // rows of b
    Operand *packed, *weights;
    C *scores, *slopes, *factors, *dquery, *rows;
    Memory(Carver& c, int64_t s, int64_t d, int64_t e)
        : keys(c.part<Operand>(round_up(s, P::kUnit) * P::depth(d) + kQ)),
          values(c.part<Operand>(round_up(s, P::kUnit) * P::depth(e) + kQ)),
          keys_t(c.part<Operand>(P::depth(round_up(s, P::kKeys)) * round_up(d, P::kUnit) + kQ)),
          query(c.part<Operand>(P::depth(d) * kQ + kQ)),
          grad(c.part<Operand>(P::depth(e) * kQ + kQ)),
          query_rows(c.part<Operand>(P::depth(kQ) * wide(d))),
          grad_rows(c.part<Operand>(P::depth(kQ) * wide(e))),
          packed(c.part<Operand>(P::kKeys * P::depth(kQ) + kQ)),
          weights(c.part<Operand>(P::kScalesQuery ? 0 : P::depth(P::kKeys) * kQ)),
          scores(c.part<C>(P::kKeys * kQ)),
          slopes(c.part<C>(P::kKeys * kQ)),
          factors(c.part<C>(P::kKeys * kQ)),
          dquery(c.part<C>(d * kQ)),
          rows(c.part<C>(kQ * d + kQ)) {}
  };

  Head<T> head;
  Memory m;
  C* dkeys;    // [S][wide(D)]
  C* dvalues;  // [S][wide(E)]

  void pack(int64_t keys) const {
    const View &k = head.plan.k, &v = head.plan.v;
    const T* pk = head.at(k, head.b, head.shared_head());
    const T* pv = head.at(v, head.b, head.shared_head());
    P::pack_a(m.keys, pk, k.strides[2], 1, keys, head.d);
    P::pack_a(m.values, pv, v.strides[2], 1, keys, head.e);
    for (int64_t k0 = 0; k0 < keys; k0 += P::kKeys) {
      const int64_t nk = keys - k0 < P::kKeys ? keys - k0 : P::kKeys;
      P::pack_a(m.keys_t + P::depth(k0) * head.d, pk + k0 * k.strides[2], 1, k.strides[2], head.d, nk);
    }
  }

  // scores become the probabilities as dropout left them, slopes the gradient of the scores.
  void softmax_backward(int64_t nk, C scale, const C* lse, const C* delta) const {
    const bool drops = head.plan.dropout_p > 0;
    for (int half = 0; half < 2; ++half) {
      const V shift = V::load(lse + half * kL), mean = V::load(delta + half * kL);
      for (int64_t j = 0; j < nk; ++j) {
        C* s = m.scores + j * kQ + half * kL;
        C* g = m.slopes + j * kQ + half * kL;
        V p = exp_below(less<P>(V::load(s), scale, shift)), up = V::load(g);
        if (drops) {
          const V factor = V::load(m.factors + j * kQ + half * kL);
          (p * (up * factor - mean)).store(g);
          (p * factor).store(s);
        } else {
          (p * (up - mean)).store(g);
          p.store(s);
        }
      }
    }
  }

  // sums [nk][wide(d)] += x rows, x being [nk][kQ] of which n columns count.
  void add_outer(C* sums, const C* x, const Operand* rows, int64_t nk, int64_t n, int64_t d) const {
    P::columns_as_a(m.packed, x, nk, n);
    for (int64_t i = 0; i < wide(d); i += kQ)
      P::product(nk, n, m.packed, n, rows + P::column_of_b(i), wide(d), sums + i, wide(d), true);
  }

  void block(const View& dq, const View& dout, const View& out, const View& lse, int64_t packed, int64_t q0,
             int64_t n) const {
    const View& q = head.plan.q;
    const T* pq = head.at(q, head.b, head.h) + q0 * q.strides[2];
    const T* pg = head.at(dout, head.b, head.h) + q0 * dout.strides[2];
    const T* po = head.at(out, head.b, head.h) + q0 * out.strides[2];
    const C scale_by = C(head.plan.scale);
    P::pack_b(m.query, pq, q.strides[2], n, head.d, scale_by);
    P::pack_b(m.grad, pg, dout.strides[2], n, head.e, C(1));
    P::rows_as_b(m.query_rows, pq, q.strides[2], n, head.d, scale_by);
    P::rows_as_b(m.grad_rows, pg, dout.strides[2], n, head.e, C(1));
    alignas(64) C delta[kQ] = {}, shift[kQ];
    const C* l = head.lse_at(lse, q0);
    for (int64_t i = 0; i < kQ; ++i) {
      // A query that saw no key, or that is none: all probabilities are 0.
      shift[i] = i < n && l[i] != C(-__builtin_inf()) ? l[i] : C(__builtin_inf());
      if (i < n)
        delta[i] = sum_vectors<C>(head.e, [&](int64_t k, auto lanes) {
          return load(pg + i * dout.strides[2] + k, lanes) * load(po + i * out.strides[2] + k, lanes);
        });
    }
    const int64_t keys = head.seen(q0 + n), from = head.plan.band.from(q0) / P::kKeys * P::kKeys;
    for (int64_t k0 = from; k0 < keys; k0 += P::kKeys) {
      const KeyBlock<P> k(k0, packed, keys);
      const int64_t nk = k.count, d = head.d, e = head.e;
      P::product(nk, d, m.keys + k0 * P::depth(d), d, m.query, kQ, m.scores, kQ, false);
      const C factor = scale_left<P>(head, m.scores, nk);
      mask_scores(head, m.scores, q0, n, k0, nk);
      P::product(nk, e, m.values + k0 * P::depth(e), e, m.grad, kQ, m.slopes, kQ, false);
      if (head.plan.dropout_p > 0) dropout_factors(head, m.factors, q0, n, k0, nk);
      softmax_backward(nk, factor, shift, delta);
      P::product(d, nk, m.keys_t + P::depth(k0) * d, k.packed, P::as_b(m.weights, m.slopes, nk), kQ, m.dquery,
                 kQ, k0 > from);
      add_outer(dvalues + k0 * wide(e), m.scores, m.grad_rows, nk, n, e);
      add_outer(dkeys + k0 * wide(d), m.slopes, m.query_rows, nk, n, d);
    }
    if (from >= keys) std::memset(m.dquery, 0, sizeof(C) * head.d * kQ);
    store_panel<T>(head.at(dq, head.b, head.h) + q0 * dq.strides[2], dq.strides[2], n, head.d, m.dquery,
                   scale_by, m.rows);
  }
};

// Queries that no key is there for have no gradient.
template <class T>
void clear_rows(const View& x) {
  for (int64_t i = 0; i < x.sizes[0] * x.sizes[1]; ++i) {
    T* head = Head<T>::at(x, i / x.sizes[1], i % x.sizes[1]);
    for (int64_t t = 0; t < x.sizes[2]; ++t)
      std::memset(static_cast<void*>(head + t * x.strides[2]), 0, sizeof(T) * size_t(x.sizes[3]));
  }
}

// dk or dv of one shared head from the sums of its chunks, [s][wide] each, times `factor`.
template <class T>
void store_sums(T* to, int64_t stride, const Compute<T>* sums, int64_t chunks, int64_t apart, int64_t s,
                int64_t d, int64_t wide, Compute<T> factor) {
  using C = Compute<T>;
  for (int64_t r = 0; r < s; ++r)
    for_vectors<C>(d, [&](int64_t i, auto l) {
      Vec<C> v = load(sums + r * wide + i, l);
      for (int64_t c = 1; c < chunks; ++c) v += load(sums + c * apart + r * wide + i, l);
      store(to + r * stride + i, factor == 1 ? v : v * Vec<C>(factor), l);
    });
}

void attention_backward(const LaunchContext& ctx, const View& dq, const View& dk, const View& dv,
                        const View& dout, const View& out, const View& lse, const AttentionPlan& p) {
  if (p.sequences.count)
    return each_sequence(ctx, p,
                         [&](const LaunchContext& own, const AttentionPlan& one, auto queries, auto keys) {
                           attention_backward(own, queries(dq), keys(dk), keys(dv), queries(dout),
                                              queries(out), queries(lse), one);
                         });
  dispatch_attention(p.q.dtype, [&](auto products) {
    using F = Backward<decltype(products)>;
    using T = typename F::T;
    using C = typename F::C;
    const int64_t shared = p.k.sizes[1], heads = p.k.sizes[0] * shared, queries = p.q.sizes[2];
    const int64_t readers = shared ? p.q.sizes[1] / shared : 0;
    const int64_t s = p.k.sizes[2], d = p.q.sizes[3], e = p.v.sizes[3];
    if (heads * s == 0) return clear_rows<T>(dq);
    int64_t chunks = query_chunks(heads, queries, F::kQ);
    if (chunks == 0) chunks = 1;
    const int64_t chunk = round_up((queries + chunks - 1) / chunks, F::kQ);
    const int64_t sums_of_one = s * (F::wide(d) + F::wide(e));
    C* sums = static_cast<C*>(ctx.scratch(sizeof(C) * size_t(heads * chunks * sums_of_one) + 64));
    Pieces pieces(ctx, Carver::bytes([&](Carver& c) { (void)typename F::Memory(c, s, d, e); }));
    parallel_for(heads * chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        char* piece = pieces.take();
        C* own = sums + i * sums_of_one;
        std::memset(own, 0, sizeof(C) * size_t(sums_of_one));
        const int64_t h = i / chunks, first = i % chunks * chunk;
        const int64_t last = first + chunk < queries ? first + chunk : queries;
        Carver carver(piece);
        F f{Head<T>(p, h / shared, h % shared * readers), typename F::Memory(carver, s, d, e), own,
            own + s * F::wide(d)};
        const int64_t seen = f.head.seen(last);
        if (first < last) f.pack(seen);
        for (int64_t r = 0; r < readers; ++r, ++f.head.h)
          for (int64_t q0 = first; q0 < last; q0 += F::kQ, cpu::poll_interrupt())
            f.block(dq, dout, out, lse, seen, q0, last - q0 < F::kQ ? last - q0 : F::kQ);
        pieces.give(piece);
      }
    });
    parallel_for(heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h) {
        const C* from = sums + h * chunks * sums_of_one;
        // The query that dk was summed with is not scaled everywhere.
        store_sums<T>(Head<T>::at(dk, h / shared, h % shared), dk.strides[2], from, chunks, sums_of_one, s, d,
                      F::wide(d), decltype(products)::kScalesQuery ? C(1) : C(p.scale));
        store_sums<T>(Head<T>::at(dv, h / shared, h % shared), dv.strides[2], from + s * F::wide(d), chunks,
                      sums_of_one, s, e, F::wide(e), C(1));
      }
    });
  });
}

}  // namespace

WT_KERNEL(attention, attention);
WT_KERNEL(attention_backward, attention_backward);

}  // namespace warptape::kernels::WARPTAPE_ISA
