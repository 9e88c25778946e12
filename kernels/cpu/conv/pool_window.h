// What pooling windows cover, and what averages over them are divided by.
#pragma once

#include "kernels/conv/pool.h"
#include "kernels/cpu/vector/bounds.h"
#include "kernels/dispatch.h"

namespace warptape::kernels::WARPTAPE_ISA {

using MaxTypes = Types<float, double, BFloat16, Half, int64_t, int32_t, int16_t, int8_t, uint8_t>;
using AverageTypes = Types<float, double, BFloat16, Half, int64_t>;

// What no maximum is below; of integers any number, for the places say whether there was one.
template <class A>
WT_INLINE A lowest() {
  if constexpr (A(0.5f) != A(0))
    return A(-__builtin_inf());
  else
    return A(0);
}

WT_INLINE int64_t plane_size(const int64_t (&sizes)[3]) { return sizes[0] * sizes[1] * sizes[2]; }

struct Window {
  int64_t begin, end;
};
WT_INLINE Window adaptive_window(const PoolPlan& p, int d, int64_t i) {
  return {i * p.in[d] / p.out[d], ((i + 1) * p.in[d] + p.out[d] - 1) / p.out[d]};
}

// The size of window i as an average counts it.
WT_INLINE int64_t counted(const PoolPlan& p, int d, int64_t i) {
  if (p.adaptive) return adaptive_window(p, d, i).end - adaptive_window(p, d, i).begin;
  int64_t begin = i * p.stride[d] - p.padding[d], end = least(begin + p.kernel[d], p.in[d] + p.padding[d]);
  return p.count_include_pad ? end - begin : most(least(end, p.in[d]) - most(begin, 0), 0);
}

template <class A>
WT_INLINE A average_divisor(const PoolPlan& p, int64_t rows, int64_t x) {
  return A(p.divisor ? p.divisor : rows * counted(p, 2, x));
}

// What window i of dim d covers of the input; windows of averages are not spread.
WT_INLINE Window window_of(const PoolPlan& p, int d, int64_t i) {
  if (p.adaptive) return adaptive_window(p, d, i);
  int64_t low = i * p.stride[d] - p.padding[d];
  return {most(low, 0), least(low + p.kernel[d], p.in[d])};
}

}  // namespace warptape::kernels::WARPTAPE_ISA
