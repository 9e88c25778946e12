// A tile of C by TMA and WGMMA (sm_90a), of 16-bit types: step 10 of the ladder (wgmma.cu). A block has a
// warpgroup that asks for slices and two that multiply them.
//
//   block      3 warpgroups, 128 x 256 of C, 64 along k a slice, 4 slices
//   warpgroup  64 x 256 of C               fragment (one wgmma)  64 x 256 x 16
//
// A's slice is 128 rows of 128 bytes, B's four parts of 64 columns, each 64 rows of 128 bytes; TMA exchanges
// the 16-byte pieces of each 8 rows, as wgmma's descriptors say. C goes the same way back: each warp rounds
// its 16 rows into parts of 64 columns in shared memory, and TMA stores them while the warp goes on.
#pragma once

#include "kernels/cuda/common/fragments.cuh"
#include "kernels/cuda/common/tma_ring.cuh"
#include "kernels/cuda/gemm/steps.h"

namespace warptape::kernels::cuda {

inline constexpr GemmStep kWgmmaStep = gemm_step_of(GemmStepId::Wgmma);

struct WgmmaTile {
  static constexpr int kM = kWgmmaStep.block.m, kN = kWgmmaStep.block.n, kK = kWgmmaStep.block.k;
  static constexpr int kStages = kWgmmaStep.stages, kThreads = kWgmmaStep.threads;
  static constexpr int kGroup = 128, kConsumers = 2, kWarps = kConsumers * kGroup / kWarp;
  static constexpr int kPart = 64;                              // columns of a part of B and of C
  static constexpr int kRowBytes = 128, kAtom = 8 * kRowBytes;  // what the swizzle permutes within
  static constexpr int kGroupRows = kM / kConsumers, kWarpRows = kGroupRows / (kGroup / kWarp);
  static constexpr int kGroupOfTiles = 8;  // rows of tiles that are walked column by column
  static_assert(kK * 2 == kRowBytes && kPart * 2 == kRowBytes && kThreads == (kConsumers + 1) * kGroup);
  static_assert(kWarpRows == 16);

  using Sums = float[kN / 2];  // of a lane, fours as mma_16x8x16 leaves them
  using Barriers = Ring<kStages>;
  using SliceTurn = Turn<kStages>;

  struct Slice {
    char left[kM * kRowBytes], right[kN / kPart][kK * kRowBytes];
  };
  struct Memory {
    Slice slices[kStages];
    char parts[kWarps][2][kWarpRows * kRowBytes];  // of C, in turn
  };
  static constexpr size_t kSharedBytes = sizeof(Memory) + kAtom;

  WT_DEVICE static Memory& memory() {
    char* p = dynamic_shared<char>();
    return *reinterpret_cast<Memory*>(p + (0 - shared_address(p)) % kAtom);
  }

  // Where a tile begins. Blocks that run together share rows of A and columns of B in the L2 cache.
  struct Place {
    int i, j;
    WT_DEVICE Place(unsigned tile, unsigned down, unsigned across) {
      const unsigned first = tile / (kGroupOfTiles * across) * kGroupOfTiles;
      const unsigned rows = min(down - first, unsigned(kGroupOfTiles)), within = tile - first * across;
      i = int(first + within % rows) * kM;
      j = int(within / rows) * kN;
    }
  };

  // A thread of a warpgroup that multiplies.
  struct Consumer {
    int group, warp, lane;  // the warp among all that multiply
    WT_DEVICE Consumer()
        : group(threadIdx.x / kGroup - 1),
          warp(threadIdx.x / kWarp - kGroup / kWarp),
          lane(threadIdx.x % kWarp) {}
    WT_DEVICE int row() const { return warp * kWarpRows; }  // the warp's first one in the tile
  };

  // Sums += A B over k, by a warpgroup, from slices as they come.
  template <class T>
  WT_DEVICE static void multiply(Sums& sums, int k, const Consumer& me, const Memory& memory,
                                 Barriers& barriers, SliceTurn& turn) {
    auto release = [&](int stage) {  // every warp for itself: wait_products() is a warp's
      if (me.lane == 0) arrive(&barriers.empty[stage]);
    };
    int last = -1;  // the buffer that products under way read
    for (int k0 = 0; k0 < k; k0 += kK, turn.next()) {
      const Slice& s = memory.slices[turn.stage];
      wait_barrier(&barriers.full[turn.stage], turn.parity);
      fence_products();
#pragma unroll
      for (int q = 0; q < kK; q += 16)  // 32 bytes further in A's rows, 16 of B's rows
        multiply_async<T>(sums,
                          swizzled_operand(s.left + me.group * kGroupRows * kRowBytes + q * 2, 16, kAtom),
                          swizzled_operand(s.right[0] + q * kRowBytes, sizeof s.right[0], kAtom));
      commit_products();
      wait_products<1>();
      if (last >= 0) release(last);
      last = turn.stage;
    }
    wait_products<0>();
    release(last);
  }

  // The warp's 16 rows of 64 columns, as fours of a lane's sums, rounded into one of its two buffers: lane l
  // says where row l % 16 of the columns 8 (l / 16) on of each 16 lies.
  template <class T>
  WT_DEVICE static void round_part(char* part, const float* sums, int lane) {
    char* at = part + lane % 16 * kRowBytes;
    const int piece = lane / 16 ^ lane % 8;
#pragma unroll
    for (int q = 0; q < kPart / 16; ++q) {
      const float* d = sums + 8 * q;
      const uint32_t words[4] = {pack_two<T>(d[0], d[1]), pack_two<T>(d[2], d[3]), pack_two<T>(d[4], d[5]),
                                 pack_two<T>(d[6], d[7])};
      store_matrices(at + (piece ^ 2 * q) * 16, words);
    }
  }

  // Stores the warp's rows of C, whose map has boxes of its 16 rows and 64 columns; what is outside of C is
  // left out. finish(sums, column) is asked for a lane's sums of each part before they are rounded. TMA may
  // still read the last two parts afterwards: see stored().
  template <class T, class Finish>
  WT_DEVICE static void store(Sums& sums, const Consumer& me, Memory& memory, const TensorMap& c, int i,
                              int j, Finish&& finish) {
#pragma unroll
    for (int p = 0; p < kN / kPart; ++p) {
      char* part = memory.parts[me.warp][p % 2];
      float* mine = sums + p * kPart / 2;
      finish(mine, j + p * kPart);
      if (me.lane == 0) wait_boxes_read<1>();  // the part before the last one
      __syncwarp();
      round_part<T>(part, mine, me.lane);
      publish_writes();
      __syncwarp();
      if (me.lane == 0) store_box(part, &c, j + p * kPart, i + me.row()), commit_boxes();
    }
  }
  // Before the block ends, and its memory with it.
  WT_DEVICE static void stored(const Consumer& me) {
    if (me.lane == 0) wait_boxes_read<0>();
  }
};

}  // namespace warptape::kernels::cuda
