// Normalisations, forward with what the backward needs and fused backward. Data tensors are contiguous and of
// one floating dtype. Statistics (mean, rstd) are of the compute dtype: float64 for float64 data, else
// float32. Weights, biases, running statistics and their gradients may have any floating dtype. A View whose
// data is null is absent: an input that was not given or an output that is not wanted.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Slots "layer_norm", "rms_norm": x, y [rows, n]; weight, bias [n]; mean, rstd [rows]. rms_norm ignores mean
// and bias.
using RowNormFn = void(const LaunchContext&, const View& y, const View& mean, const View& rstd, const View& x,
                       const View& weight, const View& bias, int64_t rows, int64_t n, double eps);

// Slots "layer_norm_backward", "rms_norm_backward".
using RowNormBackwardFn = void(const LaunchContext&, const View& dx, const View& dweight, const View& dbias,
                               const View& dy, const View& x, const View& mean, const View& rstd,
                               const View& weight, int64_t rows, int64_t n);

// Slot "group_norm": x, y [batch, channels, inner]; weight, bias [channels]; mean, rstd [batch, groups].
using GroupNormFn = void(const LaunchContext&, const View& y, const View& mean, const View& rstd,
                         const View& x, const View& weight, const View& bias, int64_t batch, int64_t channels,
                         int64_t inner, int64_t groups, double eps);

// Slot "group_norm_backward".
using GroupNormBackwardFn = void(const LaunchContext&, const View& dx, const View& dweight, const View& dbias,
                                 const View& dy, const View& x, const View& mean, const View& rstd,
                                 const View& weight, int64_t batch, int64_t channels, int64_t inner,
                                 int64_t groups);

// Slot "batch_norm_stats": mean, rstd [channels] of x [batch, channels, inner]; running_mean and running_var,
// where given, move by `momentum` towards the batch's mean and unbiased variance.
using BatchNormStatsFn = void(const LaunchContext&, const View& mean, const View& rstd,
                              const View& running_mean, const View& running_var, const View& x, int64_t batch,
                              int64_t channels, int64_t inner, double momentum, double eps);

// Slot "batch_norm_coefficients", on the CPU: with factor = rstd * weight and offset = bias - mean * factor,
// [channels] of the compute dtype, "batch_norm_apply" is fma(factor, x, offset), so the formula of the
// elementwise slot "add_scaled".
using BatchNormCoefficientsFn = void(const LaunchContext&, const View& factor, const View& offset,
                                     const View& mean, const View& rstd, const View& weight, const View& bias,
                                     int64_t channels);

// Slot "batch_norm_apply": y = (x - mean) * rstd * weight + bias; with the running statistics in evaluation.
using BatchNormApplyFn = void(const LaunchContext&, const View& y, const View& x, const View& mean,
                              const View& rstd, const View& weight, const View& bias, int64_t batch,
                              int64_t channels, int64_t inner);

// Slot "batch_norm_backward": `train` says that mean and rstd came from x, so the gradient flows through them
// too.
using BatchNormBackwardFn = void(const LaunchContext&, const View& dx, const View& dweight, const View& dbias,
                                 const View& dy, const View& x, const View& mean, const View& rstd,
                                 const View& weight, int64_t batch, int64_t channels, int64_t inner,
                                 bool train);

}  // namespace warptape::kernels
