// The innermost kernel on AMX: 2 x 2 tiles of 16 x 16 sums, to which each step of 16 pairs of k adds four
// products.
#pragma once

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_pack.h"

#if defined(__AVX512F__)
namespace warptape::kernels::WARPTAPE_ISA {

// The shapes for `rows` rows of A, 32 at most: registers 0 to 3 are sums, 4 and 5 are A's, 6 and 7 are B's.
WT_INLINE TileShapes gemm_tile_shapes(int64_t rows) {
  const int top = rows < kTileHeight ? int(rows) : kTileHeight, bottom = int(rows) - top;
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) {
    const int height = tile >= 6 ? kTileHeight : tile == 4 || tile < 2 ? top : bottom;
    if (height) shapes.set(tile, height, kTileRowBytes);
  }
  return shapes;
}

// Pairs along k of a few rows of A, `lda` apart, with those of 32 columns of B, which are packed.
struct GemmTileOperands {
  int64_t depth;  // a multiple of 16
  const uint32_t* a;
  int64_t lda;
  const uint32_t* b;
};

// The product for 16 Down rows and 16 Across columns, added to sums unless it is the first.
template <int Down, int Across>
WT_INLINE void gemm_tile_product(const GemmTileOperands& x, float* sums, int64_t ld, bool first) {
  constexpr int64_t kSize = 4, kStepB = 2 * kTileRowBytes;
  auto each = [&](auto&& f) __attribute__((always_inline)) {
    f(std::integral_constant<int, 0>{}, 0, 0);
    if constexpr (Across == 2) f(std::integral_constant<int, 1>{}, 0, 1);
    if constexpr (Down == 2) f(std::integral_constant<int, 2>{}, 1, 0);
    if constexpr (Down == 2 && Across == 2) f(std::integral_constant<int, 3>{}, 1, 1);
  };
  each([&](auto tile, int i, int j) __attribute__((always_inline)) {
    if (first)
      tile_zero<tile>();
    else
      tile_load<tile>(sums + i * kTileHeight * ld + j * kTileHeight, ld * kSize);
  });
  for (int64_t p = 0; p < x.depth; p += kTileHeight) {
    const uint32_t* b = x.b + p * 2 * kTileHeight;
    tile_load<6>(b, kStepB);
    tile_load<4>(x.a + p, x.lda * kSize);
    if constexpr (Across == 2) tile_load<7>(b + kTileHeight, kStepB);
    tile_product_bf16<0, 4, 6>();
    if constexpr (Across == 2) tile_product_bf16<1, 4, 7>();
    if constexpr (Down == 2) {
      tile_load<5>(x.a + p + kTileHeight * x.lda, x.lda * kSize);
      tile_product_bf16<2, 5, 6>();
      if constexpr (Across == 2) tile_product_bf16<3, 5, 7>();
    }
  }
  each([&](auto tile, int i, int j) __attribute__((always_inline)) {
    tile_store<tile>(sums + i * kTileHeight * ld + j * kTileHeight, ld * kSize);
  });
}

// The same for `rows` rows and `cols` columns, 32 at most; columns up to the next multiple of 16 are written.
WT_INLINE void gemm_tile(int64_t rows, int64_t cols, const GemmTileOperands& x, float* sums, int64_t ld,
                         bool first) {
  if (rows > kTileHeight && cols > kTileHeight) return gemm_tile_product<2, 2>(x, sums, ld, first);
  if (rows > kTileHeight) return gemm_tile_product<2, 1>(x, sums, ld, first);
  if (cols > kTileHeight) return gemm_tile_product<1, 2>(x, sums, ld, first);
  gemm_tile_product<1, 1>(x, sums, ld, first);
}

// Rows one after the other, of each k values as pairs and zeros up to `depth` of them.
WT_INLINE void gemm_pack_rows(uint32_t* dst, int64_t depth, const BFloat16* src, int64_t is, int64_t ks,
                              int64_t rows, int64_t k) {
  if (ks == 1) {
    for (int64_t i = 0; i < rows; ++i, dst += depth, src += is) {
      auto* to = reinterpret_cast<char*>(dst);
      std::memcpy(to, static_cast<const void*>(src), size_t(k) * 2);
      std::memset(to + k * 2, 0, size_t(depth * 4 - k * 2));
    }
  } else if (is == 1) {
    for (int64_t p = 0; p < depth; p += 16)
      for (int64_t i = 0; i < rows; i += 16) {
        const int64_t there = rows - i < 16 ? rows - i : 16;
        GemmVec<uint32_t> block[16];
#pragma GCC unroll 16
        for (int t = 0; t < 16; ++t) {
          const int64_t q = 2 * (p + t);
          const BFloat16* s = src + q * ks + i;
          block[t] = q < k ? gemm_widen_part(s, there) : GemmVec<uint32_t>{};
          if (q + 1 < k) block[t] |= gemm_widen_part(s + ks, there) << 16;
        }
        gemm_transpose<uint32_t>(block);
        for (int64_t r = 0; r < there; ++r) gemm_store(dst + (i + r) * depth + p, block[r]);
      }
  } else {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t p = 0; p < depth; ++p) {
        const BFloat16* s = src + i * is + 2 * p * ks;
        const uint32_t low = 2 * p < k ? s[0].bits : 0, high = 2 * p + 1 < k ? s[ks].bits : 0;
        dst[i * depth + p] = low | high << 16;
      }
  }
}

// n values of float as bfloat16, to nearest even; those too small for a normal number become zero.
WT_INLINE void gemm_store_bf16(BFloat16* to, GemmVec<float> v, int64_t n) {
  __m256i narrow;
  asm("vcvtneps2bf16 %1, %0" : "=v"(narrow) : "v"(v));
  _mm256_mask_storeu_epi16(to, __mmask16((1u << n) - 1), narrow);
}

}  // namespace warptape::kernels::WARPTAPE_ISA
#endif
