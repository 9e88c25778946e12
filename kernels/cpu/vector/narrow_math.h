// The math set for single integers of 32 bits, in which bytes and 32-bit integers are computed: the compiler
// makes lanes of their own width of the loops over them. Sums and products wrap.
#pragma once

#include "kernels/cpu/vector/vecmath.h"

namespace warptape::kernels::WARPTAPE_ISA {

template <> inline constexpr bool kIsInteger<int32_t> = true;

WT_FN int32_t select(bool mask, int32_t a, int32_t b) { return mask ? a : b; }
WT_FN int32_t maximum(int32_t a, int32_t b) { return a > b ? a : b; }
WT_FN int32_t minimum(int32_t a, int32_t b) { return a < b ? a : b; }
WT_FN int32_t max_or_b(int32_t a, int32_t b) { return maximum(a, b); }
WT_FN int32_t abs(int32_t a) { return a < 0 ? -a : a; }
WT_FN int32_t fma(int32_t a, int32_t b, int32_t c) { return a * b + c; }
WT_FN bool isnan(int32_t) { return false; }
WT_FN int32_t shift_left(int32_t a, int32_t b) { return uint32_t(b) > 31 ? 0 : int32_t(uint32_t(a) << b); }
WT_FN int32_t shift_right(int32_t a, int32_t b) { return a >> (uint32_t(b) > 31 ? 31 : b); }

}  // namespace warptape::kernels::WARPTAPE_ISA
