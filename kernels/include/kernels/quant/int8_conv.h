// Convolutions and linear layers whose input, weight and result are bytes, for inference. Sums are exact
// integers, so results do not depend on the images that are computed together or on threads.
//
// Shapes: N images, C channels, O outputs, P = ceil(O / 16) panels, C4 = C rounded up to a multiple of 4.
#pragma once

#include "kernels/quant/packed_linear.h"

namespace warptape::kernels {

// Slot "int8_conv": with s the sum over taps and channels of x * weight, where x is `pad` outside the image,
//   y = s * scale[o] + bias[o] + residual * residual_scale
// and the result is y rounded to nearest even and limited to [low, 255], or as a float limited to [low, inf).
// Zero points of input, residual and result are parts of the bias, which the caller computes.
//   x         uint8 [N, H, W, C]           weight  int8 [P, KH, KW, C4 / 4, 16, 4], zero where there is none
//   residual  uint8 [N, OH, OW, O]         scale, bias  [P * 16]
struct Int8ConvPlan {
  int64_t batch, in_channels, out_channels;
  int64_t in[2], out[2], kernel[2];
  int64_t stride[2], padding[2], dilation[2];
  const uint8_t* x;
  const int8_t* weight;
  const float *scale, *bias;
  const uint8_t* residual;  // null for none
  float residual_scale;
  uint8_t pad;
  float low;
  bool floats;  // whether the result is of Float32, else of UInt8
  void* out_data;
};
using Int8ConvFn = void(const LaunchContext&, const Int8ConvPlan&);

// Slot "max_pool_bytes": the greatest byte of each window of uint8 [N, H, W, C]; outside of the image is 0.
struct BytePoolPlan {
  int64_t batch, channels;
  int64_t in[2], out[2], kernel[2];
  int64_t stride[2], padding[2], dilation[2];
  const uint8_t* x;
  uint8_t* out_data;
};
using MaxPoolBytesFn = void(const LaunchContext&, const BytePoolPlan&);

// Slot "quantize_bytes": out = x * inverse + zero, rounded to nearest even and limited to [0, 255]; NaN is 0.
using QuantizeBytesFn = void(const LaunchContext&, int64_t n, const float* x, float inverse, float zero,
                             uint8_t* out);

}  // namespace warptape::kernels
