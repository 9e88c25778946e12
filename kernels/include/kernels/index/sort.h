// Sorting along the last dim. Data are contiguous [outer, n]; NaN counts as larger than every number, as in
// PyTorch.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Slot "sort": values (null data if not wanted) and indices (int64) [outer, n]; always stable.
using SortFn = void(const LaunchContext&, const View& values, const View& indices, const View& x,
                    int64_t outer, int64_t n, bool descending);

// Slot "topk": the k largest or smallest of each row, in order; values, indices [outer, k].
using TopkFn = void(const LaunchContext&, const View& values, const View& indices, const View& x,
                    int64_t outer, int64_t n, int64_t k, bool largest);

// Slot "searchsorted": out (int64 or int32) [outer, m]: where each value would go in its sorted row of
// `sorted` [outer, n] (or [1, n] for all rows: shared); `right` chooses the last suitable place.
using SearchsortedFn = void(const LaunchContext&, const View& out, const View& sorted, const View& values,
                            int64_t outer, int64_t n, int64_t m, bool shared, bool right);

}  // namespace warptape::kernels
