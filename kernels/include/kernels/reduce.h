// Reductions. `out` has as many dims as `in`, with size 1 where a dim is reduced. Slots of this type: "sum" (out has
// the dtype that the sum is given in; narrow floats accumulate in float32, integers in int64).
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

using ReduceFn = void(const LaunchContext&, const View& out, const View& in);

}  // namespace warptape::kernels
