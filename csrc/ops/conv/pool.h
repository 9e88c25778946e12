// Pooling over one to three spatial dims of [N, C, (D, H,) W] or without N. No stride means the kernel's
// size.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// kernel_size, stride, padding, dilation, ceil_mode, return_indices (no matter what, both are)
using MaxPoolOp = Op<std::tuple<Tensor, Tensor>(const Tensor&, IntList, std::optional<IntList>, IntList,
                                                IntList, bool, bool)>;
extern WT_API const MaxPoolOp max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices;
// kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
using AvgPoolOp =
    Op<Tensor(const Tensor&, IntList, std::optional<IntList>, IntList, bool, bool, std::optional<int64_t>)>;
extern WT_API const AvgPoolOp avg_pool1d, avg_pool2d, avg_pool3d;
extern WT_API const Op<Tensor(const Tensor&, IntList)> adaptive_avg_pool1d, adaptive_avg_pool2d,
    adaptive_avg_pool3d;

}  // namespace warptape::ops
