// Linear layers on signs: weights of one bit, and inputs that are taken by their signs.
//
// Shapes: M rows, K inputs, N outputs, P = ceil(N / 16) panels, S = ceil(K / 32) words.
#pragma once

#include "kernels/quant/packed_linear.h"

namespace warptape::kernels {

// The counts of differing bits are kept as floats between blocks, which are exact below.
inline constexpr int64_t kMostBinaryInputs = int64_t{1} << 24;

// Slot "pack_signs": weight [N, K], contiguous, of Float32 or BFloat16, to words [P, S, 16] of Int32: for
// each 32 inputs the bits of 16 outputs, 1 where the weight is below 0, and 0 where there is no weight.
using PackSignsFn = void(const LaunchContext&, DType dtype, int64_t outputs, int64_t inputs,
                         const void* weight, int32_t* words);

// Slot "binary_linear": out [M, N] = scale[n] * b[m] * sum over k of sign(x) sign(weight), + bias, all
// contiguous and of one dtype but for the scales. b is the mean of |x| over the row where `scale_input`
// (Rastegari et al. 2016, "XNOR-Net", section 3.2), else 1. The sign of 0 and of NaN is 1. An output depends
// on its own row.
struct BinaryLinearPlan {
  DType dtype;
  int64_t rows, inputs, outputs;
  const void* x;
  const int32_t* words;
  const float* scale;  // [N]
  const void* bias;    // [N]; null for none
  bool scale_input;
  void* out;
};
using BinaryLinearFn = void(const LaunchContext&, const BinaryLinearPlan&);

}  // namespace warptape::kernels
