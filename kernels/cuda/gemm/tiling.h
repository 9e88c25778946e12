// What kernels of products take their sizes from, and what one product without batches is.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels::cuda {

struct GemmTile {
  int m, n, k;
};

// `warp` is the part of the block's tile that a warp (of WGMMA: a warpgroup) makes, `fragment` what one
// thread or, with tensor cores, one instruction makes of it.
struct GemmTiling {
  GemmTile block, warp, fragment;
  int threads, stages;  // stages: slices along k that lie in shared memory at once
};

inline constexpr GemmTiling kWarpTiling{{128, 128, 16}, {64, 32, 16}, {8, 8, 1}, 256, 2};   // warp_tile.cuh
inline constexpr GemmTiling kMmaTiling{{128, 128, 32}, {64, 32, 32}, {16, 8, 16}, 256, 4};  // mma_tile.cuh
inline constexpr GemmTiling kWgmmaTiling{
    {128, 256, 64}, {64, 256, 64}, {64, 256, 16}, 384, 4};  // wgmma_tile.cuh

template <class T>
struct GemmArgs {
  const T *a, *b;  // [m, k], [k, n]
  T* c;            // [m, n]
  int64_t m, n, k;
  int64_t across;  // tiles in a row of tiles of C
};

}  // namespace warptape::kernels::cuda
