// Products of groups by TMA and WGMMA (sm_90a): tiles of wgmma_tile.cuh, of which each of the persistent
// blocks makes every gridDim.x-th, whatever group it is of. The grid is of one block a multiprocessor, and
// the loads of a tile run beside the products of the one before, also across groups.
//
// TMA clips boxes at the end of a matrix, not of a group. Of rows that are another group's, A's only make
// rows of C that are not stored: a warp whose rows are all of the group stores them by TMA, else row by row.
// Along k the last slice of a group may have k of the next one: they become zeros in shared memory.
#pragma once

#include "kernels/cuda/common/memory.cuh"
#include "kernels/cuda/common/runtime.h"
#include "kernels/cuda/gemm/grouped.cuh"
#include "kernels/cuda/gemm/wgmma_tile.cuh"

namespace warptape::kernels::cuda {

struct GroupedWgmmaArgs {
  GroupedArgs grouped;
  TensorMap a, b, c;
};

struct GroupedBarriers {
  WgmmaBlock::Barriers ring;
  uint64_t cleared[WgmmaBlock::kConsumers];  // of each warpgroup, for an arrival of each warp

  WT_DEVICE void init() {
    ring.init(WgmmaBlock::kWarps);
    for (uint64_t& barrier : cleared) init_barrier(&barrier, WgmmaBlock::kGroup / kWarp);
    publish_barriers();
  }
};

// The tiles of C, whose number depends on the ends where groups are of rows. Whole warps call.
template <bool AlongK>
class GroupedTiles {
 public:
  // C from (i, j) on of a group, whose rows end at `last`, from k values that begin at k0.
  struct Task {
    int group, i, j, last, k0, k;
  };

  WT_DEVICE explicit GroupedTiles(const GroupedArgs& args)
      : args_(args),
        across_(unsigned(args.across)),
        down_(AlongK ? unsigned(args.down) : unsigned(count_tiles_of_rows<WgmmaBlock::kM>(args))) {}
  WT_DEVICE unsigned count() const { return down_ * across_ * (AlongK ? unsigned(args_.p.groups) : 1); }
  WT_DEVICE Task at(unsigned tile) const {
    const unsigned group = AlongK ? tile / (down_ * across_) : 0;
    const WgmmaBlock::Place place(tile - group * down_ * across_, down_, across_);
    if constexpr (AlongK) {
      const Span span = span_of(args_, group);
      return {int(group), place.i, place.j, int(args_.p.m), span.first, span.last - span.first};
    } else {
      RowTile rows{};
      find_tile<WgmmaBlock::kM>(args_, place.i / WgmmaBlock::kM, rows);
      const bool in_none = rows.group == args_.p.groups;
      return {in_none ? 0 : int(rows.group), rows.row, place.j, rows.last, 0, in_none ? 0 : int(args_.p.k)};
    }
  }

 private:
  const GroupedArgs& args_;
  unsigned across_, down_;
};

// Zeros for the k of a slice that lies along C from `count` on, by a warpgroup: its part of A, and B, which
// the other one may fill with the same zeros.
struct KClearing {
  uint64_t* barrier;
  uint32_t parity = 0;

  WT_DEVICE static void clear_rows(char* part, int count) {
    for (int at = count * WgmmaBlock::kRowBytes + int(threadIdx.x % WgmmaBlock::kGroup) * 16;
         at < WgmmaBlock::kK * WgmmaBlock::kRowBytes; at += WgmmaBlock::kGroup * 16)
      *reinterpret_cast<Packed<uint32_t, 4>*>(part + at) = {};
  }
  WT_DEVICE void clear(WgmmaBlock::Slice& slice, const WgmmaBlock::Consumer& me, int count) {
    if (count >= WgmmaBlock::kK) return;
    clear_rows(slice.left[me.group], count);
    for (auto& part : slice.right) clear_rows(part, count);
    publish_writes();
    __syncwarp();
    if (me.lane == 0) arrive(barrier);
    wait_barrier(barrier, parity);
    parity ^= 1;
  }
};

// A warp's part of C in shared memory, to its first `rows` rows in memory.
template <class T>
WT_DEVICE void store_by_rows(const char* part, T* c, int64_t n, int col, int rows, int lane) {
  const int piece = lane % 8;
  if (col + piece * kPiece >= n) return;
  for (int r = lane / 8; r < rows; r += kWarp / 8) {
    const char* from = part + r * WgmmaBlock::kRowBytes + (piece ^ r % 8) * 16;
    store_packed(reinterpret_cast<uint32_t*>(c + r * n + col + piece * kPiece),
                 load_packed<4>(reinterpret_cast<const uint32_t*>(from)));
  }
}

template <class T, bool AAlongK, bool BAlongK>
WT_DEVICE void consume_groups(const GroupedWgmmaArgs& args, WgmmaBlock::Memory& memory,
                              GroupedBarriers& barriers) {
  using Tile = WgmmaTile<T, AAlongK, BAlongK>;
  const WgmmaBlock::Consumer me;
  const GroupedTiles<!AAlongK> tiles(args.grouped);
  const GroupedMmPlan& p = args.grouped.p;
  KClearing tail{&barriers.cleared[me.group]};
  WgmmaBlock::SliceTurn turn;
  for (unsigned tile = blockIdx.x; tile < tiles.count(); tile += gridDim.x) {
    const auto task = tiles.at(tile);
    WgmmaBlock::Sums sums = {};
    Tile::multiply(sums, task.k, me, memory, barriers.ring, turn,
                   [&]([[maybe_unused]] WgmmaBlock::Slice& slice, [[maybe_unused]] int left) {
                     if constexpr (!AAlongK) tail.clear(slice, me, left);
                   });
    const int row = task.i + me.row(), rows = task.last - row;
    Tile::store(
        sums, me, memory, [](int, float*) {},
        [&](int part, const char* from) {
          const int col = task.j + part * WgmmaBlock::kPart;
          if (!AAlongK || rows >= WgmmaBlock::kWarpRows) {
            if (me.lane == 0) store_box(from, &args.c, col, row, AAlongK ? 0 : task.group);
          } else {
            store_by_rows(from, static_cast<T*>(p.c) + row * p.n, p.n, col, rows, me.lane);
          }
        });
  }
  Tile::stored(me);
}

template <class T, bool AAlongK, bool BAlongK>
__global__ void __launch_bounds__(WgmmaBlock::kThreads, 1)
    grouped_wgmma_tiles(const __grid_constant__ GroupedWgmmaArgs args) {
  __shared__ GroupedBarriers barriers;
  WgmmaBlock::Memory& memory = WgmmaBlock::memory();
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();
  if (threadIdx.x < WgmmaBlock::kGroup) {
    give_registers<40>();
    if (threadIdx.x >= kWarp) return;
    const GroupedTiles<!AAlongK> tiles(args.grouped);
    WgmmaBlock::SliceTurn turn;
    for (unsigned tile = blockIdx.x; tile < tiles.count(); tile += gridDim.x) {
      const auto task = tiles.at(tile);
      if (threadIdx.x == 0)
        WgmmaTile<T, AAlongK, BAlongK>::fetch(args.a, args.b, task.i, task.j, AAlongK ? task.group : 0,
                                              task.k0, task.k, memory, barriers.ring, turn);
    }
  } else {
    take_registers<232>();
    consume_groups<T, AAlongK, BAlongK>(args, memory, barriers);
  }
}

template <class T, bool AAlongK, bool BAlongK>
void launch_grouped_wgmma(const LaunchContext& ctx, GroupedArgs args) {
  using Tile = WgmmaTile<T, AAlongK, BAlongK>;
  const char* name = "grouped_mm";
  const GroupedMmPlan& p = args.p;
  const int64_t of_b = p.along_k ? 1 : p.groups, of_c = p.along_k ? p.groups : 1;
  count_tiles(args, Tile::kM, Tile::kN);
  const int64_t most = multi_processor_count(ctx.device_index), tiles = blocks(args);
  const GroupedWgmmaArgs all{args, Tile::map_a(name, p.dtype, p.a, p.m, p.k),
                             Tile::map_b(name, p.dtype, p.b, of_b, p.k, p.n),
                             Tile::map_c(name, p.dtype, p.c, of_c, p.m, p.n)};
  launch(ctx, name, grouped_wgmma_tiles<T, AAlongK, BAlongK>, dim3(unsigned(tiles < most ? tiles : most)),
         dim3(Tile::kThreads), Tile::kSharedBytes, all);
}

template <class T>
void grouped_wgmma(const LaunchContext& ctx, const GroupedArgs& args) {
  if (args.p.along_k) return launch_grouped_wgmma<T, false, false>(ctx, args);
  if (args.p.b_transposed) return launch_grouped_wgmma<T, true, true>(ctx, args);
  launch_grouped_wgmma<T, true, false>(ctx, args);
}

}  // namespace warptape::kernels::cuda
