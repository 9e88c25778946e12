// Ops that look at the same memory in another way, and the copies that stand in when that cannot be.
#pragma once

#include "autograd/inplace_view.h"
#include "op/op.h"

namespace warptape::ops {

extern WT_API const NodeType kRegionNode;  // "SliceBackward0"

// A view of a part of x, recorded as one node. `geometry(sizes, strides, offset)` turns x's geometry into the
// part's and is called a second time for the layout of the gradient, which is contiguous whatever x's strides
// are. Elements of the part must not overlap.
template <class F>
Tensor region(const Tensor& x, F&& geometry, const NodeType& type = kRegionNode) {
  Shape sizes = x.sizes(), strides = x.strides();
  int64_t offset = 0;
  geometry(sizes, strides, offset);
  Tensor out = alias(x, std::move(sizes), std::move(strides), x.offset() + offset);
  set_view(out, x);
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    Region r{x.sizes(), contiguous_strides(x.sizes()), x.sizes(), contiguous_strides(x.sizes()), 0};
    geometry(r.sizes, r.strides, r.offset);
    n->emplace<Region>(std::move(r));
    set_history(out, n);
  }
  return out;
}

extern WT_API const Op<Tensor(const Tensor&, IntList)> view, reshape, permute, expand;
extern WT_API const Op<Tensor(const Tensor&, const Tensor&)> view_as, reshape_as, expand_as;
extern WT_API const Op<Tensor(const Tensor&, int64_t, int64_t)> transpose, swapaxes, flatten;
extern WT_API const Op<Tensor(const Tensor&)> t, mt, reversed, detach, squeeze;
extern WT_API const Op<Tensor(const Tensor&, int64_t)> unsqueeze, squeeze_dim;
extern WT_API const Op<Tensor(const Tensor&, int64_t, int64_t)> select;
extern WT_API const Op<Tensor(const Tensor&, int64_t, int64_t, int64_t)> narrow;
// dim, start, length, step; dim, start, end, step with bounds as Python's
extern WT_API const Op<Tensor(const Tensor&, int64_t, int64_t, int64_t, int64_t)> slice, slice_range;
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, std::optional<std::string_view>)> resize_as_;
extern WT_API const Op<std::vector<Tensor>(const Tensor&, int64_t)> unbind;
// input, offset, dim1, dim2
extern WT_API const Op<Tensor(const Tensor&, int64_t, int64_t, int64_t)> diagonal;
extern WT_API const Op<Tensor(const Tensor&, IntList, IntList, std::optional<int64_t>)> as_strided;

}  // namespace warptape::ops
