// Step 11: see wgmma.cuh.
#include "examples/gemm_ladder/wgmma.cuh"

namespace warptape::kernels::cuda {
namespace {

constexpr int kCluster = 2;

template <class T>
void run(const LaunchContext& ctx, const GemmStepPlan& p) {
  launch_wgmma<T, kCluster>(ctx, GemmStepId::Multicast, wgmma_tiles<T, false, false, kCluster>, p);
}

}  // namespace

void gemm_multicast(const LaunchContext& ctx, const GemmStepPlan& p) {
  if (p.dtype == DType::BFloat16) return run<BFloat16>(ctx, p);
  run<Half>(ctx, p);
}

}  // namespace warptape::kernels::cuda
