// The steps of the ladder, one a file of this folder. Each launches its kernel for a plan that was checked.
#pragma once

#include "kernels/linalg/gemm_ladder.h"

namespace warptape::kernels::cuda {

void gemm_naive(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_coalesced(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_shared_tile(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_register_tile(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_vectorised(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_async_copy(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_warp_tiles(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_wmma(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_mma(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_wgmma(const LaunchContext& ctx, const GemmStepPlan& p);

}  // namespace warptape::kernels::cuda
