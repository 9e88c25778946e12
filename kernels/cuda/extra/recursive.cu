// Filters whose output feeds back into itself: one thread a row, from its begin to its end, for a value needs
// the one before. Few rows leave most of the device idle.
#include "kernels/extra/recursive.h"

#include "kernels/cuda/common/memory.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 32;  // few, so that rows spread over multiprocessors
using Reals = Types<float, double>;

dim3 blocks_for(int64_t rows) { return dim3(unsigned(ceil_div(rows, kThreads))); }

template <class T>
__global__ void __launch_bounds__(kThreads) filter_kernel(int64_t rows, int64_t channels, int64_t order,
                                                          int64_t length, T* out, const T* x, const T* a) {
  const int64_t r = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (r >= rows) return;
  const T *from = x + r * length, *factors = a + r % channels * order;
  T* past = out + r * (length + order - 1);
  for (int64_t i = 0; i < length; ++i, ++past) {
    T sum = from[i];
    for (int64_t k = 0; k + 1 < order; ++k) sum -= past[k] * factors[k];
    past[order - 1] = sum;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) overdrive_kernel(int64_t rows, int64_t length, T* out, const T* x,
                                                             const T* driven, T* last_in, T* last_out) {
  const int64_t r = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (r >= rows) return;
  T in = last_in[r], back = last_out[r];
  for (int64_t i = r * length; i < (r + 1) * length; ++i) {
    back = driven[i] - in + T(0.995) * back;
    in = driven[i];
    out[i] = x[i] * T(0.5) + back * T(0.75);
  }
  last_in[r] = in, last_out[r] = back;
}

void recursive_filter(const LaunchContext& ctx, DType dtype, int64_t rows, int64_t channels, int64_t order,
                      int64_t length, void* out, const void* x, const void* a) {
  dispatch(Reals{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    launch(ctx, "lfilter", filter_kernel<T>, blocks_for(rows), dim3(kThreads), 0, rows, channels, order,
           length, static_cast<T*>(out), static_cast<const T*>(x), static_cast<const T*>(a));
  });
}

void overdrive(const LaunchContext& ctx, DType dtype, int64_t rows, int64_t length, void* out, const void* x,
               const void* driven, void* last_in, void* last_out) {
  dispatch(Reals{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    launch(ctx, "overdrive", overdrive_kernel<T>, blocks_for(rows), dim3(kThreads), 0, rows, length,
           static_cast<T*>(out), static_cast<const T*>(x), static_cast<const T*>(driven),
           static_cast<T*>(last_in), static_cast<T*>(last_out));
  });
}

}  // namespace

WT_KERNEL(recursive_filter, recursive_filter);
WT_KERNEL(overdrive, overdrive);

}  // namespace warptape::kernels::cuda
