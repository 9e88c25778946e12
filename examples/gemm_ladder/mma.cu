// Step 9: tensor cores by mma.sync, whose fragments' lanes are known: ldmatrix brings them, sums are stored
// from registers. See mma_tile.cuh.
//
//   grid      tiles of C       block     8 warps, 128 x 128 of C
//
// n and k are multiples of 8.
#include "examples/gemm_ladder/tile.cuh"
#include "kernels/cuda/gemm/mma_tile.cuh"

namespace warptape::kernels::cuda {
namespace {

template <class T> using Tile = MmaTile<T, true, false>;

template <class T>
__global__ void __launch_bounds__(kMmaTiling.threads, 2) mma_tiles(GemmArgs<T> g) {
  Tile<T>::run(g, int(blockIdx.x / unsigned(g.across)) * Tile<T>::kM,
               int(blockIdx.x % unsigned(g.across)) * Tile<T>::kN);
}

template <class T>
void run(const LaunchContext& ctx, const GemmStepPlan& p) {
  launch_step<T>(ctx, p, gemm_step_of(GemmStepId::Mma), mma_tiles<T>, Tile<T>::kSharedBytes);
}

}  // namespace

void gemm_mma(const LaunchContext& ctx, const GemmStepPlan& p) {
  if (p.dtype == DType::BFloat16) return run<BFloat16>(ctx, p);
  run<Half>(ctx, p);
}

}  // namespace warptape::kernels::cuda
