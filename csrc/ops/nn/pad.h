// Elements added at the ends of dims.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// input, pad (before, after of the last dim, then of the one before ...), mode, value
extern WT_API const Op<Tensor(const Tensor&, IntList, std::string_view, std::optional<double>)> pad;

}  // namespace warptape::ops
