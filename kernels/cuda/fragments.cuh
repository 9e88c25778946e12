// Fragments of 16-bit types: words of two numbers, and how sums become pieces that are stored at once.
#pragma once

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/ptx.cuh"

namespace warptape::kernels::cuda {

inline constexpr int kPiece = 8;  // elements of 16 bytes

// Two numbers as a word, the first one in its lower half.
template <class T>
WT_DEVICE uint32_t pack_two(float low, float high) {
  return uint32_t(T(low).bits) | uint32_t(T(high).bits) << 16;
}

// Four neighbouring lanes hold words[j] of four pieces: lane t gets all four words of piece t.
WT_DEVICE void exchange_in_fours(uint32_t (&words)[4]) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool high = threadIdx.x & step;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j & step) continue;
      const uint32_t got = __shfl_xor_sync(kAllLanes, high ? words[j] : words[j + step], step);
      (high ? words[j] : words[j + step]) = got;
    }
  }
}

}  // namespace warptape::kernels::cuda
