// Weighted sums along one dim: images of other sizes.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Element e from first[i] to first[i + 1] takes part in output i: weight[e] times the input's place[e].
struct ResamplePlan {
  DType dtype;
  int64_t outer, in, out, inner;
  const int64_t *first, *place;
  const double* weight;
};

// Slot "resample": x [outer, in, inner] -> [outer, out, inner], contiguous, of float32 or float64.
using ResampleFn = void(const LaunchContext&, const ResamplePlan&, void* out, const void* x);

}  // namespace warptape::kernels
