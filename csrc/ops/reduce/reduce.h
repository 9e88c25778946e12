// Reductions and running reductions. `dims` absent or empty means all dims.
#pragma once

#include "op/op.h"

namespace warptape::ops {

using OptDims = std::optional<IntList>;
using OptDType = std::optional<DType>;

extern WT_API const Op<Tensor(const Tensor&, OptDims, bool, OptDType)> sum, mean;
extern WT_API const Op<Tensor(const Tensor&, OptDims, bool)> amax, amin, any, all;
extern WT_API const Op<Tensor(const Tensor&, std::optional<int64_t>, bool)> argmax, argmin;
extern WT_API const Op<std::tuple<Tensor, Tensor>(const Tensor&, int64_t, bool)> nanmedian_dim;
extern WT_API const Op<Tensor(const Tensor&, OptDims, std::optional<double>, bool)> var, std_op;
// x, ord, dims, keepdim, dtype
extern WT_API const Op<Tensor(const Tensor&, double, OptDims, bool, OptDType)> vector_norm;
extern WT_API const Op<Tensor(const Tensor&, int64_t, OptDType)> cumsum, cumprod;
extern WT_API const Op<Tensor(const Tensor&, double, OptDims, bool, OptDType)> vector_norm;
extern WT_API const Op<Tensor(const Tensor&, std::string_view, IntList, bool, OptDType)>
    matrix_norm_name;  // linalg
extern WT_API const Op<Tensor(const Tensor&, IntList, bool)> logsumexp;
extern WT_API const Op<Tensor(const Tensor&, int64_t)> logcumsumexp;
extern WT_API const Op<Tensor(const Tensor&, OptDType)> prod;
extern WT_API const Op<Tensor(const Tensor&, int64_t, bool, OptDType)> prod_dim;
extern WT_API const Op<Tensor(const Tensor&, double, OptDims, bool, OptDType)> vector_norm;  // linalg
// For every element the product of those before it along dim (at least one element), in log2(n) steps of
// differentiable ops.
Tensor products_before(const Tensor& x, int64_t dim);
// On the CPU, not recorded: the gradient of cumprod(x); with g undefined the product of all others.
Tensor products_backward(const Tensor& g, const Tensor& x, int64_t dim);

// The result's shape with the reduced dims kept as 1, or left out.
struct Reduced {
  Shape kept;
  Shape sizes;
  int64_t count;  // elements that go into one result
};
WT_API Reduced reduced_shape(const char* op, const Tensor& x, const OptDims& dims, bool keepdim);
// x with one dim of size 1 where it was reduced, repeated to `sizes`. Recorded.
WT_API Tensor spread(const Tensor& reduced, const Shape& kept, const Shape& sizes);

}  // namespace warptape::ops
