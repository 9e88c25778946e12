// Weighted sums along one dim. A row of the output is a sum of rows of the input; along the last dim, whose
// rows are single numbers, the same sum is made in several lines at once.
#include "kernels/nn/resample.h"

#include "kernels/cpu/vector/rows.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

inline constexpr int64_t kCost = 32768;  // products that a task should have
inline constexpr int kLines = 4;

template <int kCount, class T>
WT_FN void sum_numbers(const ResamplePlan& p, const T* weight, T* out, const T* x) {
  for (int64_t i = 0; i < p.out; ++i) {
    T sum[kCount] = {};
    for (int64_t e = p.first[i]; e < p.first[i + 1]; ++e)
      for (int l = 0; l < kCount; ++l) sum[l] += weight[e] * x[l * p.in + p.place[e]];
    for (int l = 0; l < kCount; ++l) out[l * p.out + i] = sum[l];
  }
}

template <class T>
void resample_of(const LaunchContext& ctx, const ResamplePlan& p, T* out, const T* x) {
  const int64_t count = p.first[p.out];
  auto* weight = static_cast<T*>(ctx.scratch((count + 1) * sizeof(T)));
  for (int64_t e = 0; e < count; ++e) weight[e] = T(p.weight[e]);
  if (p.inner == 1) {
    const int64_t blocks = (p.outer + kLines - 1) / kLines;
    return cpu::parallel_for(blocks, kCost / (kLines * (count + p.out)) + 1, [&](int64_t begin, int64_t end) {
      int64_t line = begin * kLines;
      const int64_t last = end * kLines < p.outer ? end * kLines : p.outer;
      for (; line + kLines <= last; line += kLines)
        sum_numbers<kLines>(p, weight, out + line * p.out, x + line * p.in);
      for (; line < last; ++line) sum_numbers<1>(p, weight, out + line * p.out, x + line * p.in);
    });
  }
  const double each = double(count + p.out) / double(p.out) * double(p.inner);
  cpu::parallel_for(p.outer * p.out, int64_t(kCost / each) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t i = row % p.out;
      const T* from = x + row / p.out * p.in * p.inner;
      for_vectors<T>(p.inner, [&](int64_t k, auto lanes) {
        Vec<T> sum(T(0));
        for (int64_t e = p.first[i]; e < p.first[i + 1]; ++e)
          sum = fma(Vec<T>(weight[e]), load(from + p.place[e] * p.inner + k, lanes), sum);
        store(out + row * p.inner + k, sum, lanes);
      });
    }
  });
}

void resample(const LaunchContext& ctx, const ResamplePlan& p, void* out, const void* x) {
  dispatch(Types<float, double>{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    resample_of(ctx, p, static_cast<T*>(out), static_cast<const T*>(x));
  });
}

}  // namespace

WT_KERNEL(resample, resample);

}  // namespace warptape::kernels::WARPTAPE_ISA
