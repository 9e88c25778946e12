// Step 10, Hopper alone: one thread of a producer warpgroup asks TMA for slices, two consumer warpgroups
// multiply them by WGMMA straight from shared memory. Each of four buffers has two barriers: `full` (its
// bytes are there) and `empty` (both consumers are done with it). Blocks are persistent: each makes every
// gridDim.x-th tile of C, and the producer is ahead of the consumers across tiles, so that stores of one
// overlap the loads of the next, and by TMA its first products, too. The epilogue adds a bias and applies
// GELU to the sums in registers; each of the four kernels has the code of its own epilogue alone. See
// wgmma_tile.cuh.
//
//   grid      one block a multiprocessor    block   3 warpgroups, 128 x 256 of C
//
// n and k are multiples of 8.
#include "kernels/cuda/gemm/tile.cuh"
#include "kernels/cuda/gemm/wgmma_tile.cuh"

namespace warptape::kernels::cuda {
namespace {

using Block = WgmmaBlock;
template <class T> using Tile = WgmmaTile<T, true, false>;

template <class T>
struct WgmmaArgs {
  int n, k;
  const T* bias;
  unsigned down, across;
  TensorMap a, b, c;
};

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

template <class T>
WT_DEVICE void produce(const WgmmaArgs<T>& args, Block::Memory& memory, Block::Barriers& barriers) {
  prefetch_map(&args.a), prefetch_map(&args.b), prefetch_map(&args.c);
  Block::SliceTurn turn;
  for (unsigned tile = blockIdx.x; tile < args.down * args.across; tile += gridDim.x) {
    const Block::Place at(tile, args.down, args.across);
    Tile<T>::fetch(args.a, args.b, at.i, at.j, 0, 0, args.k, memory, barriers, turn);
  }
}

template <class Epilogue, class T>
WT_DEVICE void consume(const WgmmaArgs<T>& args, Block::Memory& memory, Block::Barriers& barriers) {
  const Block::Consumer me;
  Block::SliceTurn turn;
  for (unsigned tile = blockIdx.x; tile < args.down * args.across; tile += gridDim.x) {
    const Block::Place at(tile, args.down, args.across);
    Block::Sums sums = {};
    Tile<T>::multiply(sums, args.k, me, memory, barriers, turn, [](Block::Slice&, int) {});
    Tile<T>::store(
        sums, me, memory, [&](int p, float* part) { Epilogue::apply(args, part, at.j + p * Block::kPart); },
        [&](int p, const char* part) {
          if (me.lane == 0) store_box(part, &args.c, at.j + p * Block::kPart, at.i + me.row(), 0);
        });
  }
  Tile<T>::stored(me);
}

template <class T, bool Bias, bool Gelu>
__global__ void __launch_bounds__(Block::kThreads, 1) wgmma_tiles(const __grid_constant__ WgmmaArgs<T> args) {
  __shared__ Block::Barriers barriers;
  Block::Memory& memory = Block::memory();
  if (threadIdx.x == 0) {
    barriers.init(Block::kWarps);
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < Block::kGroup) {
    give_registers<24>();
    if (threadIdx.x == 0) produce(args, memory, barriers);
  } else {
    take_registers<240>();
    consume<Epilogue<Bias, Gelu>>(args, memory, barriers);
  }
}

template <class T>
auto kernel_of(const GemmStepPlan& p) {
  if (p.bias) return p.gelu ? wgmma_tiles<T, true, true> : wgmma_tiles<T, true, false>;
  return p.gelu ? wgmma_tiles<T, false, true> : wgmma_tiles<T, false, false>;
}

template <class T>
void run(const LaunchContext& ctx, const GemmStepPlan& p) {
  const char* name = kWgmmaStep.name;
  const int64_t down = ceil_div(p.m, Block::kM), across = ceil_div(p.n, Block::kN), tiles = down * across;
  const WgmmaArgs<T> args{int(p.n),
                          int(p.k),
                          static_cast<const T*>(p.bias),
                          unsigned(down),
                          unsigned(across),
                          Tile<T>::map_a(name, p.dtype, p.a, p.m, p.k),
                          Tile<T>::map_b(name, p.dtype, p.b, 1, p.k, p.n),
                          Tile<T>::map_c(name, p.dtype, p.c, 1, p.m, p.n)};
  const int64_t most = multi_processor_count(ctx.device_index);
  launch(ctx, name, kernel_of<T>(p), dim3(unsigned(tiles < most ? tiles : most)), dim3(Block::kThreads),
         Block::kSharedBytes, args);
}

}  // namespace

void gemm_wgmma(const LaunchContext& ctx, const GemmStepPlan& p) {
  if (p.dtype == DType::BFloat16) return run<BFloat16>(ctx, p);
  run<Half>(ctx, p);
}

}  // namespace warptape::kernels::cuda
