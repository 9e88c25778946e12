// Rows of a table by index.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// input (indices, any shape), weight [vocab, dim], padding_idx, max_norm, norm_type, scale_grad_by_freq,
// sparse
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, std::optional<int64_t>, std::optional<double>,
                              double, bool, bool)>
    embedding;

}  // namespace warptape::ops
