// The slot "gemm_step": which step runs, and whether the device has what it needs.
#include "kernels/cuda/common/runtime.h"
#include "kernels/cuda/gemm/steps.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

using Step = void (*)(const LaunchContext&, const GemmStepPlan&);
constexpr Step kRun[] = {gemm_naive,      gemm_coalesced,  gemm_shared_tile, gemm_register_tile,
                         gemm_vectorised, gemm_async_copy, gemm_warp_tiles,  gemm_wmma,
                         gemm_mma,        gemm_wgmma};
static_assert(sizeof(kRun) / sizeof(kRun[0]) == kGemmStepCount);

void gemm_step(const LaunchContext& ctx, const GemmStepPlan& p) {
  const GemmStep step = gemm_step_of(p.step);
  const int has = capability(ctx.device_index);
  if (step.capability == 90 ? has != 90 : has < step.capability)
    raise_library_error(std::string("_gemm_step: step '") + step.name +
                        "' needs a GPU of compute capability " +
                        (step.capability == 90 ? "9.0" : "8.0 or higher") + ", this one has " +
                        std::to_string(has / 10) + "." + std::to_string(has % 10) + "; take another step");
  kRun[static_cast<int>(p.step)](ctx, p);
}

}  // namespace

WT_KERNEL(gemm_step, gemm_step);

}  // namespace warptape::kernels::cuda
