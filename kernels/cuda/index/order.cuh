// Writing to many places in the order of the indices. Note [order]: writes that may meet at one place are
// sorted by place, stably, with the positions that they came from; then each place is written once, by one
// thread that goes over its writes in order. Places with many writes are cut where the sorted list passes a
// multiple of a tile's length, so results depend on the indices alone, never on which thread was first.
#pragma once

#include "kernels/cuda/common/index.cuh"
#include "kernels/index/index.h"

namespace warptape::kernels::cuda {

inline constexpr int64_t kMostPositions = int64_t{1} << 31;  // of one sort; longer lists come in chunks

// Keys in ascending order and the position that each had.
struct Sorted {
  uint64_t* keys;
  uint32_t* positions;
};

// Room for n of both, in scratch memory.
inline Sorted make_pairs(const LaunchContext& ctx, int64_t n) {
  return {static_cast<uint64_t*>(ctx.scratch(size_t(n) * sizeof(uint64_t))),
          static_cast<uint32_t*>(ctx.scratch(size_t(n) * sizeof(uint32_t)))};
}

// Sorts n pairs stably by the low `bits` of their keys. The result may lie in what is given or in scratch
// memory. Implemented over CUB; the emulator has a stand-in.
Sorted sort_pairs(const LaunchContext& ctx, const char* op, const Sorted& pairs, int64_t n, int bits);

// Bits of numbers up to and with `highest`.
constexpr int bits_of(uint64_t highest) {
  int bits = 1;
  while (bits < 64 && highest >> bits) ++bits;
  return bits;
}

// Pairs of a one-dimensional index: bad ones (reported, if `reports`) and those equal to `left_out` get the
// key `bound`.
Sorted pairs_of_index(const LaunchContext& ctx, const char* op, const int64_t* index, int64_t step, int64_t n,
                      int64_t bound, int64_t left_out);

// What is written: at to + key * to_step + column the element of `from` at rows(first + position) + column.
struct OrderedWrite {
  DType dtype;
  ScatterMode mode;
  double alpha = 1;        // factor of what is written
  bool replaces = false;   // for Add: what was there before does not count
  bool any_order = false;  // for Assign: writes to one place have one value; the pairs need not be sorted
  void* to;
  int64_t to_step;
  const void* from;
  int64_t first = 0;
  IndexMap<1, kManyDims> rows;
  IndexMap<2, kManyDims> columns;  // offsets in `to` and `from`
  int64_t column_count = 1;
  uint64_t bound;  // keys from here on are left out
};
void write_ordered(const LaunchContext& ctx, const char* op, const Sorted& pairs, int64_t n,
                   const OrderedWrite& w);

}  // namespace warptape::kernels::cuda
