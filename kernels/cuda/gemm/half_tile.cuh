// What the tensor-core steps of 16-bit types share: copies of tiles, and the exchange before a store.
#pragma once

#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/gemm/tile.cuh"

namespace warptape::kernels::cuda {

// Asks for a tile [Rows, Cols] of X [rows, cols], whose rows are multiples of 16 bytes, from (row, col) on;
// zeros outside. place(r, piece) says where in shared memory a piece goes.
template <int Rows, int Cols, int Threads, class T, class Place>
WT_DEVICE void fetch_tile(const T* x, int rows, int cols, int row, int col, Place&& place) {
  constexpr int kAcross = Cols / kPiece;
#pragma unroll
  for (int i = threadIdx.x; i < Rows * kAcross; i += Threads) {
    const int r = i / kAcross, c = i % kAcross;
    const bool inside = row + r < rows && col + c * kPiece < cols;
    copy_async<16>(place(r, c), inside ? x + int64_t(row + r) * cols + col + c * kPiece : x, inside ? 16 : 0);
  }
}

// The sums of two rows, as mma leaves them, of 32 columns from `col` on: fours of d. Stored by 16 bytes.
template <class T, class Finish>
WT_DEVICE void store_sums(const GemmArgs<T>& g, int64_t row, int64_t col, const float* d, Finish&& finish) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t at = col + j * kPiece + 2 * t;
      words[j] = pack_two<T>(finish(d[4 * j + 2 * half], at), finish(d[4 * j + 2 * half + 1], at + 1));
    }
    exchange_in_fours(words);
    const int64_t i = row + 8 * half, j = col + t * kPiece;
    if (i < g.m && j < g.n) {
      Packed<uint32_t, 4> piece{{words[0], words[1], words[2], words[3]}};
      store_packed(reinterpret_cast<uint32_t*>(g.c + i * g.n + j), piece);
    }
  }
}

struct KeepSum {
  WT_DEVICE float operator()(float sum, int64_t) const { return sum; }
};

}  // namespace warptape::kernels::cuda
