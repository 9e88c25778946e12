// Numbers at equal distances: arange, linspace.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Element i of n: first + i step for i below `turn`, else last - (n - 1 - i) step (linspace counts from both
// ends, so that it is symmetric). In int64 where `integral`, else in double; then converted to out's dtype.
struct SequencePlan {
  bool integral = false;
  int64_t first_int = 0, step_int = 0;  // integral: turn is n
  double first = 0, step = 0, last = 0;
  int64_t turn = 0;
};

// Slot "sequence", of devices (the CPU makes them in place): out is contiguous, of any dtype.
using SequenceFn = void(const LaunchContext&, const View& out, const SequencePlan& plan);

}  // namespace warptape::kernels
