// Padding, with one value or with the input's own elements.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

enum class PadMode : uint8_t { Constant, Reflect, Replicate, Circular };

inline constexpr int kPaddedDims = 3;

// The last dims, right-aligned in arrays of three, in whose place a 1 stands where there are fewer; all
// others are one number of planes. A negative padding takes elements away.
struct PadPlan {
  PadMode mode;
  DType dtype;
  int64_t planes;
  int64_t in[kPaddedDims], out[kPaddedDims];
  int64_t before[kPaddedDims], after[kPaddedDims];
};

// Slot "pad_constant": out [planes, out...] from x [planes, in...], both contiguous; `value` is one element,
// in host memory.
using PadConstantFn = void(const LaunchContext&, const View& out, const View& x, const PadPlan&,
                           const void* value);

// Slot "pad", the other modes: out [planes, out...] from x [planes, in...], both contiguous, in not empty.
using PadFn = void(const LaunchContext&, const View& out, const View& x, const PadPlan&);

// Slot "pad_backward": dx, wholly written, from dout: every element is the sum over its copies, in the order
// of the output. Floating dtypes.
using PadBackwardFn = void(const LaunchContext&, const View& dx, const View& dout, const PadPlan&);

}  // namespace warptape::kernels
