// Advanced indexing, and reading and writing by index along a dim.
#pragma once

#include "op/op.h"

namespace warptape::ops {

using Indices = std::span<const OptTensor>;

// x[indices]: each index a tensor of ints or bools, or absent for a whole dim. NumPy's rules.
extern WT_API const Op<Tensor(const Tensor&, Indices)> index;
// x[indices] = values, or += with accumulate.
extern WT_API const Op<Tensor(const Tensor&, Indices, const Tensor&, bool)> index_put_;
// The positions of the non-zero elements, int64 [count, ndim].
extern WT_API const Op<Tensor(const Tensor&)> nonzero;
// The same, or one vector per dim; a 0-dim tensor counts as one of one element then.
extern WT_API const Op<OneOrMany(const Tensor&, bool)> nonzero_as;

}  // namespace warptape::ops
