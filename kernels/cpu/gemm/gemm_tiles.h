// The product of bfloat16 on AMX: 2 x 2 tiles of 16 x 16 sums, to which each step of 16 pairs of k adds four
// products. A part of k, of which A's rows and a strip of B's columns fit into the L2 cache, is taken at a
// time, so that each strip is fetched from a distant cache once; in a part the sums of 32 rows of the strip
// stay in the L1 cache.
#pragma once

#include "kernels/cpu/gemm/gemm_kind.h"

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

// Where sums begin, unless at zero, and where they go.
struct GemmTileSums {
  const float* from;  // null for zero
  float* to;
  int64_t ld;
};

// The product for 16 Down rows and 16 Across columns.
template <int Down, int Across>
WT_INLINE void gemm_tile_product(const GemmTileOperands& x, const GemmTileSums& sums) {
  constexpr int64_t kSize = 4, kStepB = 2 * kTileRowBytes;
  auto each = [&](auto&& f) __attribute__((always_inline)) {
    f(std::integral_constant<int, 0>{}, 0, 0);
    if constexpr (Across == 2) f(std::integral_constant<int, 1>{}, 0, 1);
    if constexpr (Down == 2) f(std::integral_constant<int, 2>{}, 1, 0);
    if constexpr (Down == 2 && Across == 2) f(std::integral_constant<int, 3>{}, 1, 1);
  };
  each([&](auto tile, int i, int j) __attribute__((always_inline)) {
    if (sums.from)
      tile_load<tile>(sums.from + (i * sums.ld + j) * kTileHeight, sums.ld * kSize);
    else
      tile_zero<tile>();
  });
  for (int64_t p = 0; p < x.depth; p += kTileHeight) {
    const uint32_t* b = x.b + p * 2 * kTileHeight;
    tile_stream<6>(b, kStepB);
    tile_load<4>(x.a + p, x.lda * kSize);
    if constexpr (Across == 2) tile_stream<7>(b + kTileHeight, kStepB);
    tile_product_bf16<0, 4, 6>();
    if constexpr (Across == 2) tile_product_bf16<1, 4, 7>();
    if constexpr (Down == 2) {
      tile_load<5>(x.a + p + kTileHeight * x.lda, x.lda * kSize);
      tile_product_bf16<2, 5, 6>();
      if constexpr (Across == 2) tile_product_bf16<3, 5, 7>();
    }
  }
  each([&](auto tile, int i, int j) __attribute__((always_inline)) {
    tile_store<tile>(sums.to + (i * sums.ld + j) * kTileHeight, sums.ld * kSize);
  });
}

// The same for `rows` rows and `cols` columns, 32 at most; columns up to the next multiple of 16 are written.
WT_INLINE void gemm_tile(int64_t rows, int64_t cols, const GemmTileOperands& x, const GemmTileSums& sums) {
  if (rows > kTileHeight && cols > kTileHeight) return gemm_tile_product<2, 2>(x, sums);
  if (rows > kTileHeight) return gemm_tile_product<2, 1>(x, sums);
  if (cols > kTileHeight) return gemm_tile_product<1, 2>(x, sums);
  gemm_tile_product<1, 1>(x, sums);
}

// The values of both vectors, to nearest even; what is too small for a normal number becomes zero.
WT_INLINE GemmVec<uint16_t> gemm_to_bf16(GemmVec<float> low, GemmVec<float> high) {
  GemmVec<uint16_t> both;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both) : "v"(high), "v"(low));
  return both;
}

// Rows `ld` apart, of each k values as pairs and zeros up to `depth` of them.
WT_INLINE void gemm_pack_rows(uint32_t* dst, int64_t ld, int64_t depth, const BFloat16* src, int64_t is,
                              int64_t ks, int64_t rows, int64_t k) {
  if (ks == 1) {
    for (int64_t i = 0; i < rows; ++i, dst += ld, src += is) {
      int64_t p = 0;
      for (; 2 * (p + 16) <= k; p += 16)
        gemm_store(dst + p, gemm_load(reinterpret_cast<const uint32_t*>(src + 2 * p)));
      if (p < depth) {
        const __mmask32 there = (__mmask32{1} << (k - 2 * p)) - 1;
        gemm_store(dst + p, (GemmVec<uint32_t>)_mm512_maskz_loadu_epi16(there, src + 2 * p));
      }
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
        for (int64_t r = 0; r < there; ++r) gemm_store(dst + (i + r) * ld + p, block[r]);
      }
  } else {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t p = 0; p < depth; ++p) {
        const BFloat16* s = src + i * is + 2 * p * ks;
        const uint32_t low = 2 * p < k ? s[0].bits : 0, high = 2 * p + 1 < k ? s[ks].bits : 0;
        dst[i * ld + p] = low | high << 16;
      }
  }
}

// Rounds to nearest even; what is too small for a normal number becomes zero.
WT_INLINE void gemm_finish_tiles(const float* sums, int64_t ld, int64_t rows, int64_t cols,
                                 const GemmOut<GemmBf16Tile>& out) {
  const float alpha = float(out.alpha), beta = float(out.beta);
  const bool plain = alpha == 1 && beta == 0 && !out.bias;
  for (int64_t i = 0; i < rows; ++i) {
    const float* s = sums + i * ld;
    BFloat16* c = out.c + i * out.ldc;
    int64_t j = 0;
    for (; plain && j + 32 <= cols; j += 32)
      gemm_store(reinterpret_cast<uint16_t*>(c + j), gemm_to_bf16(gemm_load(s + j), gemm_load(s + j + 16)));
    for (; j < cols; j += 16) {
      const int64_t n = cols - j < 16 ? cols - j : 16;
      GemmVec<float> v = gemm_load_part(s + j, n);
      if (alpha != 1) v *= alpha;
      if (out.bias) v += gemm_load_as<float>(out.bias + j, n);
      if (beta != 0) v += beta * gemm_load_as<float>(c + j, n);
      _mm512_mask_storeu_epi16(c + j, __mmask32((1u << n) - 1), (__m512i)gemm_to_bf16(v, v));
    }
  }
}

// sums += kept, and kept = sums, for rows of any number of columns.
WT_INLINE void gemm_add_rows(float* sums, int64_t ld, const float* kept, int64_t ld_kept, int64_t rows,
                             int64_t cols) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; j += 16) {
      float* s = sums + i * ld + j;
      gemm_store(s, gemm_load(s) + gemm_load_part(kept + i * ld_kept + j, cols - j < 16 ? cols - j : 16));
    }
}
WT_INLINE void gemm_copy_rows(const float* sums, int64_t ld, float* kept, int64_t ld_kept, int64_t rows,
                              int64_t cols) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; j += 16)
      gemm_store_part(kept + i * ld_kept + j, gemm_load(sums + i * ld + j), cols - j < 16 ? cols - j : 16);
}

// Rows of A, packed block of depth after block, for the part of k that is multiplied now: elements [begin,
// end).
struct GemmTileRows {
  const uint32_t* a;
  int64_t rows, panel_rows;
  int64_t begin, end, block_depth;
  float* partial;  // sums of all rows and columns from one part to the next; null where there is one part
  bool last;
};

// out = alpha * A B + beta * out + bias for n columns. panel(j, p, depth): where column j's panel lies in the
// block of depth at p.
template <class Panel>
struct GemmTileProduct {
  static constexpr int64_t kStrip = GemmBf16Tile::kBlockCols, kCols = GemmBf16Tile::kCols;
  const GemmTileRows& x;
  int64_t n;
  const Panel& panel;
  const GemmOut<GemmBf16Tile>& out;

  void run() const {
    for (int64_t j = 0; j < n; j += kStrip) {
      if (j) cpu::poll_interrupt();
      strip(j, n - j < kStrip ? n - j : kStrip);
    }
  }

 private:
  void strip(int64_t j, int64_t cols) const {
    alignas(64) float sums[GemmBf16Tile::kRows * kStrip];
    int64_t shaped = x.rows < x.panel_rows ? x.rows : x.panel_rows;
    TileScope tiles(gemm_tile_shapes(shaped));  // nobody else's code runs in it
    for (int64_t i = 0; i < x.rows; i += x.panel_rows) {
      const int64_t rows = x.rows - i < x.panel_rows ? x.rows - i : x.panel_rows;
      if (rows != shaped) tiles.use(gemm_tile_shapes(shaped = rows));
      multiply(i, rows, j, cols, sums);
      if (x.last)
        gemm_finish_tiles(
            sums, kStrip, rows, cols,
            {out.c + i * out.ldc + j, out.ldc, out.bias ? out.bias + j : nullptr, out.alpha, out.beta});
    }
  }
  void multiply(int64_t i, int64_t rows, int64_t j, int64_t cols, float* sums) const {
    float* kept = x.partial + j * x.rows + i * kStrip;
    for (int64_t p = x.begin; p < x.end; p += x.block_depth) {
      const int64_t depth = x.end - p < x.block_depth ? x.end - p : x.block_depth;
      const uint32_t* a = x.a + (p - x.begin) * x.rows + i * depth;
      const float* from = p > x.begin ? sums : kept;
      float* to = x.last || p + depth < x.end ? sums : kept;
      for (int64_t c = 0; c < cols; c += kCols)
        gemm_tile(rows, cols - c, {depth, a, depth, panel(j + c, p, depth)},
                  {p ? from + c : nullptr, to + c, kStrip});
    }
  }
};

}  // namespace warptape::kernels::WARPTAPE_ISA
#endif
