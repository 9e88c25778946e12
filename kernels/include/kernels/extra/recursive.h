// Filters of sound whose output feeds back into itself. All arrays are contiguous, of float32 or float64.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Slot "recursive_filter": out [rows, order - 1 + length] begins with order - 1 past values of each row,
// which stay; after them out[t] = x[t] - sum of a[k] * out[t - order + 1 + k] over k < order - 1. x is [rows,
// length], a [channels, order] with its last coefficient, 1, unused; row r is of channel r % channels.
using RecursiveFilterFn = void(const LaunchContext&, DType, int64_t rows, int64_t channels, int64_t order,
                               int64_t length, void* out, const void* x, const void* a);

// Slot "overdrive": of each row [length] last_out = driven - last_in + 0.995 * last_out, last_in = driven,
// and out = x / 2 + 3 / 4 * last_out; `last_in` and `last_out` are [rows].
using OverdriveFn = void(const LaunchContext&, DType, int64_t rows, int64_t length, void* out, const void* x,
                         const void* driven, void* last_in, void* last_out);

}  // namespace warptape::kernels
