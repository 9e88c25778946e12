// What the families with fused kernels share.
#pragma once

#include "ops/elementwise/elementwise.h"

namespace warptape::ops {

inline Tensor sum_all(const Tensor& x) { return tape_reduce_to(x, Shape{}); }
// Sum over the dims that `kept` has as 1.
inline Tensor sum_to(const Tensor& x, const Shape& kept) { return tape_reduce_to(x, kept); }

// An absent tensor is a View without data.
inline kernels::View view_of(const Tensor& t) { return t.defined() ? t.view() : kernels::View{}; }
inline kernels::View planned_view_of(const Tensor& t) {
  return t.defined() ? t.planned_view() : kernels::View{};
}
inline Tensor or_undefined(const OptTensor& t) { return t ? *t : Tensor(); }
inline DType stats_dtype(DType t) { return t == DType::Float64 ? DType::Float64 : DType::Float32; }

WT_API void check_floating(const char* op, const Tensor& x);
// DeviceError unless `other`, where defined, is on x's device; the entry of an op lets 0-dim ones in host
// memory pass.
WT_API void check_same_device(const char* op, const Tensor& x, const Tensor& other, const char* what);

}  // namespace warptape::ops
