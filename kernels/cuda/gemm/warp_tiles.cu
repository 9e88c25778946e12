// The float32 product without a library (matmul_plain.cu), with any strides, batches and the rest of what a
// MatmulPlan asks for. See warp_tile.cuh.
//
//   grid      tiles of C x batch         block     256 threads, 128 x 128 of C
//
// Where that leaves multiprocessors idle, a block makes 64 x 64 (H = 1).
#include "kernels/cuda/gemm/warp_tile.cuh"
#include "kernels/cuda/libraries/plain.h"

namespace warptape::kernels::cuda {
namespace {

struct WarpTilesArgs {
  MatmulPlan p;
  int64_t across;
  bool a_by_16, b_by_16, c_by_16;
};

template <int H>
__global__ void __launch_bounds__(kWarpTiling.threads, 2)
    warp_tiles(const __grid_constant__ WarpTilesArgs args) {
  using Tile = WarpTile<H>;
  __shared__ typename Tile::Slices slices[2];
  const MatmulPlan& p = args.p;
  const int64_t i0 = blockIdx.x / args.across * Tile::kSide, j0 = blockIdx.x % args.across * Tile::kSide;
  for (int64_t batch = blockIdx.y; batch < p.batch[0] * p.batch[1]; batch += gridDim.y) {
    const int64_t b0 = batch / p.batch[1], b1 = batch % p.batch[1];
    auto matrix = [&](const MatrixRef& x) {
      return static_cast<float*>(x.data) + b0 * x.batch_strides[0] + b1 * x.batch_strides[1];
    };
    Tile::run({p, matrix(p.a), matrix(p.b), matrix(p.c), args.a_by_16, args.b_by_16, args.c_by_16}, i0, j0,
              slices);
  }
}

template <int H>
void launch_tiles(const LaunchContext& ctx, WarpTilesArgs args) {
  constexpr int kSide = WarpTile<H>::kSide;
  const MatmulPlan& p = args.p;
  const int64_t batch = p.batch[0] * p.batch[1];
  args.across = ceil_div(p.n, kSide);
  launch(ctx, "matmul", warp_tiles<H>,
         dim3(unsigned(ceil_div(p.m, kSide) * args.across), unsigned(batch < kMaxGridY ? batch : kMaxGridY)),
         dim3(kWarpTiling.threads), 0, args);
}

}  // namespace

void matmul_warp_tiles(const LaunchContext& ctx, const MatmulPlan& p) {
  const WarpTilesArgs args{p, 0, moves_by_16(p.a, p.a.row_stride, p.a.col_stride),
                           moves_by_16(p.b, p.b.col_stride, p.b.row_stride),
                           moves_by_16(p.c, p.c.col_stride, p.c.row_stride)};
  const int64_t blocks =
      ceil_div(p.m, kWarpTiling.block.m) * ceil_div(p.n, kWarpTiling.block.n) * p.batch[0] * p.batch[1];
  if (blocks < multi_processor_count(ctx.device_index)) return launch_tiles<1>(ctx, args);
  launch_tiles<2>(ctx, args);
}

}  // namespace warptape::kernels::cuda
