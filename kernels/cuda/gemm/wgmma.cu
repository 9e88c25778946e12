// Step 10, Hopper alone: one thread of a producer warpgroup asks TMA for slices, two consumer warpgroups
// multiply them by WGMMA straight from shared memory. Each of four buffers has two barriers: `full` (its
// bytes are there) and `empty` (both consumers are done with it). Blocks are persistent: each makes every
// gridDim.x-th tile of C, and the producer is ahead of the consumers across tiles, so that stores of one
// overlap the loads of the next. The epilogue adds a bias and applies GELU to the sums in registers; each of
// the four kernels has the code of its own epilogue alone.
//
//   grid      one block a multiprocessor    block   3 warpgroups, 128 x 256 of C, 64 along k a slice, 4
//   slices warpgroup 64 x 256 of C                 fragment (one wgmma)  64 x 256 x 16
//
// A's slice is 128 rows of 128 bytes, B's four parts of 64 columns, each 64 rows of 128 bytes; TMA exchanges
// the 16-byte pieces of each 8 rows, as wgmma's descriptors say. n and k are multiples of 8.
#include "kernels/cuda/common/tma_ring.cuh"
#include "kernels/cuda/gemm/half_tile.cuh"

namespace warptape::kernels::cuda {
namespace {

constexpr GemmStep kStep = gemm_step_of(GemmStepId::Wgmma);
constexpr int kM = kStep.block.m, kN = kStep.block.n, kK = kStep.block.k, kStages = kStep.stages;
constexpr int kGroup = 128, kConsumers = 2, kPart = 64;  // threads of a warpgroup; columns of a part of B
constexpr int kRowBytes = 128, kAtom = 8 * kRowBytes;    // what the swizzle permutes within
constexpr int kGroupOfTiles = 8;                         // rows of tiles that are walked column by column
static_assert(kK * 2 == kRowBytes && kPart * 2 == kRowBytes && kStep.threads == (kConsumers + 1) * kGroup);

struct Slice {
  char left[kM * kRowBytes], right[kN / kPart][kK * kRowBytes];
};
constexpr uint32_t kSliceBytes = sizeof(Slice);

using Barriers = Ring<kStages>;

template <class T>
struct WgmmaArgs {
  GemmArgs<T> g;
  const T* bias;
  unsigned down, across;
  TensorMap a, b;
};

// Blocks that run together share rows of A and columns of B in the L2 cache.
struct TilePlace {
  int i, j;  // of its first element
  WT_DEVICE TilePlace(unsigned tile, unsigned down, unsigned across) {
    const unsigned group = tile / (kGroupOfTiles * across), first = group * kGroupOfTiles;
    const unsigned rows = min(down - first, unsigned(kGroupOfTiles));
    const unsigned within = tile - first * across;
    i = int(first + within % rows) * kM;
    j = int(within / rows) * kN;
  }
};

template <class T>
WT_DEVICE void produce(const WgmmaArgs<T>& args, Slice* slices, Barriers& barriers) {
  prefetch_map(&args.a), prefetch_map(&args.b);
  Turn<kStages> turn;
  for (unsigned tile = blockIdx.x; tile < args.down * args.across; tile += gridDim.x) {
    const TilePlace at(tile, args.down, args.across);
    for (int k0 = 0; k0 < int(args.g.k); k0 += kK, turn.next()) {
      Slice& to = slices[turn.stage];
      uint64_t* full = &barriers.full[turn.stage];
      wait_barrier(&barriers.empty[turn.stage], turn.parity ^ 1);
      arrive_and_expect(full, kSliceBytes);
      load_box(to.left, &args.a, k0, at.i, full);
#pragma unroll
      for (int part = 0; part < kN / kPart; ++part)
        load_box(to.right[part], &args.b, at.j + part * kPart, k0, full);
    }
  }
}

// x (1 + tanh(u)) / 2 as GeluTanh, by instructions that approximate: what is lost is far below 16 bits.
WT_DEVICE float gelu_tanh(float x) {
  constexpr float kScale = -1.59576912160573071176f * 1.44269504088896340736f;  // -2 sqrt(2 / pi) / ln(2)
  return x * reciprocal(1 + power_of_two(kScale * x * fmaf(x * x, 0.044715f, 1)));
}

// What becomes of a lane's sums of 32 columns from `col` on, fours of them, before they are rounded.
template <bool Bias, bool Gelu>
struct Epilogue {
  template <class T>
  WT_DEVICE static void apply(const WgmmaArgs<T>& args, float* sums, int col) {
    const int first = col + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float* d = sums + 4 * j;
      if constexpr (Bias) {
        const int at = first + j * kPiece;  // n is even: both columns are there, or none
        const auto two = at < int(args.g.n) ? load_packed<2>(args.bias + at) : Packed<T, 2>{};
#pragma unroll
        for (int i = 0; i < 4; ++i) d[i] += float(two[i % 2]);
      }
      if constexpr (Gelu)
#pragma unroll
        for (int i = 0; i < 4; ++i) d[i] = gelu_tanh(d[i]);
    }
  }
};

template <class Epilogue, class T>
WT_DEVICE void consume(const WgmmaArgs<T>& args, Slice* slices, Barriers& barriers) {
  const int group = threadIdx.x / kGroup - 1, warp = threadIdx.x % kGroup / kWarp, lane = threadIdx.x % kWarp;
  auto release = [&](int stage) {  // every warp for itself: wait_products() is a warp's
    if (lane == 0) arrive(&barriers.empty[stage]);
  };
  Turn<kStages> turn;
  for (unsigned tile = blockIdx.x; tile < args.down * args.across; tile += gridDim.x) {
    const TilePlace at(tile, args.down, args.across);
    float sums[kN / 2] = {};
    int last = -1;  // the buffer that products under way read
    for (int k0 = 0; k0 < int(args.g.k); k0 += kK, turn.next()) {
      const Slice& s = slices[turn.stage];
      wait_barrier(&barriers.full[turn.stage], turn.parity);
      fence_products();
#pragma unroll
      for (int q = 0; q < kK; q += 16)  // 32 bytes further in A's rows, 16 of B's rows
        multiply_async<T>(sums, swizzled_operand(s.left + group * 64 * kRowBytes + q * 2, 16, kAtom),
                          swizzled_operand(s.right[0] + q * kRowBytes, sizeof s.right[0], kAtom));
      commit_products();
      wait_products<1>();
      if (last >= 0) release(last);
      last = turn.stage;
    }
    wait_products<0>();
    release(last);
#pragma unroll
    for (int j = 0; j < kN; j += 32) {
      Epilogue::apply(args, sums + j / 2, at.j + j);
      store_sums(args.g, at.i + group * 64 + warp * 16 + lane / 4, at.j + j, sums + j / 2);
    }
  }
}

template <class T, bool Bias, bool Gelu>
__global__ void __launch_bounds__(kStep.threads, 1) wgmma_tiles(const __grid_constant__ WgmmaArgs<T> args) {
  __shared__ Barriers barriers;
  char* memory = dynamic_shared<char>();
  auto* slices = reinterpret_cast<Slice*>(memory + (0 - shared_address(memory)) % kAtom);
  if (threadIdx.x == 0) {
    barriers.init(kConsumers * kGroup / kWarp);
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kGroup) {
    give_registers<24>();
    if (threadIdx.x == 0) produce(args, slices, barriers);
  } else {
    take_registers<240>();
    consume<Epilogue<Bias, Gelu>>(args, slices, barriers);
  }
}

template <class T>
auto kernel_of(const GemmStepPlan& p) {
  if (p.bias) return p.gelu ? wgmma_tiles<T, true, true> : wgmma_tiles<T, true, false>;
  return p.gelu ? wgmma_tiles<T, false, true> : wgmma_tiles<T, false, false>;
}

template <class T>
void run(const LaunchContext& ctx, const GemmStepPlan& p) {
  const GemmArgs<T> g = gemm_args<T>(p, kStep);
  const int64_t down = ceil_div(p.m, kM), tiles = down * g.across;
  const WgmmaArgs<T> args{g,
                          static_cast<const T*>(p.bias),
                          unsigned(down),
                          unsigned(g.across),
                          tensor_map(kStep.name, p.dtype, p.a, p.m, p.k, kM, kK),
                          tensor_map(kStep.name, p.dtype, p.b, p.k, p.n, kK, kPart)};
  const int64_t most = multi_processor_count(ctx.device_index);
  launch(ctx, kStep.name, kernel_of<T>(p), dim3(unsigned(tiles < most ? tiles : most)), dim3(kStep.threads),
         kStages * sizeof(Slice) + kAtom, args);
}

}  // namespace

void gemm_wgmma(const LaunchContext& ctx, const GemmStepPlan& p) {
  if (p.dtype == DType::BFloat16) return run<BFloat16>(ctx, p);
  run<Half>(ctx, p);
}

}  // namespace warptape::kernels::cuda
