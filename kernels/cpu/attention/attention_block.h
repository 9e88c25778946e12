// What attention's forward and backward share. Queries lie across the lanes: a block of kQueries queries is
// one panel [head size][kQueries], scores are [keys][kQueries], so that the softmax over keys needs no step
// across lanes and its result is already the packed operand of the next product.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/random/philox.h"
#include "kernels/cpu/vector/rows.h"

namespace warptape::kernels::WARPTAPE_ISA {

template <class C> inline constexpr int kQueries = 2 * Vec<C>::kLanes;
inline constexpr int64_t kMostKeys = 128;  // in one block

template <class C, int... R>
struct BlockMicros {
  using Micro = void (*)(int64_t, const C*, const C*, int64_t, const GemmTile<C>&);
  static constexpr Micro kTable[] = {gemm_micro<C, C, R, 2>...};
};
#if defined(__AVX512F__)
template <class C> using Micros = BlockMicros<C, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;
#else
template <class C> using Micros = BlockMicros<C, 1, 2, 3, 4, 5, 6>;
#endif

WT_FN int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// How blocks are multiplied: c [rows, kQueries wide] (+)= a b. AttentionTiles (attention_tiles.h) has the
// same members; see there what differs.
template <class T_>
struct AttentionVectors {
  using T = T_;
  using C = Compute<T>;
  using Operand = C;  // of a product
  static constexpr int kQ = kQueries<C>;
  static constexpr int64_t kUnit = kGemmRows;      // keys that are computed together
  static constexpr int64_t kKeys = 9 * kGemmRows;  // in one block: the scores stay in the first cache
  static constexpr bool kScalesQuery = true;       // else scores
  // Operands that n values along the depth take.
  WT_FN static int64_t depth(int64_t n) { return n; }

  // Rows (`is` apart) of k values as a: panels of kGemmRows.
  static void pack_a(Operand* to, const T* x, int64_t is, int64_t ks, int64_t rows, int64_t k) {
    gemm_pack_panels<T, C>(to, kGemmRows, false, x, is, ks, rows, k);
  }
  // Rows of x [rows, d] times `factor` as the columns of b: [d][kQ]. Missing rows get any finite values.
  static void pack_b(Operand* to, const T* x, int64_t stride, int64_t rows, int64_t d, C factor) {
    gemm_pack_panels<T, C>(to, kQ, true, x, stride, 1, rows, d);
    if (factor != 1)
      for_vectors<C>(d * kQ, [&](int64_t i, auto l) { store(to + i, load(to + i, l) * Vec<C>(factor), l); });
  }
  // x [n, kQ] as b; `room` is for depth(n) * kQ.
  WT_FN static const Operand* as_b(Operand*, const C* x, int64_t) { return x; }
  // The first n columns of x [rows, kQ] as a.
  static void columns_as_a(Operand* to, const C* x, int64_t rows, int64_t n) {
    gemm_pack_panels<C, C>(to, kGemmRows, false, x, kQ, 1, rows, n);
  }
  // Rows of x [n, d] times `factor` as b [n][wide], and where its columns from i on begin.
  static void rows_as_b(Operand* to, const T* x, int64_t stride, int64_t n, int64_t d, C factor) {
    const int64_t wide = round_up(d, kQ);
    for (int64_t r = 0; r < n; ++r) {
      C* row = to + r * wide;
      for_vectors<C>(
          d, [&](int64_t i, auto l) { store(row + i, load(x + r * stride + i, l) * Vec<C>(factor), l); });
      for (int64_t i = d; i < wide; ++i) row[i] = 0;
    }
  }
  WT_FN static int64_t column_of_b(int64_t i) { return i; }

  // `a` was packed `packed_depth` deep; steps of b are `ldb` apart.
  static void product(int64_t rows, int64_t depth, const Operand* a, int64_t packed_depth, const Operand* b,
                      int64_t ldb, C* c, int64_t ldc, bool add) {
    for (int64_t i = 0; i < rows; i += kGemmRows) {
      const int64_t r = rows - i < kGemmRows ? rows - i : kGemmRows;
      Micros<C>::kTable[r - 1](depth, a + i * packed_depth, b, ldb,
                               GemmTile<C>{c + i * ldc, ldc, kQ, nullptr, add});
    }
  }
};

// Scratch memory for as many tasks as run at once; a task borrows one piece. Which one does not matter to its
// result.
class Pieces {
 public:
  Pieces(const LaunchContext& ctx, size_t bytes)
      : bytes_(bytes + 64), count_(cpu::num_threads() < kMost ? cpu::num_threads() : kMost) {
    memory_ = static_cast<char*>(ctx.scratch(bytes_ * size_t(count_) + 64));
  }
  char* take() {
    for (int i = 0;; i = (i + 1) % count_)
      if (!__atomic_exchange_n(&taken_[i], true, __ATOMIC_ACQUIRE)) return memory_ + bytes_ * size_t(i);
  }
  void give(char* piece) {
    __atomic_store_n(&taken_[size_t(piece - memory_) / bytes_], false, __ATOMIC_RELEASE);
  }

 private:
  static constexpr int kMost = 256;
  size_t bytes_;
  int count_;
  char* memory_;
  bool taken_[kMost] = {};
};

// Hands out aligned parts of a piece, or counts the bytes of them.
class Carver {
 public:
  explicit Carver(char* at) : at_(reinterpret_cast<uintptr_t>(at)) {}
  template <class C>
  WT_FN C* part(int64_t n) {
    const uintptr_t p = (at_ + 63) & ~uintptr_t{63};
    at_ = p + uintptr_t(n) * sizeof(C);
    return reinterpret_cast<C*>(p);
  }
  // What f(Carver&) takes of a piece.
  template <class F>
  static size_t bytes(F&& f) {
    Carver counter(nullptr);
    f(counter);
    return size_t(counter.at_) + 64;
  }

 private:
  uintptr_t at_;
};

// One head of one batch element: T queries, S keys, sizes D and E.
template <class T>
struct Head {
  using C = Compute<T>;
  const AttentionPlan& plan;
  int64_t b, h;
  int64_t queries, keys, d, e;

  Head(const AttentionPlan& p, int64_t batch, int64_t head)
      : plan(p),
        b(batch),
        h(head),
        queries(p.q.sizes[2]),
        keys(p.k.sizes[2]),
        d(p.q.sizes[3]),
        e(p.v.sizes[3]) {}
  WT_FN static T* at(const View& v, int64_t b, int64_t h) {
    return v.as<T>() + b * v.strides[0] + h * v.strides[1];
  }
  WT_FN int64_t shared_head() const { return h / (plan.q.sizes[1] / plan.k.sizes[1]); }
  // The queries before `last` see keys before this one.
  WT_FN int64_t seen(int64_t last) const { return plan.band.until(last - 1, keys); }
  WT_FN C* lse_at(const View& lse, int64_t t) const {
    return lse.as<C>() + b * lse.strides[0] + h * lse.strides[1] + t;
  }
};

// A block of keys: where it starts, how many keys were packed together, and how many of them are computed:
// those that are seen, in whole units.
template <class P>
struct KeyBlock {
  int64_t first, packed, count;
  KeyBlock(int64_t k0, int64_t all, int64_t seen)
      : first(k0), packed(all - k0 < P::kKeys ? all - k0 : P::kKeys), count(round_up(seen - k0, P::kUnit)) {
    if (count > packed) count = packed;
  }
};

// A panel [D][kQueries] times `factor` into rows of x. `rows_of` is room for kQueries x D.
template <class T, class C = Compute<T>>
void store_panel(T* x, int64_t stride, int64_t rows, int64_t d, const C* panel, C factor, C* rows_of) {
  gemm_pack_panels<C, C>(rows_of, d, true, panel, kQueries<C>, 1, d, rows);
  for (int64_t r = 0; r < rows; ++r)
    for_vectors<C>(d, [&](int64_t i, auto l) {
      store(x + r * stride + i, load(rows_of + r * d + i, l) * Vec<C>(factor), l);
    });
}

// Adds the mask, and minus infinity where a query may not see a key, to the scores of queries from q0 (n of
// them) and keys from k0 (nk of them).
template <class T>
void mask_scores(const Head<T>& head, Compute<T>* scores, int64_t q0, int64_t n, int64_t k0, int64_t nk) {
  using C = Compute<T>;
  constexpr int kQ = kQueries<C>, kL = Vec<C>::kLanes;
  const C kLow = -__builtin_inf();
  const View& m = head.plan.mask;
  if (m.data) {
    const int64_t at = head.b * m.strides[0] + head.h * m.strides[1] + k0 * m.strides[3];
    for (int64_t q = 0; q < n; ++q) {
      const int64_t row = at + (q0 + q) * m.strides[2];
      if (m.dtype == DType::Bool) {
        const Bool* p = m.as<Bool>() + row;
        for (int64_t j = 0; j < nk; ++j)
          if (!p[j * m.strides[3]]) scores[j * kQ + q] = kLow;
      } else {
        const T* p = m.as<T>() + row;
        for (int64_t j = 0; j < nk; ++j) scores[j * kQ + q] += C(p[j * m.strides[3]]);
      }
    }
  }
  const Band& band = head.plan.band;
  Vec<C> lane;
  for (int i = 0; i < kL; ++i) lane.v[i] = C(i);
  if (k0 + nk - 1 > q0 + band.last)
    for (int64_t j = q0 + band.last + 1 > k0 ? q0 + band.last + 1 - k0 : 0; j < nk; ++j)
      for (int half = 0; half < 2; ++half) {
        C* s = scores + j * kQ + half * kL;
        const Vec<C> first(C(k0 + j - q0 - band.last - half * kL));  // the first lane that sees key j
        select(lane < first, Vec<C>(kLow), Vec<C>::load(s)).store(s);
      }
  if (k0 < q0 + kQ - 1 + band.first)
    for (int64_t j = 0; j < nk && k0 + j < q0 + kQ - 1 + band.first; ++j)
      for (int half = 0; half < 2; ++half) {
        C* s = scores + j * kQ + half * kL;
        const Vec<C> last(C(k0 + j - q0 - band.first - half * kL));  // the last lane that does
        select(last < lane, Vec<C>(kLow), Vec<C>::load(s)).store(s);
      }
}

// What dropout multiplies the probabilities with: 0 or 1 / (1 - p), as [keys][kQueries].
template <class T>
void dropout_factors(const Head<T>& head, Compute<T>* factors, int64_t q0, int64_t n, int64_t k0,
                     int64_t nk) {
  using C = Compute<T>;
  const uint64_t threshold = dropout_threshold(head.plan.dropout_p);
  const C keep = C(1 / (1 - head.plan.dropout_p));
  uint32_t numbers[kMostKeys];
  for (int64_t q = 0; q < n; ++q) {
    const auto at = uint64_t(head.b * head.plan.q.sizes[1] + head.h);
    const uint64_t row = head.plan.numbers.row(at, uint64_t(q0 + q));
    philox_numbers(head.plan.key, row + uint64_t(k0), nk, numbers);
    for (int64_t j = 0; j < nk; ++j) factors[j * kQueries<C> + q] = numbers[j] >= threshold ? keep : C(0);
  }
  for (int64_t q = n; q < kQueries<C>; ++q)
    for (int64_t j = 0; j < nk; ++j) factors[j * kQueries<C> + q] = 0;
}

// Into how many parts the queries of a head are cut, by size alone, so that there are tasks for several
// threads.
WT_FN int64_t query_chunks(int64_t heads, int64_t queries, int64_t block) {
  int64_t chunks = heads >= 8 ? 1 : (8 + heads - 1) / heads;
  const int64_t most = (queries + 4 * block - 1) / (4 * block);
  return chunks < most ? chunks : most;
}

}  // namespace warptape::kernels::WARPTAPE_ISA
