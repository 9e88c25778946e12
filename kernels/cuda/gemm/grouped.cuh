// Products of groups: how blocks find their group and tile from the ends in memory.
#pragma once

#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/linalg/grouped_mm.h"

namespace warptape::kernels::cuda {

struct GroupedArgs {
  GroupedMmPlan p;
  FaultSink sink;
  int64_t down, across;  // tiles of C: along k of one group's, else `down` of all that there could be
  bool a_by_16, b_by_16, c_by_16;
};

// Where a group begins and ends, within what is cut; a bad end leaves it empty.
struct Span {
  int first, last;
};
WT_DEVICE Span span_of(const GroupedArgs& args, int64_t g) {
  const GroupedMmPlan& p = args.p;
  const int cut = int(p.cut());
  const int first = g > 0 ? p.ends[g - 1] : 0, last = g < p.groups ? p.ends[g] : cut;
  if (first >= 0 && first <= last && last <= cut) return {first, last};
  if (g < p.groups) args.sink.report(last < first ? int64_t(last) - first : last, cut);
  return {0, 0};
}

// What a block makes: C from row `row` on of the group, whose rows end at `last`. The rows that are in no
// group are one more group, of k 0.
struct RowTile {
  int64_t group;
  int row, last;
};

// The tile'th tile of the groups' rows, each group's cut by itself. All lanes of a warp call and find the
// same; false where there are fewer tiles.
template <int Rows>
WT_DEVICE bool find_tile(const GroupedArgs& args, int tile, RowTile& found) {
  const int lane = threadIdx.x % kWarp;
  for (int64_t g0 = 0; g0 <= args.p.groups; g0 += kWarp) {
    const Span span = g0 + lane <= args.p.groups ? span_of(args, g0 + lane) : Span{0, 0};
    const int tiles = (span.last - span.first + Rows - 1) / Rows;
    int upto = tiles;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, upto, step);
      if (lane >= step) upto += other;
    }
    if (const unsigned beyond = __ballot_sync(kAllLanes, upto > tile)) {
      const int owner = __ffs(int(beyond)) - 1;
      const int row = span.first + (tile - (upto - tiles)) * Rows;
      found = {g0 + owner, __shfl_sync(kAllLanes, row, owner), __shfl_sync(kAllLanes, span.last, owner)};
      return true;
    }
    tile -= __shfl_sync(kAllLanes, upto, kWarp - 1);
  }
  return false;
}

// Tiles of the rows of all groups. All lanes of a warp call and get the same.
template <int Rows>
WT_DEVICE int count_tiles_of_rows(const GroupedArgs& args) {
  int tiles = 0;
  for (int64_t g = threadIdx.x % kWarp; g <= args.p.groups; g += kWarp) {
    const Span span = span_of(args, g);
    tiles += (span.last - span.first + Rows - 1) / Rows;
  }
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) tiles += __shfl_xor_sync(kAllLanes, tiles, step);
  return tiles;
}

// Tiles of C that there could be. Of groups of rows each may have one that is not full, and the rest, too.
inline void count_tiles(GroupedArgs& args, int rows, int cols) {
  const GroupedMmPlan& p = args.p;
  args.across = ceil_div(p.n, cols);
  args.down = p.along_k ? ceil_div(p.m, rows) : ceil_div(p.m, rows) + p.groups;
}
inline int64_t blocks(const GroupedArgs& args) {
  return args.down * args.across * (args.p.along_k ? args.p.groups : 1);
}

}  // namespace warptape::kernels::cuda
