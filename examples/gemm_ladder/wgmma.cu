// Step 10: see wgmma.cuh.
#include "examples/gemm_ladder/wgmma.cuh"

namespace warptape::kernels::cuda {
namespace {

template <class T>
void run(const LaunchContext& ctx, const GemmStepPlan& p) {
  auto* kernel = p.bias ? (p.gelu ? wgmma_tiles<T, true, true> : wgmma_tiles<T, true, false>)
                        : (p.gelu ? wgmma_tiles<T, false, true> : wgmma_tiles<T, false, false>);
  launch_wgmma<T>(ctx, GemmStepId::Wgmma, kernel, p);
}

}  // namespace

void gemm_wgmma(const LaunchContext& ctx, const GemmStepPlan& p) {
  if (p.dtype == DType::BFloat16) return run<BFloat16>(ctx, p);
  run<Half>(ctx, p);
}

}  // namespace warptape::kernels::cuda
