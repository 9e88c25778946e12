// Products of groups: each has its own matrix, and as many rows, or values of k, as offsets say that lie in
// the device's memory. Slot: "grouped_mm".
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Group g is what lies from ends[g - 1] (0 before the first) to ends[g] - 1; ends ascend, and groups may be
// empty. What lies after the last end is in no group. All matrices are contiguous.
//
//   groups of rows   C [m, n]          rows of A [m, k] by B [groups, k, n]; 0 where in no group
//   along_k          C [groups, m, n]  A [k, m]^T by B [k, n], their rows of the group; 0 of an empty one
//
// Sums are kept in float (double for Float64). An end that is over m (k) or below the one before it is
// reported to ctx.fault; what C holds then is not said, but nothing outside of the matrices is touched.
struct GroupedMmPlan {
  DType dtype;  // floating; of A, B and C
  bool along_k;
  bool b_transposed;        // groups of rows: B lies as [groups, n, k]
  int64_t groups, m, n, k;  // at least 1; m and k below 2^31
  const int32_t* ends;      // [groups]
  const void *a, *b;
  void* c;

  WT_INLINE int64_t cut() const { return along_k ? k : m; }  // what the ends cut
};
using GroupedMmFn = void(const LaunchContext&, const GroupedMmPlan&);

}  // namespace warptape::kernels
