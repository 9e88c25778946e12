// Fragments of 16-bit types: words of two numbers, and how sums become pieces that are stored at once. Tiles
// that come to shared memory by cp.async.
#pragma once

#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/ptx.cuh"

namespace warptape::kernels::cuda {

inline constexpr int kPiece = 8;  // elements of 16 bytes

// A thread's share of copying tiles [Rows, Cols] of a matrix, whose rows are multiples of 16 bytes, to shared
// memory: pieces of 16 bytes below each other. Where they come from and go to is worked out once, and moves
// on by constants from tile to tile. A tile has Cols elements a row, or `Pitch`, and its swizzle, if any,
// comes round after 8 rows.
template <class T, int Rows, int Cols, int Threads, int Pitch = Cols>
struct TileCopies {
  static constexpr int kWidth = 16 / int(sizeof(T)), kAcross = Cols / kWidth;
  static constexpr int kStep = Threads / kAcross, kCount = Rows / kStep;  // rows between pieces; pieces
  static_assert(Threads % kAcross == 0 && Rows % kStep == 0 && kStep % 8 == 0);

  const T* from;
  int64_t stride;
  int rows, cols;  // what is there of the matrix from the first piece on, if above 0
  int to;

  // The first tile begins at (row, col) of x [rows, cols]. place(r, piece) says where a piece goes.
  template <class Place>
  WT_DEVICE TileCopies(const T* x, int64_t stride, int64_t rows, int64_t cols, int64_t row, int64_t col,
                       Place&& place)
      : stride(stride) {
    const int r = threadIdx.x / kAcross, piece = threadIdx.x % kAcross;
    from = x + (row + r) * stride + col + piece * kWidth;
    this->rows = int(rows - row) - r, this->cols = int(cols - col) - piece * kWidth;
    to = place(r, piece);
  }

  // Asks for a tile; what is outside becomes zeros and is not read.
  WT_DEVICE void fetch(T* tile) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      copy_async<16>(tile + to + i * kStep * Pitch, from + i * kStep * stride,
                     cols > 0 && i * kStep < rows ? 16 : 0);
  }
  // To the tile below, and to the one on the right.
  WT_DEVICE void move_down() { from += Rows * stride, rows -= Rows; }
  WT_DEVICE void move_right() { from += Cols, cols -= Cols; }
};

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
