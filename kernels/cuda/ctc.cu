// Connectionist temporal classification: a thread a sample.
#include "kernels/ctc.h"

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/memory.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 32;

template <class T>
__global__ void __launch_bounds__(kThreads)
    ctc_kernel(const __grid_constant__ CtcPlan p, void* loss, void* grad, const void* log_probs) {
  const int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (n < p.batch)
    ctc::Sample<T>(p, n, static_cast<const T*>(log_probs)).run(static_cast<T*>(loss), static_cast<T*>(grad));
}

void ctc_loss(const LaunchContext& ctx, const CtcPlan& p, void* loss, void* grad, const void* log_probs) {
  dispatch(Types<float, double>{}, p.dtype, [&](auto t) {
    launch(ctx, "ctc_loss", ctc_kernel<typename decltype(t)::type>,
           dim3(unsigned(ceil_div(p.batch, int64_t(kThreads)))), dim3(kThreads), 0, p, loss, grad, log_probs);
  });
}

}  // namespace

WT_KERNEL(ctc_loss, ctc_loss);

}  // namespace warptape::kernels::cuda
