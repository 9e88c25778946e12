// torch.masked: reductions and normalisations of what a mask shows. What it hides holds a number that does
// not change the result, such as 0 in a sum.
#include <limits>

#include "ops/elementwise/elementwise.h"
#include "ops/index/masked.h"
#include "ops/nn/softmax.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
using Dims = OptDims;

// The smallest number of a dtype, or the largest.
Scalar extreme(const char* op, DType t, bool largest) {
  WT_CHECK(t != DType::Bool, NotImplementedError, "masked.", op, ": not implemented for bool");
  if (is_floating(t) || is_complex(t)) return largest ? kInf : -kInf;
  if (t == DType::UInt8) return int64_t{largest ? 255 : 0};
  const int bits = static_cast<int>(itemsize(t)) * 8;
  const int64_t most = bits == 64 ? INT64_MAX : (int64_t{1} << (bits - 1)) - 1;
  return largest ? most : -most - 1;
}

Tensor mask_like(const char* op, const Tensor& x, const Tensor& mask) {
  WT_CHECK(mask.ndim() <= x.ndim(), IndexError, "masked.", op,
           ": expected a mask that broadcasts to the input, but it has ", mask.ndim(),
           " dimensions, the input ", x.ndim());
  return expand(mask.dtype() == DType::Bool ? mask : ne_ts(mask, 0), x.sizes());
}
Tensor shown(const char* op, const Tensor& x, const OptTensor& mask, const Scalar& hidden) {
  return mask ? masked_fill(x, logical_not(mask_like(op, x, *mask)), hidden) : x;
}
Tensor as(const Tensor& x, OptDType dtype, DType otherwise) { return cast(x, dtype.value_or(otherwise)); }

// ---- reductions ----------------------------------------------------------------------------------------

Tensor sum_impl(const Tensor& x, Dims dims, bool keepdim, OptDType dtype, const OptTensor& mask) {
  return sum(shown("sum", x, mask, 0), dims, keepdim, dtype);
}
Tensor prod_impl(const Tensor& x, Dims dims, bool keepdim, OptDType dtype, const OptTensor& mask) {
  const Tensor seen = shown("prod", x, mask, 1);
  Tensor out = cast(seen, dtype.value_or(is_differentiable(x.dtype()) ? x.dtype() : DType::Int64));
  Shape wrapped = dims ? wrap_dims(*dims, x.ndim(), "masked.prod") : Shape();
  for (int64_t d = x.ndim(); d-- > 0;)
    if (wrapped.empty() || std::find(wrapped.begin(), wrapped.end(), d) != wrapped.end())
      out = prod_dim(out, d, keepdim, std::nullopt);
  return out;
}
Tensor amax_impl(const Tensor& x, Dims dims, bool keepdim, OptDType dtype, const OptTensor& mask) {
  return as(amax(shown("amax", x, mask, extreme("amax", x.dtype(), false)), dims, keepdim), dtype, x.dtype());
}
Tensor amin_impl(const Tensor& x, Dims dims, bool keepdim, OptDType dtype, const OptTensor& mask) {
  return as(amin(shown("amin", x, mask, extreme("amin", x.dtype(), true)), dims, keepdim), dtype, x.dtype());
}
Tensor logsumexp_impl(const Tensor& x, Dims dims, bool keepdim, OptDType dtype, const OptTensor& mask) {
  const Tensor seen = shown("logsumexp", x, mask, extreme("logsumexp", x.dtype(), false));
  return as(logsumexp(seen, dims.value_or(IntList{}), keepdim), dtype, x.dtype());
}

// How many elements are shown, int64.
Tensor count_of(const char* op, const Tensor& x, Dims dims, bool keepdim, const OptTensor& mask) {
  const Tensor all = mask ? Tensor() : full(Shape{}, true, {DType::Bool, x.device()});
  return sum(mask ? mask_like(op, x, *mask) : expand(all, x.sizes()), dims, keepdim, std::nullopt);
}
Tensor mean_impl(const Tensor& x, Dims dims, bool keepdim, OptDType dtype, const OptTensor& mask) {
  WT_CHECK(is_differentiable(dtype.value_or(x.dtype())), ValueError,
           "masked.mean: expected a floating point or complex dtype, got ", dtype.value_or(x.dtype()));
  return sum_impl(x, dims, keepdim, dtype, mask) / count_of("mean", x, dims, keepdim, mask);
}

Tensor var_of(const char* op, const Tensor& x, Dims dims, std::optional<bool> unbiased,
              std::optional<double> correction, bool keepdim, OptDType dtype, const OptTensor& mask) {
  WT_CHECK(!unbiased || !correction, AssertionError, "masked.", op,
           ": only one of unbiased and correction may be given");
  const double less = correction.value_or(unbiased.value_or(true) ? 1 : 0);
  const DType result = dtype.value_or(is_differentiable(x.dtype()) ? x.dtype() : DType::Float32);
  const DType compute = is_differentiable(result) ? result : DType::Float32;
  const Tensor count = count_of(op, x, dims, true, mask);
  const Tensor centred = x - sum_impl(x, dims, true, dtype, mask) / count;
  Tensor total = sum_impl(centred * conjugate(centred), dims, keepdim, compute, mask);
  Tensor number = cast(reshape(count, total.sizes()), real_of(compute));
  if (less != 0) number = clamp(number - less, Scalar(0), std::nullopt);
  return cast(total / number, result);
}
Tensor var_impl(const Tensor& x, Dims dims, std::optional<bool> unbiased, std::optional<double> correction,
                bool keepdim, OptDType dtype, const OptTensor& mask) {
  return var_of("var", x, dims, unbiased, correction, keepdim, dtype, mask);
}
Tensor std_impl(const Tensor& x, Dims dims, std::optional<bool> unbiased, std::optional<double> correction,
                bool keepdim, OptDType dtype, const OptTensor& mask) {
  return sqrt(var_of("std", x, dims, unbiased, correction, keepdim, dtype, mask));
}

Tensor norm_impl(const Tensor& x, double ord, Dims dims, bool keepdim, OptDType dtype,
                 const OptTensor& mask) {
  return vector_norm(shown("norm", x, mask, ord == -kInf ? kInf : 0.0), ord, dims, keepdim, dtype);
}

// By dtype of the input, as PyTorch has it.
Tensor argmax_impl(const Tensor& x, std::optional<int64_t> dim, bool keepdim, OptDType dtype,
                   const OptTensor& mask) {
  return as(argmax(shown("argmax", x, mask, extreme("argmax", x.dtype(), false)), dim, keepdim), dtype,
            x.dtype());
}
Tensor argmin_impl(const Tensor& x, std::optional<int64_t> dim, bool keepdim, OptDType dtype,
                   const OptTensor& mask) {
  return as(argmin(shown("argmin", x, mask, extreme("argmin", x.dtype(), true)), dim, keepdim), dtype,
            x.dtype());
}

Tensor median_impl(const Tensor& x, int64_t dim, bool keepdim, OptDType dtype, const OptTensor& mask) {
  const bool floats = is_floating(x.dtype());
  const Tensor seen = shown("median", floats ? x : cast(x, DType::Float32), mask, __builtin_nan(""));
  const Tensor out = std::get<0>(nanmedian_dim(seen, dim, keepdim));
  if (floats) return out;
  WT_CHECK(out.device().is_meta() || !item(any(isnan(out), std::nullopt, false)).to_bool(), ValueError,
           "masked.median: expected no row that is hidden as a whole if dtype is not floating point");
  return as(out, dtype, x.dtype());
}

// ---- along one dim, of the input's shape ---------------------------------------------------------------

Tensor cumsum_impl(const Tensor& x, int64_t dim, OptDType dtype, const OptTensor& mask) {
  return cumsum(shown("cumsum", x, mask, 0), dim, dtype.value_or(x.dtype()));
}
Tensor cumprod_impl(const Tensor& x, int64_t dim, OptDType dtype, const OptTensor& mask) {
  return cumprod(shown("cumprod", x, mask, 1), dim, dtype.value_or(x.dtype()));
}
Tensor softmax_impl(const Tensor& x, int64_t dim, OptDType dtype, const OptTensor& mask) {
  return softmax(shown("softmax", x, mask, extreme("softmax", x.dtype(), false)), dim, dtype);
}
Tensor log_softmax_impl(const Tensor& x, int64_t dim, OptDType dtype, const OptTensor& mask) {
  return log_softmax(shown("log_softmax", x, mask, extreme("log_softmax", x.dtype(), false)), dim, dtype);
}
Tensor softmin_impl(const Tensor& x, int64_t dim, OptDType dtype, const OptTensor& mask) {
  return softmax(-shown("softmin", x, mask, extreme("softmin", x.dtype(), true)), dim, dtype);
}
Tensor normalize_impl(const Tensor& x, double ord, int64_t dim, double eps, OptDType dtype,
                      const OptTensor& mask) {
  const Tensor norms = norm_impl(x, ord, IntList{&dim, 1}, true, dtype, mask);
  return shown("normalize", x, mask, 0) / maximum(norms, full(Shape{}, eps, options_of(norms)));
}

Tensor logaddexp_impl(const Tensor& a, const Tensor& b, OptDType dtype, const OptTensor& mask_a,
                      const OptTensor& mask_b) {
  const char* op = "logaddexp";
  const Tensor x = shown(op, a, mask_a, extreme(op, a.dtype(), false)),
               y = shown(op, b, mask_b, extreme(op, b.dtype(), false));
  return as(logaddexp(x, y), dtype, a.dtype());
}

// ---- the ops -------------------------------------------------------------------------------------------

constexpr uint32_t kAll = kMasked | kComplex;
const Arg kDim{"dim", none}, kKeep{"keepdim", false, kKeywordOnly}, kDtype{"dtype", none, kKeywordOnly},
    kMask{"mask", none, kKeywordOnly}, kUnbiased{"unbiased", none},
    kCorrection{"correction", none, kKeywordOnly};

using Reduce = Op<Tensor(const Tensor&, Dims, bool, OptDType, const OptTensor&)>;
#define WT_MASKED(NAME, PLACE, DOC) \
  const Reduce NAME##_op { #NAME, NAME##_impl, PLACE, {"input", kDim, kKeep, kDtype, kMask}, DOC }
WT_MASKED(sum, kAll, "sum of the elements that mask shows.");
WT_MASKED(prod, kAll, "prod of the elements that mask shows.");
WT_MASKED(mean, kAll, "mean of the elements that mask shows; nan where it shows none.");
WT_MASKED(amax, kMasked, "amax of the elements that mask shows.");
WT_MASKED(amin, kMasked, "amin of the elements that mask shows.");
WT_MASKED(logsumexp, kAll, "logsumexp of the elements that mask shows.");

const Op<Tensor(const Tensor&, std::optional<int64_t>, bool, OptDType, const OptTensor&)> argmax_op{
    "argmax",
    argmax_impl,
    kMasked,
    {"input", kDim, kKeep, kDtype, kMask},
    "argmax of the elements that mask shows, in the input's dtype."},
    argmin_op{"argmin",
              argmin_impl,
              kMasked,
              {"input", kDim, kKeep, kDtype, kMask},
              "argmin of the elements that mask shows, in the input's dtype."};
const Op<Tensor(const Tensor&, int64_t, bool, OptDType, const OptTensor&)> median_op{
    "median",
    median_impl,
    kMasked,
    {"input", Arg::integer("dim", -1), kKeep, kDtype, kMask},
    "median of the elements that mask shows; nan where it shows none."};
const Op<Tensor(const Tensor&, double, Dims, bool, OptDType, const OptTensor&)> norm_op{
    "norm",
    norm_impl,
    kAll,
    {"input", {"ord", 2.0}, kDim, kKeep, kDtype, kMask},
    "linalg.vector_norm of the elements that mask shows."};
const Op<Tensor(const Tensor&, Dims, std::optional<bool>, std::optional<double>, bool, OptDType,
                const OptTensor&)>
    var_op{"var",
           var_impl,
           kAll,
           {"input", kDim, kUnbiased, kCorrection, kKeep, kDtype, kMask},
           "var of the elements that mask shows."},
    std_op_{"std",
            std_impl,
            kAll,
            {"input", kDim, kUnbiased, kCorrection, kKeep, kDtype, kMask},
            "std of the elements that mask shows."};

using Along = Op<Tensor(const Tensor&, int64_t, OptDType, const OptTensor&)>;
#define WT_MASKED_ALONG(NAME, PLACE) \
  const Along NAME##_op{             \
      #NAME, NAME##_impl, PLACE, {"input", "dim", kDtype, kMask}, #NAME " of the elements that mask shows."}
WT_MASKED_ALONG(cumsum, kAll);
WT_MASKED_ALONG(cumprod, kAll);
WT_MASKED_ALONG(softmax, kMasked);
WT_MASKED_ALONG(log_softmax, kMasked);
WT_MASKED_ALONG(softmin, kMasked);
const Op<Tensor(const Tensor&, double, int64_t, double, OptDType, const OptTensor&)> normalize_op{
    "normalize",
    normalize_impl,
    kAll,
    {"input", "ord", "dim", {"eps", 1e-12, kKeywordOnly}, kDtype, kMask},
    "input, 0 where mask hides it, over the norm of what it shows along dim."};
const Op<Tensor(const Tensor&, const Tensor&, OptDType, const OptTensor&, const OptTensor&)> logaddexp_op{
    "logaddexp",
    logaddexp_impl,
    kAll,
    {"input", "other", kDtype, {"input_mask", none, kKeywordOnly}, {"other_mask", none, kKeywordOnly}},
    "logaddexp, where what a mask hides is the log of 0."};

}  // namespace
}  // namespace warptape::ops
