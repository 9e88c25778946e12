// Random numbers by index for kernels that drop elements (dropout, attention).
#pragma once

#include "kernels/random/random.h"

namespace warptape::kernels::WARPTAPE_ISA {

// Numbers first, first + 1, ... of the key; see kernels/random/random.h.
void philox_numbers(PhiloxKey key, uint64_t first, int64_t n, uint32_t* out);
// The numbers of elements i, i + 1, ... of a part.
void philox_numbers(PhiloxKey key, const PhiloxPart& part, uint64_t i, int64_t n, uint32_t* out);

// An element is kept when its number is at least this (2^32 for p = 1: none is).
WT_INLINE uint64_t dropout_threshold(double p) { return uint64_t(__builtin_ceil(p * 0x1p32)); }

}  // namespace warptape::kernels::WARPTAPE_ISA
