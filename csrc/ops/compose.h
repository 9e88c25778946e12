// Small recorded pieces from which the gradients of fused ops are composed when the gradient itself is
// recorded, and what the families with fused kernels share.
#pragma once

#include "ops/elementwise.h"

namespace warptape::ops {

// 1 / sqrt(x).
Tensor inverse_sqrt(const Tensor& x);
// x with other sizes of as many elements, contiguous; for use inside formulas, where aliasing does not
// matter.
Tensor reshaped(const Tensor& x, const Shape& sizes);
// x read at `index` along `dim` (both of the same number of dims), and its opposite: zeros of `sizes` with x
// added there.
Tensor pick(const char* op, const Tensor& x, const Tensor& index, int64_t dim);
Tensor place(const char* op, const Tensor& x, const Tensor& index, int64_t dim, const Shape& sizes);

inline Tensor sum_all(const Tensor& x) { return tape_reduce_to(x, Shape{}); }
// Sum over the dims that `kept` has as 1.
inline Tensor sum_to(const Tensor& x, const Shape& kept) { return tape_reduce_to(x, kept); }

// An absent tensor is a View without data.
inline kernels::View view_of(const Tensor& t) { return t.defined() ? t.view() : kernels::View{}; }
inline Tensor or_undefined(const OptTensor& t) { return t ? *t : Tensor(); }
inline DType stats_dtype(DType t) { return t == DType::Float64 ? DType::Float64 : DType::Float32; }

WT_API void check_floating(const char* op, const Tensor& x);
// DeviceError unless `other`, where defined, is on x's device.
WT_API void check_same_device(const char* op, const Tensor& x, const Tensor& other, const char* what);

}  // namespace warptape::ops
