// Tensors from nothing, for other ops.
#pragma once

#include "ops/op.h"

namespace warptape::ops {

// int64 0, 1, ..., n - 1.
WT_API Tensor index_range(int64_t n, Device device);

}  // namespace warptape::ops
