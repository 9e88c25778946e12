// Triangles and diagonals.
#pragma once

#include "op/op.h"

namespace warptape::ops {

extern WT_API const Op<Tensor(const Tensor&, int64_t)> tril, triu;
extern WT_API const Op<Tensor(const Tensor&, int64_t, int64_t, int64_t)> diag_embed;

}  // namespace warptape::ops
