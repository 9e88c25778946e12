// The matrix product without a library. float32 goes to gemm/warp_tiles.cu; of other
// dtypes a block makes a tile of C (plain_tile.cuh).
#include "kernels/cuda/gemm/plain_tile.cuh"
#include "kernels/cuda/libraries/plain.h"

namespace warptape::kernels::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(PlainTile<T>::kThreads) multiply(MatmulPlan p, int64_t across) {
  using Tile = PlainTile<T>;
  __shared__ typename Tile::Slices slices;
  const int64_t i0 = blockIdx.x / across * Tile::kSide, j0 = blockIdx.x % across * Tile::kSide;
  for (int64_t batch = blockIdx.y; batch < p.batch[0] * p.batch[1]; batch += gridDim.y) {
    const int64_t b0 = batch / p.batch[1], b1 = batch % p.batch[1];
    auto matrix = [&](const MatrixRef& x) {
      return static_cast<T*>(x.data) + b0 * x.batch_strides[0] + b1 * x.batch_strides[1];
    };
    Tile::run(p, matrix(p.a), matrix(p.b), matrix(p.c), i0, j0, slices);
  }
}

using NumberTypes = Types<double, BFloat16, Half, int64_t, int32_t, int16_t, int8_t, uint8_t, Complex<float>,
                          Complex<double>>;

}  // namespace

void matmul_plain(const LaunchContext& ctx, const MatmulPlan& plan) {
  const int64_t batch = plan.batch[0] * plan.batch[1];
  if (plan.m == 0 || plan.n == 0 || batch == 0) return;
  if (plan.dtype == DType::Float32) return matmul_warp_tiles(ctx, plan);
  dispatch(NumberTypes{}, plan.dtype, [&](auto t) {
    using Tile = PlainTile<typename decltype(t)::type>;
    const int64_t down = ceil_div(plan.m, Tile::kSide), across = ceil_div(plan.n, Tile::kSide);
    const dim3 grid(static_cast<unsigned>(down * across),
                    static_cast<unsigned>(batch < kMaxGridY ? batch : kMaxGridY));
    launch(ctx, "matmul", multiply<typename decltype(t)::type>, grid, dim3(Tile::kThreads), 0, plan, across);
  });
}

}  // namespace warptape::kernels::cuda
