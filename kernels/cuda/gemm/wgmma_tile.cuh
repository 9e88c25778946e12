// A tile of C by TMA and WGMMA (sm_90a), of 16-bit types and operands that lie along k or along C: the
// ladder's step "wgmma" and grouped products. A block has a warpgroup that asks for slices and two that
// multiply them.
//
//   block      3 warpgroups, 128 x 256 of C, 64 along k a slice, 4 slices
//   warpgroup  64 x 256 of C               fragment (one wgmma)  64 x 256 x 16
//
// Rows of a slice are 128 bytes. Along k an operand has a row for each row of A or column of B, 128 or 256 of
// them; else parts of 64 along C, each with a row for each of 64 k: two of A, four of B. TMA exchanges the
// 16-byte pieces of each 8 rows, as wgmma's descriptors say. C goes the same way back: each warp rounds
// its 16 rows into parts of 64 columns in shared memory, and TMA stores them while the warp goes on.
#pragma once

#include "kernels/cuda/common/fragments.cuh"
#include "kernels/cuda/common/tma_ring.cuh"
#include "kernels/cuda/gemm/tiling.h"

namespace warptape::kernels::cuda {

// A block's sizes and its memory.
struct WgmmaBlock {
  static constexpr int kM = kWgmmaTiling.block.m, kN = kWgmmaTiling.block.n, kK = kWgmmaTiling.block.k;
  static constexpr int kStages = kWgmmaTiling.stages, kThreads = kWgmmaTiling.threads;
  static constexpr int kGroup = 128, kConsumers = 2, kWarps = kConsumers * kGroup / kWarp;
  static constexpr int kPart = 64;                              // columns of a part of B and of C
  static constexpr int kRowBytes = 128, kAtom = 8 * kRowBytes;  // what the swizzle permutes within
  static constexpr int kGroupRows = kM / kConsumers, kWarpRows = kGroupRows / (kGroup / kWarp);
  static constexpr int kGroupOfTiles = 8;  // rows of tiles that are walked column by column
  static_assert(kK * 2 == kRowBytes && kPart * 2 == kRowBytes && kThreads == (kConsumers + 1) * kGroup);
  static_assert(kWarpRows == 16 && kGroupRows == kPart);

  using Sums = float[kN / 2];  // of a lane, fours as mma_16x8x16 leaves them
  using Barriers = Ring<kStages>;
  using SliceTurn = Turn<kStages>;

  struct Slice {
    char left[kM / kPart][kK * kRowBytes], right[kN / kPart][kK * kRowBytes];
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
};

// A [m, k] lies so where AAlongK, else as [k, m]; B as [n, k] where BAlongK, else as [k, n]. The blocks of a
// cluster make tiles below each other: each asks for its own rows of A, and for its share of B for all.
template <class T, bool AAlongK, bool BAlongK, int Cluster = 1>
struct WgmmaTile : WgmmaBlock {
  static_assert(Cluster == 1 || !BAlongK, "a share of B is parts of its columns");
  // By one thread: asks for the slices of A from row i and B from column j on, over k from k0 on; zeros where
  // the maps' matrices end. B is matrix z of its map.
  WT_DEVICE static void fetch(const TensorMap& a, const TensorMap& b, int i, int j, int z, int k0, int k,
                              Memory& memory, Barriers& barriers, SliceTurn& turn) {
    for (int done = 0; done < k; done += kK, turn.next()) {
      Slice& to = memory.slices[turn.stage];
      uint64_t* full = &barriers.full[turn.stage];
      if constexpr (Cluster == 1)
        wait_barrier(&barriers.empty[turn.stage], turn.parity ^ 1);
      else
        wait_cluster_barrier(&barriers.empty[turn.stage], turn.parity ^ 1);
      arrive_and_expect(full, sizeof to);
      const int at = k0 + done;
      if constexpr (AAlongK)
        load_box(to.left, &a, at, i, full);
      else
#pragma unroll
        for (int part = 0; part < kM / kPart; ++part) load_box(to.left[part], &a, i + part * kPart, at, full);
      if constexpr (BAlongK)
        load_box(to.right, &b, at, j, z, full);
      else
#pragma unroll
        for (int part = 0; part < kN / kPart; ++part)
          if constexpr (Cluster == 1)
            load_box(to.right[part], &b, j + part * kPart, at, z, full);
          else if (part % Cluster == int(cluster_rank()))
            load_box_for_all(to.right[part], &b, j + part * kPart, at, z, full, (1u << Cluster) - 1);
    }
  }
  // The maps of A [m, k], of B's `count` matrices and of C's as fetch() and store_box() take them.
  static TensorMap map_a(const char* op, DType dtype, const void* x, int64_t m, int64_t k) {
    return AAlongK ? tensor_map(op, dtype, x, m, k, kM, kK) : tensor_map(op, dtype, x, k, m, kK, kPart);
  }
  static TensorMap map_b(const char* op, DType dtype, const void* x, int64_t count, int64_t k, int64_t n) {
    return BAlongK ? tensor_map_of_matrices(op, dtype, x, count, n, k, kN, kK)
                   : tensor_map_of_matrices(op, dtype, x, count, k, n, kK, kPart);
  }
  static TensorMap map_c(const char* op, DType dtype, void* x, int64_t count, int64_t m, int64_t n) {
    return tensor_map_of_matrices(op, dtype, x, count, m, n, kWarpRows, kPart);
  }

  // Sums += A B over k, by a warpgroup, from slices as they come; ready(slice, left) is called before each,
  // of whose k `left` are there.
  template <class Ready>
  WT_DEVICE static void multiply(Sums& sums, int k, const Consumer& me, Memory& memory, Barriers& barriers,
                                 SliceTurn& turn, Ready&& ready) {
    auto release = [&](int stage) {  // every warp for itself: wait_products() is a warp's
      if constexpr (Cluster == 1) {
        if (me.lane == 0) arrive(&barriers.empty[stage]);
      } else {
        if (me.lane < Cluster) arrive_at(&barriers.empty[stage], unsigned(me.lane));
      }
    };
    int last = -1;  // the buffer that products under way read
    for (int k0 = 0; k0 < k; k0 += kK, turn.next()) {
      Slice& s = memory.slices[turn.stage];
      wait_barrier(&barriers.full[turn.stage], turn.parity);
      ready(s, k - k0);
      fence_products();
#pragma unroll
      for (int q = 0; q < kK; q += 16) {  // 32 bytes further in rows along k, else 16 rows
        const int in_a = AAlongK ? q * 2 : q * kRowBytes, in_b = BAlongK ? q * 2 : q * kRowBytes;
        multiply_async<T, AAlongK, BAlongK>(
            sums, swizzled_operand(s.left[me.group] + in_a, 16, kAtom),
            swizzled_operand(s.right[0] + in_b, BAlongK ? 16 : sizeof s.right[0], kAtom));
      }
      commit_products();
      wait_products<1>();
      if (last >= 0) release(last);
      last = turn.stage;
    }
    wait_products<0>();
    if (last >= 0) release(last);
  }

  // The warp's 16 rows of 64 columns, as fours of a lane's sums, rounded into one of its two buffers: lane l
  // says where row l % 16 of the columns 8 (l / 16) on of each 16 lies.
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

  // Stores the warp's rows of C. finish(p, sums) is asked for a lane's sums of part p before they are
  // rounded; move(p, part) by the whole warp to take it from shared memory, by TMA, which may still read the
  // last two parts afterwards (see stored()), or otherwise.
  template <class Finish, class Move>
  WT_DEVICE static void store(Sums& sums, const Consumer& me, Memory& memory, Finish&& finish, Move&& move) {
#pragma unroll
    for (int p = 0; p < kN / kPart; ++p) {
      char* part = memory.parts[me.warp][p % 2];
      float* mine = sums + p * kPart / 2;
      finish(p, mine);
      if (me.lane == 0) wait_boxes_read<1>();  // the part before the last one
      __syncwarp();
      round_part(part, mine, me.lane);
      publish_writes();
      __syncwarp();
      move(p, part);
      if (me.lane == 0) commit_boxes();
    }
  }
  // Before the block ends, and its memory with it.
  WT_DEVICE static void stored(const Consumer& me) {
    if (me.lane == 0) wait_boxes_read<0>();
  }
};

}  // namespace warptape::kernels::cuda
