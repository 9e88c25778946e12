// Distances between vectors.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// x1 [*, D], x2 [*, D], p, eps, keepdim
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, double, double, bool)> pairwise_distance;

}  // namespace warptape::ops
