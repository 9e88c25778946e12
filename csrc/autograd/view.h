// In-place changes of views, and the parts of the tape that only the autograd folder uses.
#pragma once

#include "autograd/tape.h"

namespace warptape {

bool is_accumulator(const Node& node);

// Where a view lies in its base. Offsets count from the base's first element.
struct Region {
  Shape base_sizes, base_strides;
  Shape sizes, strides;
  int64_t offset = 0;  // in elements of the view
  // Where the two differ: the parts of complex numbers, or pairs seen as such.
  std::optional<DType> dtype = {}, base_dtype = {};
};
// The view's part of a gradient of the base, as a tensor of its own.
Tensor tape_take_region(const Tensor& base_gradient, const Region& region);
// A copy of `base_gradient` (zeros when undefined) whose region is replaced by `part` (zeros when undefined).
Tensor tape_replace_region(const Tensor& base_gradient, const Tensor& part, const Region& region);

}  // namespace warptape
