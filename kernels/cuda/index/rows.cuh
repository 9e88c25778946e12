// Copying rows that an index chooses.
#pragma once

#include "kernels/cuda/common/launch.cuh"

namespace warptape::kernels::cuda {

// Row o * count + i of `to` (rows one after the other) is the one at from + o * from_outer + keys[i *
// key_step] * from_step, in bytes, for o < outer and i < count. Keys outside 0 <= key < bound are reported
// and their rows stay unwritten.
struct RowCopy {
  void* to;
  const void* from;
  int64_t row_bytes, from_step, from_outer, outer = 1;
  const int64_t* keys;
  int64_t key_step, count, bound;
  bool reported;  // bad keys were reported before and are passed over in silence
};
void take_rows(const LaunchContext& ctx, const char* op, const RowCopy& c);

}  // namespace warptape::kernels::cuda
