// AMX: eight registers of 16 rows by 64 bytes, and products of two of them added to a third. The instructions
// are written as assembly, for the files that use them are compiled for AVX-512 alone, and the caller asks
// has_amx_int8 or has_amx_bf16 first. Intel, Software Developer's Manual, volume 2, TDPBUUD, TDPBF16PS.
#pragma once

#include <cstdint>

#include "kernels/cpu/vector/intrinsics.h"
#include "kernels/types.h"

namespace warptape::kernels::cpu {

// Whether the processor has the products and Linux lends this process the registers, which is asked once.
// WARPTAPE_AMX=0 in the environment turns them off.
bool has_amx_int8();
bool has_amx_bf16();

}  // namespace warptape::kernels::cpu

#if defined(__AVX512F__)
namespace warptape::kernels::WARPTAPE_ISA {

inline constexpr int kTileHeight = 16;    // rows
inline constexpr int kTileRowBytes = 64;  // 16 sums of 32 bits, or the operands of 16, 32 or 64 products

// The shapes of the eight registers. A product c += a b takes M = rows of a and c, N = columns of b and c /
// 4, K = columns of a / 4 = rows of b.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr void set(int tile, int height, int bytes) {
    rows[tile] = uint8_t(height), row_bytes[tile] = uint16_t(bytes);
  }
};
static_assert(sizeof(TileShapes) == 64);

// Lends the registers to the calling thread in shapes that may change; while they are in use a thread switch
// saves 8 KB more.
class TileScope {
 public:
  explicit TileScope(const TileShapes& shapes) { use(shapes); }
  ~TileScope() { asm volatile("tilerelease" ::: "memory"); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

  // All registers become zero.
  void use(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
};

template <int T>
WT_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}

// Rows `stride` bytes apart.
template <int T>
WT_INLINE void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
}

// The same for what is read once: it need not stay in the L1 cache.
template <int T>
WT_INLINE void tile_stream(const void* from, int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
}

template <int T>
WT_INLINE void tile_store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
}

// C += A B for bytes with a sign, or without where the letter of A or B is u: exact sums of 32 bits.
template <int C, int A, int B>
WT_INLINE void tile_product_ss() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B>
WT_INLINE void tile_product_us() {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B>
WT_INLINE void tile_product_su() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

// C += A B for pairs of bfloat16, into sums of float32. Denormal numbers count as zero.
template <int C, int A, int B>
WT_INLINE void tile_product_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

}  // namespace warptape::kernels::WARPTAPE_ISA
#endif
