// Reading and writing where a mask is set.
#pragma once

#include "op/op.h"

namespace warptape::ops {

extern WT_API const Op<Tensor(const Tensor&, const Tensor&)> masked_select;
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const Tensor&)> masked_scatter;
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const Scalar&)> masked_fill;
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const Tensor&)> masked_fill_tensor,
    masked_fill_tensor_;

}  // namespace warptape::ops
