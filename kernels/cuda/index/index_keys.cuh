// Places of strided memory as keys: what advanced indexing, scatter and their kin compute from indices.
#pragma once

#include <numeric>

#include "kernels/cuda/index/order.cuh"

namespace warptape::kernels::cuda {

// `x` in the shape of `index`, its stride in `dim` set to 0. `strides` is the view's storage.
inline View without_dim(const View& x, int dim, const View& index, int64_t (&strides)[kMaxDims]) {
  View v = x;
  for (int d = 0; d < x.ndim; ++d) strides[d] = d == dim ? 0 : x.strides[d];
  v.sizes = index.sizes;
  v.strides = strides;
  v.ndim = index.ndim;
  return v;
}

// The places that several indices, broadcast to one shape, choose in the first dims of x: key * unit is the
// offset in elements. Indices wrap.
struct IndexKeys {
  const View& x;
  const View* indices;
  int count;
  int64_t unit = 0;    // what all offsets are multiples of
  uint64_t bound = 1;  // keys are below

  IndexKeys(const View& x, const View* indices, int count) : x(x), indices(indices), count(count) {
    for (int k = 0; k < count; ++k)
      if (x.sizes[k] > 1) unit = std::gcd(unit, x.strides[k]);
    if (unit == 0) unit = 1;
    for (int k = 0; k < count; ++k)
      if (x.sizes[k] > 1) bound += uint64_t(x.sizes[k] - 1) * uint64_t(x.strides[k] / unit);
  }

  // Keys of positions first ... first + n - 1; a bad index is reported and gives -1. Positions, counted from
  // `first`, are written where wanted.
  void write(const LaunchContext& ctx, const char* op, int64_t* keys, uint32_t* positions, int64_t first,
             int64_t n) const;
};

}  // namespace warptape::kernels::cuda
