// A weight as length times direction ("Weight Normalization", section 2).
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace warptape::ops {
namespace {

Tensor norm_except_dim_impl(const Tensor& v, int64_t pow, int64_t dim) {
  const auto p = static_cast<double>(pow);
  if (dim == -1) return vector_norm(v, p, std::nullopt, false, std::nullopt);
  dim = wrap_dim(dim, v.ndim(), "norm_except_dim");
  const int64_t n = v.sizes()[dim], rest[] = {1};
  Shape sizes(v.sizes().size(), 1);
  sizes[dim] = n;
  Tensor rows = reshape(transpose(v, 0, dim), Shape{n, n ? v.numel() / n : 0});
  return reshape(vector_norm(rows, p, IntList(rest), false, std::nullopt), sizes);
}
Tensor weight_norm_impl(const Tensor& v, const Tensor& g, int64_t dim) {
  return v * (g / norm_except_dim_impl(v, 2, dim));
}

const Op<Tensor(const Tensor&, int64_t, int64_t)> norm_except_dim{
    "norm_except_dim",
    norm_except_dim_impl,
    kFunction,
    {"v", Arg::integer("pow", 2), Arg::integer("dim", 0)},
    "The pow-norm over all dims but dim, which are kept; over all of them, a scalar, if dim is -1."};
const Op<Tensor(const Tensor&, const Tensor&, int64_t)> weight_norm{"_weight_norm",
                                                                    weight_norm_impl,
                                                                    kFunction,
                                                                    {"v", "g", Arg::integer("dim", 0)},
                                                                    "v with its norms along dim made g."};

}  // namespace
}  // namespace warptape::ops
