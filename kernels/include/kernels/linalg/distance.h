// Distances between rows: p-norms of their differences.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Rows x1 [batch, n, d] and x2 [batch, m, d]. `pairs`: x2 is x1, and of the distances [n, n] only those above
// the diagonal are there, row by row. All tensors are contiguous, of float32 or float64.
struct DistancePlan {
  int64_t batch, n, m, d;
  double p;  // 1, 2 or infinity
  bool pairs;
};

// Slot "distance": [batch, n, m], or one per pair, from x1 and the transposed x2 [batch, d, m].
using DistanceFn = void(const LaunchContext&, const DistancePlan&, const View& out, const View& x1,
                        const View& x2_transposed);

// Slot "distance_backward": dx1 from the distances and their gradient; of pairs, the gradient of both rows.
using DistanceBackwardFn = void(const LaunchContext&, const DistancePlan&, const View& dx1, const View& dout,
                                const View& out, const View& x1, const View& x2);

}  // namespace warptape::kernels
