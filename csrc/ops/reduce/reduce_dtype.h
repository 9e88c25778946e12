// The dtypes of reductions and running reductions.
#pragma once

#include "ops/reduce/reduce.h"

namespace warptape::ops {

// Of a sum or a product, unless another is asked for.
inline DType sum_dtype(const Tensor& x, OptDType asked) {
  return asked.value_or(is_differentiable(x.dtype()) ? x.dtype() : DType::Int64);
}

// What is reduced is converted first where a kernel would go by the dtype of its input or of its result
// alone: complex numbers, to real ones and back too, and numbers of which only the truth counts.
inline Tensor converted(const Tensor& x, DType dtype) {
  return is_complex(x.dtype()) || is_complex(dtype) || dtype == DType::Bool ? raw_cast(x, dtype) : x;
}

}  // namespace warptape::ops
