// Weighted sums along one dim: a thread an output.
#include "kernels/nn/resample.h"

#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/memory.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    resample_kernel(const __grid_constant__ ResamplePlan p, void* out, const void* x) {
  const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= p.outer * p.out * p.inner) return;
  const int64_t row = at / p.inner, k = at % p.inner, i = row % p.out;
  const T* from = static_cast<const T*>(x) + row / p.out * p.in * p.inner + k;
  T sum = 0;
  for (int64_t e = p.first[i]; e < p.first[i + 1]; ++e) sum += T(p.weight[e]) * from[p.place[e] * p.inner];
  static_cast<T*>(out)[at] = sum;
}

void resample(const LaunchContext& ctx, const ResamplePlan& p, void* out, const void* x) {
  const int64_t n = p.outer * p.out * p.inner;
  dispatch(Types<float, double>{}, p.dtype, [&](auto t) {
    launch(ctx, "resample", resample_kernel<typename decltype(t)::type>,
           dim3(unsigned(ceil_div(n, kThreads))), dim3(kThreads), 0, p, out, x);
  });
}

}  // namespace

WT_KERNEL(resample, resample);

}  // namespace warptape::kernels::cuda
