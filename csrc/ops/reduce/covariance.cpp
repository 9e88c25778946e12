// Covariances and correlations of variables in rows [v, n].
#include "ops/elementwise/elementwise.h"
#include "ops/linalg/matmul.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

Tensor sum_over(const Tensor& x, int64_t dim) {
  return sum(x, OptDims(IntList{&dim, 1}), false, std::nullopt);
}
Tensor sum_all_of(const Tensor& x) { return sum(x, std::nullopt, false, std::nullopt); }

void check_weights(const char* what, const Tensor& weights, int64_t observations, bool integral) {
  WT_CHECK(weights.ndim() <= 1, ShapeError, "cov: expected ", what,
           " to have one or fewer dimensions but got ", what, " with ", weights.ndim(), " dimensions");
  WT_CHECK(integral ? is_integral(weights.dtype()) : is_floating(weights.dtype()), DtypeError,
           "cov: expected ", what, " to have ", integral ? "integral" : "floating point", " dtype but got ",
           what, " with ", weights.dtype(), " dtype");
  WT_CHECK(weights.numel() == observations, ShapeError, "cov: expected ", what,
           " to have the same numel as there are observations in the input but got ", weights.numel(),
           " != ", observations);
  if (weights.device().is_meta() || observations == 0) return;
  NoGrad off;
  WT_CHECK(item(amin(weights, std::nullopt, false)).to_double() >= 0, Error, "cov: ", what,
           " cannot be negative");
}

// What the sum of products is divided by: a number without weights, else a tensor.
Tensor divisor(const Tensor& weights, const Tensor& total, int64_t correction, const OptTensor& aweights) {
  const Tensor n = aweights && correction != 0 ? total - sum_all_of(weights * *aweights) * correction / total
                                               : total - correction;
  if (n.device().is_meta() || item(n).to_double() > 0) return n;
  warn(
      "cov(): degrees of freedom is <= 0. Correction should be strictly less than the number of "
      "observations.");
  return zeros(n.sizes(), options_of(n));
}

Tensor cov_impl(const Tensor& given, int64_t correction, const OptTensor& fweights,
                const OptTensor& aweights) {
  WT_CHECK(given.ndim() <= 2, ShapeError,
           "cov: expected input to have two or fewer dimensions but got an input with ", given.ndim(),
           " dimensions");
  WT_CHECK(given.dtype() != DType::Bool, DtypeError, "cov: bool dtype is not supported for input");
  const Tensor x = given.ndim() < 2 ? reshape(given, Shape{1, given.numel()}) : given;
  const int64_t n = x.sizes()[1];
  if (fweights) check_weights("fweights", *fweights, n, true);
  if (aweights) check_weights("aweights", *aweights, n, false);
  const Shape last{1};
  Tensor weights = fweights ? *fweights : Tensor();
  if (aweights) weights = fweights ? *fweights * *aweights : *aweights;
  if (!weights.defined()) {
    if (n - correction <= 0)
      warn(
          "cov(): degrees of freedom is <= 0. Correction should be strictly less than the number of "
          "observations.");
    const Tensor centred = x - unsqueeze(sum_over(x, 1) / n, 1);
    return squeeze(mm(centred, conjugate(t(centred))) / std::max<int64_t>(0, n - correction));
  }
  const Tensor total = sum_all_of(weights);
  WT_CHECK(total.device().is_meta() || item(total).to_bool(), Error,
           "cov: weights sum to zero, can't be normalized");
  const Tensor centred = x - unsqueeze(sum_over(x * weights, 1) / total, 1);
  return squeeze(mm(centred, conjugate(t(centred * weights))) /
                 divisor(weights, total, correction, aweights));
}

const Op<Tensor(const Tensor&, int64_t, const OptTensor&, const OptTensor&)> cov{
    "cov",
    cov_impl,
    kFunction | kMethod | kComplex,
    {"input",
     Arg::integer("correction", 1, kKeywordOnly),
     {"fweights", none, kKeywordOnly},
     {"aweights", none, kKeywordOnly}},
    "The covariances [v, v] of variables in the rows of [v, n]; fweights count samples, aweights weigh "
    "them."};

Tensor limited(const Tensor& x) { return clamp(x, Scalar(-1), Scalar(1)); }

Tensor corrcoef_impl(const Tensor& x) {
  WT_CHECK(x.ndim() <= 2, ShapeError,
           "corrcoef: expected input to have two or fewer dimensions but got an input with ", x.ndim(),
           " dimensions");
  const Tensor c = cov(x, 1, std::nullopt, std::nullopt);
  if (c.ndim() == 0) return c / c;
  const Tensor deviation = sqrt(real(diagonal(c, 0, 0, 1)));
  const Tensor scaled = c / unsqueeze(deviation, 1) / unsqueeze(deviation, 0);
  return is_complex(c.dtype()) ? complex(limited(real(scaled)), limited(imag(scaled))) : limited(scaled);
}
const Op<Tensor(const Tensor&)> corrcoef{"corrcoef",
                                         corrcoef_impl,
                                         kFunction | kMethod | kComplex,
                                         {"input"},
                                         "The correlations [v, v] of variables in the rows of [v, n]."};

}  // namespace
}  // namespace warptape::ops
