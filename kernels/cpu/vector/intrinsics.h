// The instruction set's intrinsics, by Intel's names: on aarch64 vec_neon.h gives those of 128 bits.
#pragma once

#if defined(__aarch64__)
#include "kernels/cpu/vector/vec_neon.h"
#else
// GCC 12 takes the deliberately undefined operands inside these headers for mistakes.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define WT_HAS_FMA
#endif
