// What tiles by mma.sync share: the exchange before a store.
#pragma once

#include "kernels/cuda/common/fragments.cuh"
#include "kernels/cuda/common/memory.cuh"
#include "kernels/cuda/gemm/tiling.h"

namespace warptape::kernels::cuda {

// The sums of two rows, as mma leaves them, of 32 columns from `col` on: fours of d. Stored by 16 bytes.
template <class T>
WT_DEVICE void store_sums(const GemmArgs<T>& g, int64_t row, int64_t col, const float* d) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j] = pack_two<T>(d[4 * j + 2 * half], d[4 * j + 2 * half + 1]);
    exchange_in_fours(words);
    const int64_t i = row + 8 * half, j = col + t * kPiece;
    if (i < g.m && j < g.n) {
      Packed<uint32_t, 4> piece{{words[0], words[1], words[2], words[3]}};
      store_packed(reinterpret_cast<uint32_t*>(g.c + i * g.n + j), piece);
    }
  }
}

}  // namespace warptape::kernels::cuda
