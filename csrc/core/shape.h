// Sizes, strides and what is computed from them alone.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <span>

#include "core/export.h"
#include "core/small_vector.h"

namespace warptape {

using Shape = SmallVector<int64_t, 5>;
using IntList = std::span<const int64_t>;

WT_API std::ostream& operator<<(std::ostream& out, const Shape& s);  // [2, 3]
struct AsShape {                                                     // to print an IntList
  IntList list;
};
WT_API std::ostream& operator<<(std::ostream& out, AsShape s);

// Number of elements; throws ShapeError on a negative size or when it does not fit into 63 bits.
WT_API int64_t numel_of(IntList sizes, const char* op = "tensor");
WT_API Shape contiguous_strides(IntList sizes);
WT_API bool is_contiguous(IntList sizes, IntList strides);

// Maps a dim in [-ndim, ndim) to [0, ndim); a 0-dim tensor takes 0 and -1. Throws IndexError naming the op.
WT_API int64_t wrap_dim(int64_t dim, int64_t ndim, const char* op);
// The same for a list; a dim given twice is a ValueError (RuntimeError in PyTorch). Empty list stays empty.
WT_API Shape wrap_dims(IntList dims, int64_t ndim, const char* op);

// The shape that `a` and `b` broadcast to; ShapeError names op, both shapes and the dim that does not fit.
WT_API Shape broadcast_shapes(IntList a, IntList b, const char* op);
// Strides of a tensor seen with the broadcast shape `to` (0 where it is repeated); a ShapeError where it
// does not broadcast.
WT_API Shape broadcast_strides(IntList sizes, IntList strides, IntList to, const char* op = "expand");
// Replaces one -1 in `sizes` so that the product is numel.
WT_API Shape infer_size(IntList sizes, int64_t numel, const char* op);

}  // namespace warptape
