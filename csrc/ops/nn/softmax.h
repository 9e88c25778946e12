// Softmax and log-softmax over one dim.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// input, dim, dtype (the input is converted to it first)
extern WT_API const Op<Tensor(const Tensor&, int64_t, std::optional<DType>)> softmax, log_softmax;

}  // namespace warptape::ops
