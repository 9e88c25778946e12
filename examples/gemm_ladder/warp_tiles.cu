// Step 7: as step 6, with warps whose part of the tile is nearly square, and with any strides. The kernel is
// the one that warptape takes for float32 where cuBLASLt does not serve: kernels/cuda/gemm/warp_tiles.cu.
//
//   grid      tiles of C       block     256 threads, 128 x 128 of C
//
// Where that leaves multiprocessors idle, a block makes 64 x 64.
#include "examples/gemm_ladder/steps.h"
#include "kernels/cuda/libraries/plain.h"

namespace warptape::kernels::cuda {

void gemm_warp_tiles(const LaunchContext& ctx, const GemmStepPlan& p) {
  MatmulPlan plan{};
  plan.dtype = p.dtype;
  plan.batch[0] = plan.batch[1] = 1;
  plan.m = p.m, plan.n = p.n, plan.k = p.k;
  plan.a = {const_cast<void*>(p.a), p.k, 1, {0, 0}};
  plan.b = {const_cast<void*>(p.b), p.n, 1, {0, 0}};
  plan.c = {p.c, p.n, 1, {0, 0}};
  matmul_warp_tiles(ctx, plan);
}

}  // namespace warptape::kernels::cuda
