// Steps 10 and 11, Hopper alone: one thread of a producer warpgroup asks TMA for slices, two consumer
// warpgroups multiply them by WGMMA straight from shared memory. Each of four buffers has two barriers:
// `full` (its bytes are there) and `empty` (both consumers are done with it). Blocks are persistent: each
// makes every gridDim.x-th tile of C, and the producer is ahead of the consumers across tiles, so that stores
// of one overlap the loads of the next, and by TMA its first products, too. The epilogue adds a bias and
// applies GELU to the sums in registers; each kernel has the code of its own epilogue alone. See
// wgmma_tile.cuh.
//
// Step 11 has clusters of two blocks, whose tiles lie below each other and share their columns of B: each
// block brings half of them to both. `empty` then counts the consumers of both blocks, for a buffer is
// filled from both; the bytes that `full` waits for come from both, too.
//
//   grid      one block a multiprocessor    block   3 warpgroups, 128 x 256 of C
//
// n and k are multiples of 8.
#pragma once

#include "examples/gemm_ladder/tile.cuh"
#include "kernels/cuda/gemm/wgmma_tile.cuh"

namespace warptape::kernels::cuda {
namespace {

using Block = WgmmaBlock;
template <class T, int Cluster> using Tile = WgmmaTile<T, true, false, Cluster>;

template <class T>
struct WgmmaArgs {
  int n, k;
  const T* bias;
  unsigned down, across;  // tiles of clusters
  TensorMap a, b, c;
};

// Calls visit(i, j) with the place of each tile that the block makes.
template <int Cluster, class T, class Visit>
WT_DEVICE void for_tiles(const WgmmaArgs<T>& args, Visit&& visit) {
  for (unsigned tile = blockIdx.x / Cluster; tile < args.down * args.across; tile += gridDim.x / Cluster) {
    const Block::Place at(tile, args.down, args.across);
    visit(at.i * Cluster + (Cluster == 1 ? 0 : int(cluster_rank())) * Block::kM, at.j);
  }
}

// x (1 + tanh(u)) / 2 as GeluTanh, by instructions that approximate: what is lost is far below 16 bits.
WT_DEVICE float gelu_tanh(float x) {
  constexpr float kScale = -1.59576912160573071176f * 1.44269504088896340736f;  // -2 sqrt(2 / pi) / ln(2)
  return x * reciprocal(1 + power_of_two(kScale * x * fmaf(x * x, 0.044715f, 1)));
}

// What becomes of a lane's sums of a part of C from column `col` on, fours of them, before they are rounded.
template <bool Bias, bool Gelu>
struct Epilogue {
  template <class T>
  WT_DEVICE static void apply(const WgmmaArgs<T>& args, float* sums, int col) {
    const int first = col + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < Block::kPart / kPiece; ++j) {
      float* d = sums + 4 * j;
      if constexpr (Bias) {
        const int at = first + j * kPiece;  // n is even: both columns are there, or none
        const auto two = at < args.n ? load_packed<2>(args.bias + at) : Packed<T, 2>{};
#pragma unroll
        for (int i = 0; i < 4; ++i) d[i] += float(two[i % 2]);
      }
      if constexpr (Gelu)
#pragma unroll
        for (int i = 0; i < 4; ++i) d[i] = gelu_tanh(d[i]);
    }
  }
};

template <int Cluster, class T>
WT_DEVICE void produce(const WgmmaArgs<T>& args, Block::Memory& memory, Block::Barriers& barriers) {
  prefetch_map(&args.a), prefetch_map(&args.b), prefetch_map(&args.c);
  Block::SliceTurn turn;
  for_tiles<Cluster>(args, [&](int i, int j) {
    Tile<T, Cluster>::fetch(args.a, args.b, i, j, 0, 0, args.k, memory, barriers, turn);
  });
}

template <class Epilogue, int Cluster, class T>
WT_DEVICE void consume(const WgmmaArgs<T>& args, Block::Memory& memory, Block::Barriers& barriers) {
  const Block::Consumer me;
  Block::SliceTurn turn;
  for_tiles<Cluster>(args, [&](int i, int j) {
    Block::Sums sums = {};
    Tile<T, Cluster>::multiply(sums, args.k, me, memory, barriers, turn, [](Block::Slice&, int) {});
    Tile<T, Cluster>::store(
        sums, me, memory, [&](int p, float* part) { Epilogue::apply(args, part, j + p * Block::kPart); },
        [&](int p, const char* part) {
          if (me.lane == 0) store_box(part, &args.c, j + p * Block::kPart, i + me.row(), 0);
        });
  });
  Tile<T, Cluster>::stored(me);
}

template <class T, bool Bias, bool Gelu, int Cluster = 1>
__global__ void __launch_bounds__(Block::kThreads, 1) wgmma_tiles(const __grid_constant__ WgmmaArgs<T> args) {
  __shared__ Block::Barriers barriers;
  Block::Memory& memory = Block::memory();
  if (threadIdx.x == 0) {
    barriers.init(Block::kWarps * Cluster);
    publish_barriers();
  }
  if constexpr (Cluster == 1)
    __syncthreads();
  else
    cluster_sync();
  if (threadIdx.x < Block::kGroup) {
    give_registers<24>();
    if (threadIdx.x == 0) produce<Cluster>(args, memory, barriers);
  } else {
    take_registers<240>();
    consume<Epilogue<Bias, Gelu>, Cluster>(args, memory, barriers);
  }
  if constexpr (Cluster > 1) cluster_sync();  // the other block may still arrive and write here
}

template <class T, int Cluster = 1>
void launch_wgmma(const LaunchContext& ctx, GemmStepId step, void (*kernel)(WgmmaArgs<T>),
                  const GemmStepPlan& p) {
  using Of = Tile<T, Cluster>;
  const char* name = gemm_step_of(step).name;
  const int64_t down = ceil_div(p.m, Block::kM * Cluster), across = ceil_div(p.n, Block::kN);
  const WgmmaArgs<T> args{int(p.n),
                          int(p.k),
                          static_cast<const T*>(p.bias),
                          unsigned(down),
                          unsigned(across),
                          Of::map_a(name, p.dtype, p.a, p.m, p.k),
                          Of::map_b(name, p.dtype, p.b, 1, p.k, p.n),
                          Of::map_c(name, p.dtype, p.c, 1, p.m, p.n)};
  const int64_t most = multi_processor_count(ctx.device_index) / Cluster, clusters = down * across;
  const dim3 blocks(unsigned((clusters < most ? clusters : most) * Cluster));
  launch(ctx, name, kernel, {blocks, Cluster}, dim3(Block::kThreads), Block::kSharedBytes, args);
}

}  // namespace
}  // namespace warptape::kernels::cuda
