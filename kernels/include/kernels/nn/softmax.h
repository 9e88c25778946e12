// Softmax and log-softmax over one dim. Tensors are contiguous [outer, n, inner] of one floating dtype; the
// reduced dim is the middle one, so inner == 1 is the fast last dim. y may alias x, dx may alias dy.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Slots "softmax", "log_softmax": y = f(x).
using SoftmaxFn = void(const LaunchContext&, const View& y, const View& x, int64_t outer, int64_t n,
                       int64_t inner);

// Slots "softmax_backward", "log_softmax_backward": dx from dy and the forward's output y.
using SoftmaxBackwardFn = void(const LaunchContext&, const View& dx, const View& dy, const View& y,
                               int64_t outer, int64_t n, int64_t inner);

}  // namespace warptape::kernels
