// The gradient of products along a dim.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Slot "cumprod_backward", on the CPU: dx (contiguous, x's shape) from the gradient of cumprod(x); without
// its data that of the last product alone is 1, the others' 0, which makes each element the product of all
// others.
using CumprodBackwardFn = void(const LaunchContext&, const View& dx, const View& dout, const View& x,
                               int dim);

}  // namespace warptape::kernels
