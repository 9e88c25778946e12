// The kinds of products that there are, for each the sizes of what is packed and multiplied at a time.
#pragma once

#include "kernels/cpu/gemm/gemm_pack.h"
#include "kernels/cpu/vector/amx.h"

namespace warptape::kernels::WARPTAPE_ISA {

// How one kind of product is computed: Storage is what memory holds, Elem what panels hold (kPack values of k
// each), Acc what sums are kept in.
template <class S, class E, class A, int Pack>
struct GemmKind {
  using Storage = S;
  using Elem = E;
  using Acc = A;
  static constexpr int kPack = Pack;
  static constexpr int kLanes = kGemmVecBytes / sizeof(A);
  static constexpr int kRows = kGemmRows;   // of a panel of A
  static constexpr int kCols = 2 * kLanes;  // of a panel of B
  static constexpr int kSteps = 1;          // elements of k, of which a block has whole multiples
  static constexpr int kDepth = (sizeof(A) == 4 ? 384 : 256);  // elements of k in one block
  static constexpr int kBlockCols = 10 * kCols;                // of B in one block
  static constexpr int kBlockRows = 12 * kRows;                // of A in one block
  static constexpr int kSpeed = 1;                             // times faster than vector instructions
};
using GemmF32 = GemmKind<float, float, float, 1>;
using GemmF64 = GemmKind<double, double, double, 1>;
using GemmHalf = GemmKind<Half, float, float, 1>;
using GemmBf16 = GemmKind<BFloat16, float, float, 1>;        // widened when packed
using GemmBf16Dot = GemmKind<BFloat16, uint32_t, float, 2>;  // pairs, for the bf16 dot product instruction
// Integers, which wrap: those of at most 32 bits are multiplied as such.
template <class S>
using GemmInt =
    std::conditional_t<sizeof(S) == 8, GemmKind<S, int64_t, int64_t, 1>, GemmKind<S, int32_t, int32_t, 1>>;
#if defined(__AVX512F__)
// Pairs, for AMX (gemm_tiles.h). A panel of A is rows one after the other; what is missing along k is zeros.
struct GemmBf16Tile : GemmBf16Dot {
  static constexpr int kRows = 2 * kTileHeight;
  static constexpr int kSteps = kTileHeight;
  static constexpr int kDepth = 16 * kSteps;  // a panel of A fills half of the L1 cache
  static constexpr int kPart = 2 * kDepth;    // elements of k whose A and B stay in the L2 cache
  static constexpr int kBlockCols = 128;      // whose sums for 32 rows stay in the L1 cache
  static constexpr int kSpeed = 4;
};
#endif
template <class Kind> inline constexpr bool kGemmTiles = Kind::kSteps > 1;

WT_INLINE int64_t gemm_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The size of equal parts, none above `most`, of n items in units of `unit`.
WT_INLINE int64_t gemm_even(int64_t n, int64_t most, int64_t unit) {
  return gemm_ceil(gemm_ceil(n, gemm_ceil(n, most)), unit) * unit;
}

// Elements that k values take in a panel.
template <class Kind>
WT_INLINE int64_t gemm_depth(int64_t k) {
  return gemm_ceil(k, Kind::kPack * Kind::kSteps) * Kind::kSteps;
}

// The result: out = alpha * product + beta * out + bias.
template <class Kind>
struct GemmOut {
  typename Kind::Storage* c;
  int64_t ldc;
  const typename Kind::Storage* bias;  // null for none
  double alpha;
  double beta;
};

// The same for the columns from j on.
template <class Kind>
WT_INLINE GemmOut<Kind> gemm_from_col(const GemmOut<Kind>& out, int64_t j) {
  return {out.c + j, out.ldc, out.bias ? out.bias + j : nullptr, out.alpha, out.beta};
}

}  // namespace warptape::kernels::WARPTAPE_ISA
