// Reading and writing by index along one dim.
#pragma once

#include "ops/op.h"

namespace warptape::ops {

extern WT_API const Op<Tensor(const Tensor&, int64_t, const Tensor&, bool)> gather;
extern WT_API const Op<Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&)> scatter_add;
extern WT_API const Op<Tensor(const Tensor&, int64_t, const Tensor&, const Scalar&)> scatter_value;
extern WT_API const Op<Tensor(const Tensor&, int64_t, const Tensor&)> index_select;
extern WT_API const Op<Tensor(const Tensor&, IntList)> flip;
extern WT_API const Op<Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&, const Scalar&)> index_add;

}  // namespace warptape::ops
