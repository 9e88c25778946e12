// Losses with a fused kernel, and those composed of elementwise ops.
#pragma once

#include "kernels/nn/loss.h"
#include "op/op.h"

namespace warptape::ops {

using kernels::Reduction;
// "none", "mean" or "sum", or what the two deprecated arguments say where given.
WT_API Reduction reduction_of(const char* op, std::optional<bool> size_average, std::optional<bool> reduce,
                              std::string_view reduction);
// 0 for none, 1 for the mean, 2 for the sum, as the top level's losses take it.
WT_API Reduction reduction_of(const char* op, int64_t reduction);
// The losses themselves, their mean or their sum.
WT_API Tensor reduced(const Tensor& losses, Reduction reduction);

// input [N, C, ...] or [C], target [N, ...] of class indices or probabilities of input's shape, weight [C],
// size_average, ignore_index, reduce, reduction, label_smoothing
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, std::optional<bool>, int64_t,
                              std::optional<bool>, std::string_view, double)>
    cross_entropy, cross_entropy_float32;
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, std::optional<bool>, int64_t,
                              std::optional<bool>, std::string_view)>
    nll_loss;

}  // namespace warptape::ops
