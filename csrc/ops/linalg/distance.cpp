// Distances between vectors, and vectors of length 1. Legend: N vectors, D their elements.
#include "ops/linalg/distance.h"

#include <array>

#include "ops/index/gather.h"
#include "ops/kernel_inputs.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

Tensor length(const Tensor& x, double p, int64_t dim, bool keepdim) {
  return vector_norm(x, p, IntList{&dim, 1}, keepdim, std::nullopt);
}

Tensor pairwise_distance_impl(const Tensor& a, const Tensor& b, double p, double eps, bool keepdim) {
  return length(a - b + eps, p, -1, keepdim);
}

Tensor normalize_impl(const Tensor& x, double p, int64_t dim, double eps) {
  return x / clamp(length(x, p, dim, true), Scalar(eps), std::nullopt);
}

// Lengths along dim, at least eps; the gradient passes as if they had not been raised, as in PyTorch.
Tensor raised_length(const Tensor& x, int64_t dim, double eps) {
  Tensor n = length(x, 2, dim, true);
  if (needs_grad(n)) n = clone(n);
  NoGrad no_grad;
  clamp_(n, Scalar(eps), std::nullopt);
  return n;
}

Tensor cosine_similarity_impl(const Tensor& x1, const Tensor& x2, int64_t dim, double eps) {
  const DType dtype = promoted_dtype(std::array<PointwiseInput, 2>{x1, x2});
  WT_CHECK(is_floating(dtype), DtypeError,
           "cosine_similarity: expected common dtype to be floating point, yet common dtype is ", dtype);
  const Shape sizes = broadcast_shapes(x1.sizes(), x2.sizes(), "cosine_similarity");
  // Broadcast first: dim may be one that only one of them has, or has with size 1.
  const Tensor a = expand(cast(x1, dtype), sizes), b = expand(cast(x2, dtype), sizes);
  Tensor products = (a / raised_length(a, dim, eps)) * (b / raised_length(b, dim, eps));
  return sum(products, IntList{&dim, 1}, false, std::nullopt);
}

const Op<Tensor(const Tensor&, double, int64_t, double)> normalize{
    "normalize",
    normalize_impl,
    kNN | kOut | kComplex,
    {"input", {"p", 2.0}, Arg::integer("dim", 1), {"eps", 1e-12}},
    "input divided by its p-norm over dim, which counts as at least eps."};
const Op<Tensor(const Tensor&, const Tensor&, int64_t, double)> cosine_similarity{
    "cosine_similarity",
    cosine_similarity_impl,
    kFunction | kNN | kFloat32Cuda,
    {"x1", "x2", Arg::integer("dim", 1), {"eps", 1e-8}},
    "The cosine of the angle between x1 and x2 along dim, each length counting as at least eps."};

}  // namespace

decltype(pairwise_distance) pairwise_distance{"pairwise_distance",
                                              pairwise_distance_impl,
                                              kFunction | kNN | kComplex,
                                              {"x1", "x2", {"p", 2.0}, {"eps", 1e-6}, {"keepdim", false}},
                                              "[*, D] and [*, D] -> [*], the p-norm of x1 - x2 + eps."};

}  // namespace warptape::ops
