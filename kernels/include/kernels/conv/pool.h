// Pooling over windows of up to three spatial dims (missing ones: size 1).
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Inputs are [planes, D, H, W], outputs [planes, OD, OH, OW], contiguous and of one dtype: floating, and on
// the CPU integers for maxima without `adaptive`, int64 for averages, rounded towards 0. Window i of a dim
// covers the input's i * stride - padding + t * dilation for t < kernel, as far as they lie inside; when
// `adaptive`, the other numbers are unused and it covers floor(i * in / out) up to ceil((i + 1) * in / out).
struct PoolPlan {
  DType dtype;
  int64_t planes;
  int64_t in[3], out[3], kernel[3];
  int64_t stride[3], padding[3], dilation[3];
  bool adaptive;
  bool count_include_pad;  // of an average: padding counts as zeros, but not what lies beyond it
  int64_t divisor;         // of an average; 0: the number of elements
  int64_t channels;        // of channels last: `planes` are [batch, channels]
};

// Slot "max_pool": also the place of each maximum in its plane. The first maximum wins; NaN beats all
// numbers.
using MaxPoolFn = void(const LaunchContext&, const PoolPlan&, void* out, int64_t* indices, const void* in);
// Slot "max_pool_backward": adds each gradient at its index, in a grad_in that starts as zeros.
using MaxPoolBackwardFn = void(const LaunchContext&, const PoolPlan&, void* grad_in, const void* grad_out,
                               const int64_t* indices);
// Slot "max_pool_gather": the elements of `in` at the indices, the transpose of the above.
using MaxPoolGatherFn = void(const LaunchContext&, const PoolPlan&, void* out, const void* in,
                             const int64_t* indices);
// Slots "avg_pool" (out from in) and "avg_pool_backward" (grad_in from grad_out).
using AvgPoolFn = void(const LaunchContext&, const PoolPlan&, void* to, const void* from);

// The same with channels innermost, on the CPU: [batch, D, H, W, channels]. Slots "max_pool_channels_last",
// "max_pool_channels_last_backward", "max_pool_channels_last_gather", "avg_pool_channels_last" and
// "avg_pool_channels_last_backward".

}  // namespace warptape::kernels
