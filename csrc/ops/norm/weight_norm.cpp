// A weight as length times direction ("Weight Normalization", section 2).
#include "ops/elementwise/elementwise.h"
#include "ops/reduce/reduce.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

Tensor norm_except_dim_impl(const Tensor& v, int64_t pow, int64_t dim) {
  const auto p = static_cast<double>(pow);
  if (dim == -1) return vector_norm(v, p, std::nullopt, false, std::nullopt);
  dim = wrap_dim(dim, v.ndim(), "norm_except_dim");
  Shape others;
  for (int64_t d = 0; d < v.ndim(); ++d)
    if (d != dim) others.push_back(d);
  // No dims would mean all of them.
  return others.empty() ? abs(v) : vector_norm(v, p, OptDims(others), true, std::nullopt);
}

// With n = |v| and s = g / n: dv = s * (d - v * t / n^2) and dg = t / n, where t sums d * v.
void weight_norm_backward(Node& n, Gradients& grads) {
  const Tensor &d = grads[0], v = n.saved(0), g = n.saved(1);
  const Tensor norm = needs_grad(v) ? norm_except_dim_impl(v, 2, n.data<int64_t>()) : n.saved(2);
  const Tensor along = tape_reduce_to(d * v, norm.sizes()) / norm, s = g / norm;
  if (grads.wants(0)) grads.set(0, addcmul(d * s, v, -s * along / norm, Scalar(1)));
  if (grads.wants(1)) grads.set(1, along);
}
constexpr NodeType kWeightNorm{"WeightNormInterfaceBackward0", weight_norm_backward};

Tensor weight_norm_impl(const Tensor& v, const Tensor& g, int64_t dim) {
  if (v.dtype() != g.dtype() || v.numel() == 0) return v * (g / norm_except_dim_impl(v, 2, dim));
  Tensor out, norm;
  {
    NoGrad off;
    norm = norm_except_dim_impl(v, 2, dim);
    out = v * (g / norm);
  }
  if (needs_grad(v, g)) {
    Ref<Node> n = record(kWeightNorm, v, g);
    for (const Tensor& t : {v, g, norm}) n->save(t);
    n->emplace<int64_t>(dim);
    set_history(out, n);
  }
  return out;
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
