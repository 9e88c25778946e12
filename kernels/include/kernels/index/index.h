// Reading and writing by index. Indices are int64; where a slot says "wraps", -size <= index < size is valid,
// elsewhere 0 <= index < size; others are reported as a fault. Inputs may have any strides unless it says
// contiguous. Additions into one place happen in the order of the indices, so results do not depend on
// threads.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

enum class ScatterMode : uint8_t { Assign, Add, Multiply, AMin, AMax };

// Slot "gather": out[..., i, ...] = x[..., index[..., i, ...], ...] along dim; out is contiguous, of index's
// shape.
using GatherFn = void(const LaunchContext&, const View& out, const View& x, const View& index, int dim);

// Slot "scatter": self[..., index[..., i, ...], ...] op= src[..., i, ...]; src has index's shape here
// (narrowed by the caller; strides 0 for one value).
using ScatterFn = void(const LaunchContext&, const View& self, const View& index, const View& src, int dim,
                       ScatterMode mode);

// Slot "scatter_narrow", of the CPU: the same for Float16 and BFloat16 with valid indices, but for Add and
// Multiply.
using ScatterNarrowFn = void(const LaunchContext&, const View& self, const View& index, const View& src,
                             int dim, ScatterMode mode);

// Rows of elements: those with from[i] for i in [start[g], start[g + 1]) go to to[g]. All are offsets in
// elements.
struct GroupedRows {
  const int64_t *to, *from, *start;
  int64_t groups;
};

// Slot "combine_narrow", of the CPU: a row of self op= the rows of src that go to it, in their order, by Add
// (of src times alpha) or Multiply, in float, rounded once. self and src are Float16 or BFloat16, of the
// sizes of one row.
using CombineNarrowFn = void(const LaunchContext&, const View& self, const View& src, const GroupedRows& rows,
                             ScatterMode mode, double alpha);

// Slot "index_select": out (contiguous) = slices of x at index [n] along dim.
using IndexSelectFn = void(const LaunchContext&, const View& out, const View& x, const View& index, int dim);

// Slot "index_add": self[..., index[i], ...] += alpha * src[..., i, ...].
using IndexAddFn = void(const LaunchContext&, const View& self, const View& index, const View& src, int dim,
                        double alpha);

// Slot "index_get": advanced indexing. The first `count` dims of x are indexed by `indices`, all broadcast to
// one shape (strides 0 where broadcast); out is contiguous [index shape..., remaining dims of x...]. Wraps.
using IndexGetFn = void(const LaunchContext&, const View& out, const View& x, const View* indices, int count);

// Slot "index_put": its opposite; values has the shape that out has above (strides 0 where broadcast).
using IndexPutFn = void(const LaunchContext&, const View& self, const View& values, const View* indices,
                        int count, bool accumulate);

// Slot "count_nonzero": out (one int64) = number of non-zero elements of x.
using CountNonzeroFn = void(const LaunchContext&, const View& out, const View& x);

// Slot "nonzero": out contiguous int64 [count, x.ndim], in row-major order; count from count_nonzero.
using NonzeroFn = void(const LaunchContext&, const View& out, const View& x);

// Slot "masked_select": out contiguous [count] = elements of x where mask (Bool, x's shape) is set, in
// row-major order.
using MaskedSelectFn = void(const LaunchContext&, const View& out, const View& x, const View& mask);

// Slot "masked_scatter": its opposite, self where mask is set = elements of the contiguous src in order.
using MaskedScatterFn = void(const LaunchContext&, const View& self, const View& mask, const View& src);

// Slots "tril", "triu": out (contiguous) = x [..., rows, cols] with zeros above / below the diagonal.
using TriangleFn = void(const LaunchContext&, const View& out, const View& x, int64_t diagonal);

// Slot "flip": out (contiguous) = x mirrored in the dims whose bit of `dims` is set.
using FlipFn = void(const LaunchContext&, const View& out, const View& x, uint32_t dims);

// Slot "bincount": out contiguous [bins], wholly written: how often each value of x
// (contiguous int64 [n], on the CPU any integers) occurs, or the sum of its weights (contiguous [n], out's
// dtype; null data for none, out is then int64).
using BincountFn = void(const LaunchContext&, const View& out, const View& x, const View& weights);

// A view in the sizes of `shape` without `dim`: where its lines along that dim begin.
struct WithoutDim {
  View view;
  int64_t sizes[kMaxDims], strides[kMaxDims];
  WithoutDim(const View& v, const View& shape, int dim) : view(v) {
    view.ndim = 0;
    for (int d = 0; d < shape.ndim; ++d) {
      if (d == dim) continue;
      sizes[view.ndim] = shape.sizes[d];
      strides[view.ndim++] = v.strides[d];
    }
    view.sizes = sizes;
    view.strides = strides;
  }
};

}  // namespace warptape::kernels
