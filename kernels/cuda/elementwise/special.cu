// Special functions, a thread an element.
#include "kernels/elementwise/special.h"

#include "kernels/cuda/common/launch.cuh"
#include "kernels/dispatch.h"
#include "kernels/elementwise/formulas_special.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;
template <class F, class T, class... In>
__global__ void __launch_bounds__(kThreads) special_kernel(F f, int64_t n, T* out, const In*... in) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) out[i] = T(special::evaluate(f, double(in[i])...));
}

template <class F, class... In>
void run(const LaunchContext& ctx, F f, DType dtype, int64_t n, void* out, In... in) {
  dispatch(Types<float, double>{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    launch(ctx, "special", special_kernel<F, T, std::conditional_t<true, T, In>...>,
           dim3(unsigned(ceil_div(n, kThreads))), dim3(kThreads), 0, f, n, static_cast<T*>(out),
           static_cast<const T*>(in)...);
  });
}

void special_unary(const LaunchContext& ctx, SpecialFunction f, DType dtype, int64_t n, void* out,
                   const void* x) {
  run(ctx, f, dtype, n, out, x);
}
void special_pair(const LaunchContext& ctx, SpecialPairFunction f, DType dtype, int64_t n, void* out,
                  const void* a, const void* b) {
  run(ctx, f, dtype, n, out, a, b);
}

}  // namespace

WT_KERNEL(special_unary, special_unary);
WT_KERNEL(special_pair, special_pair);

}  // namespace warptape::kernels::cuda
