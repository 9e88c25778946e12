// Sorting.
#pragma once

#include "ops/op.h"

namespace warptape::ops {

extern WT_API const Op<Tensor(const Tensor&, int64_t, bool, bool)> argsort;

}  // namespace warptape::ops
