// Layer, RMS, group and batch norm.
#pragma once

#include "ops/op.h"

namespace warptape::ops {

// input [..., *normalized_shape], normalized_shape, weight, bias, eps
extern WT_API const Op<Tensor(const Tensor&, IntList, const OptTensor&, const OptTensor&, double)> layer_norm;
extern WT_API const Op<Tensor(const Tensor&, IntList, const OptTensor&, std::optional<double>)> rms_norm;
// input [batch, channels, ...], groups, weight [channels], bias [channels], eps
extern WT_API const Op<Tensor(const Tensor&, int64_t, const OptTensor&, const OptTensor&, double)> group_norm;
// input [batch, channels, ...], running_mean, running_var, weight, bias, training, momentum, eps
extern WT_API const Op<Tensor(const Tensor&, const OptTensor&, const OptTensor&, const OptTensor&,
                              const OptTensor&, bool, double, double)>
    batch_norm;

}  // namespace warptape::ops
