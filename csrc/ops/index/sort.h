// Sorting.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// (values, indices): input, dim, descending, stable; input, k, dim, largest, sorted.
extern WT_API const Op<std::tuple<Tensor, Tensor>(const Tensor&, int64_t, bool, bool)> sort;
extern WT_API const Op<std::tuple<Tensor, Tensor>(const Tensor&, int64_t, int64_t, bool, bool)> topk;
extern WT_API const Op<Tensor(const Tensor&, int64_t, bool, bool)> argsort;
// sorted_sequence, input, out_int32, right, side, sorter
extern WT_API const
    Op<Tensor(const Tensor&, const Tensor&, bool, bool, std::optional<std::string_view>, const OptTensor&)>
        searchsorted;

}  // namespace warptape::ops
