// Linear layers on weights of 8 and 4 bits: what the kernel for few rows (quant_linear.cu) and the one on
// tensor cores (quant_linear_mma.cu) share.
#pragma once

#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/memory.cuh"
#include "kernels/quant/quant_linear.h"

namespace warptape::kernels::cuda {

// Rows of x as codes of 8 bits.
struct Activations {
  int8_t* codes;   // [M, G * Q]
  float* scales;   // [M, G]
  float* shifts;   // [M, G]: scale * the sum of the codes: what a minimum of the weight is multiplied with
  int32_t* start;  // [M, G]: the sum of the codes * what products with the weight's codes leave out
};

template <class T, class S>
struct QuantArgs {
  Activations x;
  const uint8_t* codes;
  const S *scales, *minima;
  const T* bias;
  T* out;
  int64_t rows, outputs, groups;
  int q;               // inputs of a group
  bool output_scales;  // one scale an output
};

// Adds the sum of a group's products to an output of a row: with the scales of the output and the row.
WT_DEVICE float add_products(float sum, float scale, float of_row, float total) {
  return fma(sum, __fmul_rn(scale, of_row), total);
}

// The same of the row's group `at`, with the minimum.
template <class T, class S>
WT_DEVICE float add_group(const QuantArgs<T, S>& a, int sum, int64_t at, float scale, float minimum,
                          float total) {
  total = add_products(float(sum + a.x.start[at]), scale, a.x.scales[at], total);
  return a.minima ? fma(minimum, a.x.shifts[at], total) : total;
}

inline constexpr int64_t kLeastMmaRows = 16;  // by tensor cores; not measured

// The same numbers by tensor cores (sm_80 on), for many rows: sums of a group are integers, and exact.
template <int kBits, class T, class S>
void quant_linear_mma(const LaunchContext& ctx, const QuantArgs<T, S>& a);

}  // namespace warptape::kernels::cuda
