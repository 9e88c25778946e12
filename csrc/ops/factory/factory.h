// Tensors from nothing, for other ops.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// int64 0, 1, ..., n - 1.
WT_API Tensor index_range(int64_t n, Device device);
// Of deterministic algorithms: fills memory that nobody has written to, so that programs that read it by
// mistake do the same each time.
WT_API void fill_unset(const Tensor& t);

}  // namespace warptape::ops
