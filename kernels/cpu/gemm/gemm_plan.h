// The built-in matrix product on the operands of a plan: parts of it, and B packed once for many tasks.
#pragma once

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/linalg/matmul.h"
#include "kernels/runtime/parallel.h"

namespace warptape::kernels::WARPTAPE_ISA {

// One matrix of the batch.
template <class S>
struct Matrices {
  const S* a;
  const S* b;
  S* c;
};

template <class S>
WT_INLINE Matrices<S> matrices(const MatmulPlan& p, int64_t i) {
  int64_t i0 = i / p.batch[1], i1 = i % p.batch[1];
  auto at = [&](const MatrixRef& m) {
    return static_cast<S*>(m.data) + i0 * m.batch_strides[0] + i1 * m.batch_strides[1];
  };
  return {at(p.a), at(p.b), at(p.c)};
}

// Rows from i0 and columns from j0 on of one product.
template <class Kind>
struct Part {
  using S = typename Kind::Storage;
  using Elem = typename Kind::Elem;
  // Each kind is another copy of the kernels: not with the least instruction set, nor of doubles.
  static constexpr bool kReadsRows = WARPTAPE_ISA_LEVEL > 1 && std::is_same_v<typename Kind::Acc, float> &&
                                     !kGemmTiles<Kind> && sizeof(S) * Kind::kPack == sizeof(Elem);
  const MatmulPlan& p;
  const S* a;
  const S* b;
  GemmOut<Kind> out;

  WT_INLINE Part(const MatmulPlan& plan, const Matrices<S>& x, int64_t i0, int64_t j0)
      : p(plan),
        a(x.a + i0 * p.a.row_stride),
        b(x.b + j0 * p.b.col_stride),
        out{x.c + i0 * p.c.row_stride + j0, p.c.row_stride,
            p.bias ? static_cast<const S*>(p.bias) + j0 : nullptr, p.alpha, p.beta} {}
  WT_INLINE GemmBlocking<Kind> blocking(int64_t m, int64_t n, bool direct) const {
    return GemmBlocking<Kind>(m, n, p.k, direct && p.b.col_stride == 1 && p.b.row_stride > 0, out);
  }
  WT_INLINE int64_t values(int64_t at, int64_t depth) const {  // of k; the last pair may be half
    int64_t left = p.k - at * Kind::kPack;
    return left < depth * Kind::kPack ? left : depth * Kind::kPack;
  }
  WT_INLINE auto pack_a() const {
    return [this](Elem* dst, int64_t i, int64_t rows, int64_t at, int64_t depth, int64_t width) {
      gemm_pack_a<Kind>(dst, width, a + i * p.a.row_stride + at * Kind::kPack * p.a.col_stride,
                        p.a.row_stride, p.a.col_stride, rows, values(at, depth));
    };
  }
  // Calls f(Lda, pack_a) for gemm_serial and gemm_with_shared. Rows of A that are contiguous are read where
  // they are, unless they share the few places that the L1 cache has for addresses 4,096 bytes apart.
  template <class F>
  WT_INLINE void with_a(GemmBlocking<Kind>& bl, F&& f) const {
    if constexpr (kReadsRows) {
      const int64_t within = p.a.row_stride * int64_t(sizeof(S)) % 4096;
      if (p.a.col_stride == 1 && p.k % Kind::kPack == 0 && p.a.row_stride % Kind::kPack == 0 &&
          within >= 256 && within <= 4096 - 256) {
        bl.lda = p.a.row_stride / Kind::kPack;
        return f(std::integral_constant<int, kAnyLda>{},
                 [this](Elem*, int64_t i, int64_t, int64_t at, int64_t, int64_t) {
                   return reinterpret_cast<const Elem*>(a + i * p.a.row_stride + at * Kind::kPack);
                 });
      }
    }
    f(std::integral_constant<int, 0>{}, pack_a());
  }
  WT_INLINE auto pack_b() const {
    return [this](Elem* dst, int64_t j, int64_t cols, int64_t at, int64_t depth) {
      gemm_pack_b<Kind>(dst, b + j * p.b.col_stride + at * Kind::kPack * p.b.row_stride, p.b.col_stride,
                        p.b.row_stride, cols, values(at, depth));
    };
  }
};

// Elements of all of B, packed as gemm_with_shared reads it.
template <class Kind>
int64_t gemm_shared_elements(const MatmulPlan& p) {
  return gemm_ceil(p.n, Kind::kCols) * Kind::kCols * gemm_depth<Kind>(p.k);
}

// All of B packed by all threads to `b`; `bl` says how, for any number of rows.
template <class Kind>
void gemm_pack_shared_to(typename Kind::Elem* b, const Part<Kind>& whole, const GemmBlocking<Kind>& bl) {
  const MatmulPlan& p = whole.p;
  int64_t across = gemm_ceil(p.n, bl.block_cols), deep = gemm_ceil(bl.depth, bl.block_depth);
  cpu::parallel_for(across * deep, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      int64_t j = t / deep * bl.block_cols, at = t % deep * bl.block_depth;
      int64_t cols = p.n - j < bl.block_cols ? p.n - j : bl.block_cols;
      int64_t depth = bl.depth - at < bl.block_depth ? bl.depth - at : bl.block_depth;
      whole.pack_b()(b + gemm_shared_at<Kind>(p.n, j, at, depth), j, cols, at, depth);
    }
  });
}

// All of B, packed before or now.
template <class Kind>
const typename Kind::Elem* gemm_pack_shared(const LaunchContext& ctx, const Part<Kind>& whole,
                                            const GemmBlocking<Kind>& bl) {
  using Elem = typename Kind::Elem;
  if (whole.p.packed) return static_cast<const Elem*>(whole.p.packed);
  auto* b = static_cast<Elem*>(ctx.scratch(sizeof(Elem) * gemm_shared_elements<Kind>(whole.p)));
  gemm_pack_shared_to(b, whole, bl);
  return b;
}

}  // namespace warptape::kernels::WARPTAPE_ISA
