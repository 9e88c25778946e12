// Numbers at equal distances, each made from its place alone.
#include "kernels/elementwise/sequence.h"

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/dispatch.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPerThread = 4;

// first + i step rounded twice, as the host computes it.
WT_DEVICE double at(double first, double step, int64_t i) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(first, __dmul_rn(step, double(i)));
#else
  return first + step * double(i);
#endif
}

template <class T>
__global__ void __launch_bounds__(kThreads) sequence_kernel(T* out, int64_t n, SequencePlan p) {
  const int64_t begin = int64_t(blockIdx.x) * (kThreads * kPerThread) + threadIdx.x;
#pragma unroll
  for (int64_t k = 0; k < kPerThread; ++k) {
    const int64_t i = begin + k * kThreads;
    if (i >= n) return;
    if (p.integral)
      out[i] = T(Compute<T>(p.first_int + i * p.step_int));
    else
      out[i] = T(Compute<T>(i < p.turn ? at(p.first, p.step, i) : at(p.last, -p.step, n - 1 - i)));
  }
}

void sequence(const LaunchContext& ctx, const View& out, const SequencePlan& plan) {
  const int64_t n = out.numel();
  dispatch(AllTypes{}, out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(ctx, "arange", sequence_kernel<T>, dim3(unsigned(ceil_div(n, kThreads * kPerThread))),
           dim3(kThreads), 0, out.as<T>(), n, plan);
  });
}
WT_KERNEL(sequence, sequence);

}  // namespace
}  // namespace warptape::kernels::cuda
