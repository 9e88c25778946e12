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
// Whether several elements of a tensor lie in one memory location; and whether its strides alone do not rule
// that out.
bool has_overlap(const Tensor& t);
bool may_overlap(const Tensor& t);
// Adds to a region; elements that share memory all count.
void add_into(const Tensor& region, const Tensor& part);
// The view's part of a gradient of the base, as a tensor of its own.
Tensor tape_take_region(const Tensor& base_gradient, const Region& region);
// A copy of `base_gradient` (zeros when undefined) whose region is replaced by `part` (zeros when undefined).
// Elements of the region that share memory are summed there.
Tensor tape_replace_region(const Tensor& base_gradient, const Tensor& part, const Region& region);

}  // namespace warptape
