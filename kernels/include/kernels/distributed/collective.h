// Combining what several ranks hold, element by element.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

enum class Combine : uint8_t { Sum, Avg, Product, Min, Max, BitAnd, BitOr, BitXor };

// Slot "combine": out[i] = inputs[0][i] op inputs[1][i] op ..., in this order, for contiguous arrays of one
// dtype; out may be one of the inputs. 16-bit floats are combined in float32 and rounded once. Avg divides
// the sum by `count`; integers are cut toward zero. False when the dtype does not have the operation.
using CombineFn = bool(const LaunchContext&, void* out, const void* const* inputs, int count, int64_t numel,
                       DType dtype, Combine op);

}  // namespace warptape::kernels
