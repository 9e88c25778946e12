// Losses element by element: of numbers (mse, l1, smooth l1, huber) and of probabilities.
#pragma once

#include "ops/nn/loss.h"

namespace warptape::ops {

// input, target, size_average, reduce, reduction, weight
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, std::optional<bool>, std::optional<bool>,
                              std::string_view, const OptTensor&)>
    mse_loss, l1_loss;
// ... reduction, beta
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, std::optional<bool>, std::optional<bool>,
                              std::string_view, double)>
    smooth_l1_loss;
// input, target, reduction, delta, weight
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, std::string_view, double, const OptTensor&)>
    huber_loss;
// input, target, weight, size_average, reduce, reduction
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, std::optional<bool>,
                              std::optional<bool>, std::string_view)>
    binary_cross_entropy;
// ... pos_weight
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, std::optional<bool>,
                              std::optional<bool>, std::string_view, const OptTensor&)>
    binary_cross_entropy_with_logits;

// input, target, size_average, reduce, reduction, log_target
extern WT_API const
    Op<Tensor(const Tensor&, const Tensor&, std::optional<bool>, std::optional<bool>, std::string_view, bool)>
        kl_div;

}  // namespace warptape::ops
