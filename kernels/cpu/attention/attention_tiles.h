// The products of attention in bfloat16 on AMX. Queries, keys, values and gradients are multiplied as they
// are; probabilities, and the gradient of scores, are rounded to bfloat16 before the second products, as
// PyTorch's kernel does. Sums, and the softmax, stay in float32.
#pragma once

#include "kernels/cpu/attention/attention_block.h"

#if defined(__AVX512F__)
namespace warptape::kernels::WARPTAPE_ISA {

struct AttentionTiles {
  using T = BFloat16;
  using C = float;
  using Operand = uint32_t;  // a pair along the depth
  static constexpr int kQ = kQueries<C>;
  static constexpr int64_t kUnit = kTileHeight;
  static constexpr int64_t kKeys = kMostKeys;
  static constexpr bool kScalesQuery = false;  // which would round it
  static_assert(kQ == GemmBf16Tile::kCols);
  WT_FN static int64_t depth(int64_t n) { return gemm_depth<GemmBf16Tile>(n); }

  static void pack_a(Operand* to, const T* x, int64_t is, int64_t ks, int64_t rows, int64_t k) {
    gemm_pack_rows(to, depth(k), depth(k), x, is, ks, rows, k);
  }
  static void pack_b(Operand* to, const T* x, int64_t stride, int64_t rows, int64_t d, C) {
    gemm_pack_panels<T, Operand>(to, kQ, true, x, stride, 1, rows, d, depth(d));
  }
  // Rows 2 i and 2 i + 1 of x become pairs.
  static const Operand* as_b(Operand* room, const C* x, int64_t n) {
    alignas(64) static constexpr uint16_t kInterleave[] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i order = _mm512_load_si512(kInterleave);
    for (int64_t p = 0; p < depth(n); ++p)
      for (int half = 0; half < kQ; half += 16) {
        const C* row = x + 2 * p * kQ + half;
        const GemmVec<C> low = 2 * p < n ? gemm_load(row) : GemmVec<C>{};
        const GemmVec<C> high = 2 * p + 1 < n ? gemm_load(row + kQ) : GemmVec<C>{};
        _mm512_store_si512(room + p * kQ + half,
                           _mm512_permutexvar_epi16(order, (__m512i)gemm_to_bf16(low, high)));
      }
    return room;
  }
  // All kQ columns: those beyond n are zeros in x or meet zeros in b.
  static void columns_as_a(Operand* to, const C* x, int64_t rows, int64_t) {
    for (int64_t i = 0; i < rows; ++i, x += kQ, to += kQ / 2)
      _mm512_store_si512(to, (__m512i)gemm_to_bf16(gemm_load(x), gemm_load(x + 16)));
  }
  static void rows_as_b(Operand* to, const T* x, int64_t stride, int64_t n, int64_t d, C) {
    gemm_pack_panels<T, Operand>(to, kQ, true, x, 1, stride, d, n, depth(kQ));
  }
  WT_FN static int64_t column_of_b(int64_t i) { return i * depth(kQ); }

  static void product(int64_t rows, int64_t values, const Operand* a, int64_t packed_values, const Operand* b,
                      int64_t, C* c, int64_t ldc, bool add) {
    constexpr int64_t kRows = GemmBf16Tile::kRows;
    const int64_t lda = depth(packed_values);
    TileScope tiles(gemm_tile_shapes(rows < kRows ? rows : kRows));
    for (int64_t i = 0; i < rows; i += kRows) {
      const int64_t r = rows - i < kRows ? rows - i : kRows;
      if (i && r < kRows) tiles.use(gemm_tile_shapes(r));
      C* sums = c + i * ldc;
      gemm_tile(r, kQ, {depth(values), a + i * lda, lda, b}, {add ? sums : nullptr, sums, ldc});
    }
  }
};

}  // namespace warptape::kernels::WARPTAPE_ISA
#endif
