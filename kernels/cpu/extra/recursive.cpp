// Filters of sound whose output feeds back into itself: rows run beside each other, a row from its begin to
// its end.
#include "kernels/extra/recursive.h"

#include "kernels/dispatch.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

void recursive_filter(const LaunchContext&, DType dtype, int64_t rows, int64_t channels, int64_t order,
                      int64_t length, void* out, const void* x, const void* a) {
  dispatch(Types<float, double>{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    cpu::parallel_for(rows, 8192 / (length * order + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T *from = static_cast<const T*>(x) + r * length,
                *factors = static_cast<const T*>(a) + r % channels * order;
        T* past = static_cast<T*>(out) + r * (length + order - 1);
        for (int64_t i = 0; i < length; ++i, ++past) {
          T sum = from[i];
          for (int64_t k = 0; k + 1 < order; ++k) sum -= past[k] * factors[k];
          past[order - 1] = sum;
        }
      }
    });
  });
}

void overdrive(const LaunchContext&, DType dtype, int64_t rows, int64_t length, void* out, const void* x,
               const void* driven, void* last_in, void* last_out) {
  dispatch(Types<float, double>{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    cpu::parallel_for(rows, 8192 / (length + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T *from = static_cast<const T*>(x) + r * length,
                *now = static_cast<const T*>(driven) + r * length;
        T *to = static_cast<T*>(out) + r * length, &in = static_cast<T*>(last_in)[r],
          &back = static_cast<T*>(last_out)[r];
        for (int64_t i = 0; i < length; ++i) {
          back = now[i] - in + T(0.995) * back;
          in = now[i];
          to[i] = from[i] * T(0.5) + back * T(0.75);
        }
      }
    });
  });
}

}  // namespace

WT_KERNEL(recursive_filter, recursive_filter);
WT_KERNEL(overdrive, overdrive);

}  // namespace warptape::kernels::WARPTAPE_ISA
