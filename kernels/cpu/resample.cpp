// Weighted sums along one dim. A row of the output is a sum of rows of the input; along the last dim, whose
// rows are single numbers, it is made number by number.
#include "kernels/resample.h"

#include "kernels/cpu/parallel.h"
#include "kernels/dispatch.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

template <class T>
void resample_of(const ResamplePlan& p, T* out, const T* x) {
  const double each = double(p.first[p.out] + 1) / double(p.out) * double(p.inner);
  cpu::parallel_for(p.outer * p.out, int64_t(32768 / each) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t i = row % p.out;
      const T* from = x + row / p.out * p.in * p.inner;
      T* __restrict to = out + row * p.inner;
      if (p.inner == 1) {
        T sum = 0;
        for (int64_t e = p.first[i]; e < p.first[i + 1]; ++e) sum += T(p.weight[e]) * from[p.place[e]];
        *to = sum;
        continue;
      }
      for (int64_t k = 0; k < p.inner; ++k) to[k] = 0;
      for (int64_t e = p.first[i]; e < p.first[i + 1]; ++e) {
        const T w = T(p.weight[e]);
        const T* at = from + p.place[e] * p.inner;
        for (int64_t k = 0; k < p.inner; ++k) to[k] += w * at[k];
      }
    }
  });
}

void resample(const LaunchContext&, const ResamplePlan& p, void* out, const void* x) {
  dispatch(Types<float, double>{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    resample_of(p, static_cast<T*>(out), static_cast<const T*>(x));
  });
}

}  // namespace

WT_KERNEL(resample, resample);

}  // namespace warptape::kernels::WARPTAPE_ISA
