// Scaled dot-product attention.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// query [..., H, T, D], key [..., K, S, D], value [..., K, S, E], attn_mask, dropout_p, is_causal, scale,
// enable_gqa
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, const OptTensor&, double, bool,
                              std::optional<double>, bool)>
    scaled_dot_product_attention;

}  // namespace warptape::ops
