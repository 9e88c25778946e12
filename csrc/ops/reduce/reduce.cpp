// sum, mean, any, all, var, std, norm, logsumexp.
#include "ops/reduce/reduce.h"

#include <cmath>

#include "kernels/reduce/reduce.h"
#include "op/forms.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/safe.h"
#include "ops/index/gather.h"
#include "ops/index/masked.h"
#include "ops/reduce/reduce_dtype.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

using ReduceSlot = kernels::Slot<kernels::ReduceFn>;
ReduceSlot sum_slot{"sum"}, mean_slot{"mean"}, any_slot{"any"}, all_slot{"all"}, logsumexp_slot{"logsumexp"},
    nansum_slot{"nansum"};
kernels::Slot<kernels::VarFn> var_slot{"var"};
kernels::Slot<kernels::NormFn> norm_slot{"norm"};

// What backward needs to know of a reduction.
struct Data {
  Shape kept, sizes;
  double number = 0;  // count, correction or p
};

Tensor shaped(const Tensor& kept_result, const Reduced& r) {
  return alias(kept_result, r.sizes, contiguous_strides(r.sizes), 0);
}

Tensor run(ReduceSlot& slot, const Tensor& given, const Reduced& r, DType dtype) {
  const Tensor x = &slot == &any_slot || &slot == &all_slot ? given : converted(given, dtype);
  if (is_complex(dtype)) {  // a sum, or a mean
    Tensor sums = raw_reduce_to(raw_cast(x, dtype), r.kept);
    return shaped(&slot == &mean_slot ? sums / static_cast<double>(r.count) : sums, r);
  }
  Tensor out = empty(r.kept, {dtype, x.device()});
  if (!out.is_meta() && out.numel()) {
    Launch launch(x.device());
    slot(launch, out.view(), x.view());
  }
  return shaped(out, r);
}

Ref<Node> record_reduction(const NodeType& type, const Tensor& x, const Reduced& r, double number) {
  Ref<Node> n = record(type, x);
  n->emplace<Data>(r.kept, x.sizes(), number);
  return n;
}

void check_floating(const char* op, DType t) {
  WT_CHECK(is_differentiable(t), DtypeError, op,
           ": could not infer output dtype. Input dtype must be either a floating point or "
           "complex dtype. Got: ",
           t);
}

// ---- sum, mean -----------------------------------------------------------------------------------------

void sum_backward(Node& n, Gradients& g) {
  const Data& d = n.data<Data>();
  g.set(0, spread(g[0], d.kept, d.sizes));
}
void mean_backward(Node& n, Gradients& g) {
  const Data& d = n.data<Data>();
  g.set(0, spread(g[0] / Scalar(d.number), d.kept, d.sizes));
}
constexpr NodeType kSum{"SumBackward0", sum_backward}, kMean{"MeanBackward0", mean_backward};

Tensor sum_impl(const Tensor& x, OptDims dims, bool keepdim, OptDType dtype) {
  Reduced r = reduced_shape("sum", x, dims, keepdim);
  Tensor out = run(sum_slot, x, r, sum_dtype(x, dtype));
  if (needs_grad(x)) set_history(out, record_reduction(kSum, x, r, 0));
  return out;
}
Tensor sum_all_impl(const Tensor& x, OptDType dtype) { return sum(x, std::nullopt, false, dtype); }

Tensor mean_impl(const Tensor& x, OptDims dims, bool keepdim, OptDType dtype) {
  DType t = dtype.value_or(x.dtype());
  check_floating("mean", t);
  Reduced r = reduced_shape("mean", x, dims, keepdim);
  Tensor out = run(mean_slot, x, r, t);
  if (needs_grad(x)) set_history(out, record_reduction(kMean, x, r, static_cast<double>(r.count)));
  return out;
}
Tensor mean_all_impl(const Tensor& x, OptDType dtype) { return mean(x, std::nullopt, false, dtype); }

// A product, not a selection: the infinite gradient that nanmean of nothing but NaN has is NaN, as in
// PyTorch.
void nansum_backward(Node& n, Gradients& g) {
  const Data& d = n.data<Data>();
  g.set(0, spread(g[0], d.kept, d.sizes) * logical_not(isnan(n.saved(0))));
}
constexpr NodeType kNansum{"NansumBackward0", nansum_backward};

Tensor nansum_impl(const Tensor& x, OptDims dims, bool keepdim, OptDType dtype) {
  if (!is_floating(x.dtype())) return sum(x, dims, keepdim, dtype);
  WT_CHECK(!dtype || is_floating(*dtype), NotImplementedError, "nansum: not implemented for ",
           dtype.value_or(x.dtype()));
  Reduced r = reduced_shape("nansum", x, dims, keepdim);
  const DType t = sum_dtype(x, dtype);
  Tensor out = x.device().is_host() ? run(nansum_slot, x, r, t)
                                    : run(sum_slot, masked_fill(detach(x), isnan(x), 0.0), r, t);
  if (needs_grad(x)) {
    Ref<Node> n = record_reduction(kNansum, x, r, 0);
    n->save(x);
    set_history(out, n);
  }
  return out;
}
Tensor nanmean_impl(const Tensor& x, OptDims dims, bool keepdim, OptDType dtype) {
  WT_CHECK(is_differentiable(x.dtype()), DtypeError,
           "nanmean: expected input to have floating point or complex dtype but got ", x.dtype());
  Tensor count = sum(logical_not(isnan(x)), dims, keepdim, std::nullopt);
  return nansum_impl(x, dims, keepdim, dtype) / count;
}

// ---- any, all ------------------------------------------------------------------------------------------

// PyTorch keeps uint8, which was its bool once.
Tensor truth(const Tensor& x, Tensor out) {
  return x.dtype() == DType::UInt8 ? raw_cast(out, DType::UInt8) : out;
}
// Unlike other reductions, these reduce nothing over no dims.
bool keeps_all(OptDims dims) { return dims && dims->empty(); }
Tensor any_impl(const Tensor& x, OptDims dims, bool keepdim) {
  if (keeps_all(dims)) return truth(x, ne_ts(x, 0));
  if (is_complex(x.dtype())) return any_impl(ne_ts(x, 0), dims, keepdim);
  return truth(x, run(any_slot, x, reduced_shape("any", x, dims, keepdim), DType::Bool));
}
Tensor all_impl(const Tensor& x, OptDims dims, bool keepdim) {
  if (keeps_all(dims)) return truth(x, ne_ts(x, 0));
  if (is_complex(x.dtype())) return all_impl(ne_ts(x, 0), dims, keepdim);
  return truth(x, run(all_slot, x, reduced_shape("all", x, dims, keepdim), DType::Bool));
}
Tensor any_all_impl(const Tensor& x) { return any_impl(x, std::nullopt, false); }
Tensor all_all_impl(const Tensor& x) { return all_impl(x, std::nullopt, false); }
Tensor count_nonzero_impl(const Tensor& x, OptDims dims) {
  return sum(ne_ts(x, 0), dims, false, std::nullopt);
}

// ---- var, std ------------------------------------------------------------------------------------------

Tensor centered(const Tensor& x, const Data& d, double& divisor) {
  int64_t count = 1;
  Shape dims;
  for (size_t i = 0; i < d.sizes.size(); ++i)
    if (d.kept[i] != d.sizes[i] || d.sizes[i] == 1)
      dims.push_back(static_cast<int64_t>(i)), count *= d.sizes[i];
  divisor = std::max(0.0, static_cast<double>(count) - d.number);
  return x - mean(x, dims.empty() ? OptDims() : OptDims(dims), true, std::nullopt);
}
void var_backward(Node& n, Gradients& g) {
  const Data& d = n.data<Data>();
  double divisor;
  Tensor delta = centered(n.saved(0), d, divisor);
  g.set(0, spread(g[0], d.kept, d.sizes) * delta * Scalar(2 / divisor));
}
void std_backward(Node& n, Gradients& g) {
  const Data& d = n.data<Data>();
  double divisor;
  Tensor x = n.saved(0), root = n.saved(1), delta = centered(x, d, divisor);
  g.set(0, spread(quotient_or_zero(g[0], root), d.kept, d.sizes) * delta / Scalar(divisor));
}
constexpr NodeType kVar{"VarBackward0", var_backward}, kStd{"StdBackward0", std_backward};

Tensor var_with(const char* op, const Tensor& x, OptDims dims, std::optional<double> correction, bool keepdim,
                bool root) {
  WT_CHECK(is_differentiable(x.dtype()), DtypeError, op,
           ": std and var only support floating point and complex dtypes, got ", x.dtype());
  Reduced r = reduced_shape(op, x, dims, keepdim);
  double c = correction.value_or(1);
  Tensor out;
  if (is_complex(x.dtype())) {  // of both parts together
    const NoGrad off;
    out = var(real(x), dims, correction, keepdim) + var(imag(x), dims, correction, keepdim);
    if (root) out = sqrt(out);
  } else {
    out = empty(r.kept, options_of(x));
    if (!out.is_meta() && out.numel()) {
      Launch launch(x.device());
      var_slot(launch, out.view(), kernels::View{}, x.view(), c, root);
    }
    out = shaped(out, r);
  }
  if (needs_grad(x)) {
    Ref<Node> n = record_reduction(root ? kStd : kVar, x, r, c);
    n->save(x);
    set_history(out, n);
    if (root) n->save_output(out);
  }
  return out;
}
Tensor var_impl(const Tensor& x, OptDims dims, std::optional<double> correction, bool keepdim) {
  return var_with("var", x, dims, correction, keepdim, false);
}
Tensor std_impl(const Tensor& x, OptDims dims, std::optional<double> correction, bool keepdim) {
  return var_with("std", x, dims, correction, keepdim, true);
}
double correction_of(bool unbiased) { return unbiased ? 1 : 0; }
Tensor var_flag_impl(const Tensor& x, OptDims dims, bool unbiased, bool keepdim) {
  return var_impl(x, dims, correction_of(unbiased), keepdim);
}
Tensor std_flag_impl(const Tensor& x, OptDims dims, bool unbiased, bool keepdim) {
  return std_impl(x, dims, correction_of(unbiased), keepdim);
}
Tensor var_all_impl(const Tensor& x, bool unbiased) {
  return var_impl(x, std::nullopt, correction_of(unbiased), false);
}
Tensor std_all_impl(const Tensor& x, bool unbiased) {
  return std_impl(x, std::nullopt, correction_of(unbiased), false);
}
using Pair = std::tuple<Tensor, Tensor>;
Pair var_mean_impl(const Tensor& x, OptDims dims, std::optional<double> correction, bool keepdim) {
  return {var_impl(x, dims, correction, keepdim), mean(x, dims, keepdim, std::nullopt)};
}
Pair std_mean_impl(const Tensor& x, OptDims dims, std::optional<double> correction, bool keepdim) {
  return {std_impl(x, dims, correction, keepdim), mean(x, dims, keepdim, std::nullopt)};
}

Pair var_mean_all_impl(const Tensor& x, bool unbiased) {
  return var_mean_impl(x, std::nullopt, correction_of(unbiased), false);
}
Pair std_mean_all_impl(const Tensor& x, bool unbiased) {
  return std_mean_impl(x, std::nullopt, correction_of(unbiased), false);
}
Pair var_mean_flag_impl(const Tensor& x, OptDims dims, bool unbiased, bool keepdim) {
  return var_mean_impl(x, dims, correction_of(unbiased), keepdim);
}
Pair std_mean_flag_impl(const Tensor& x, OptDims dims, bool unbiased, bool keepdim) {
  return std_mean_impl(x, dims, correction_of(unbiased), keepdim);
}

// ---- norm ----------------------------------------------------------------------------------------------

void norm_backward(Node& n, Gradients& g) {
  const Data& d = n.data<Data>();
  double p = d.number;
  Tensor x = n.saved(0);
  Tensor out = spread(n.saved(1), d.kept, d.sizes), wide = spread(g[0], d.kept, d.sizes);
  if (p == 0) return;  // a count: no gradient, as opposed to one of zeros
  if (p == 1) return g.set(0, wide * sign(x));
  if (p == 2) return g.set(0, quotient_or_zero(wide * x, out));
  if (std::isinf(p)) {
    Tensor hit = cast(eq(abs(x), out), x.dtype());
    Shape dims;
    for (size_t i = 0; i < d.sizes.size(); ++i)
      if (d.kept[i] == 1) dims.push_back(static_cast<int64_t>(i));
    Tensor share = hit / sum(hit, dims.empty() ? OptDims() : OptDims(dims), true, std::nullopt);
    return g.set(0, masked_fill(wide * share * sign(x), eq_ts(hit, 0), 0.0));  // nan is no hit
  }
  const Tensor none_there = eq_ts(out, 0), length = masked_fill(out, none_there, 1.0);
  g.set(0, masked_fill(wide * signed_power(x, p - 1) / pow_ts(length, p - 1), none_there, 0.0));
}
constexpr NodeType kNorm{"LinalgVectorNormBackward0", norm_backward};

Tensor vector_norm_impl(const Tensor& given, double p, OptDims dims, bool keepdim, OptDType dtype) {
  Tensor x = dtype ? cast(given, *dtype) : given;
  if (is_complex(x.dtype())) x = abs(x);
  WT_CHECK(is_floating(x.dtype()), DtypeError,
           "norm: Expected a floating point or complex tensor as input. Got ", x.dtype());
  Reduced r = reduced_shape("norm", x, dims, keepdim);
  WT_CHECK(r.count > 0 || (p >= 0 && !std::isinf(p)), ValueError, "linalg.vector_norm cannot compute the ", p,
           " norm on an empty tensor, because the operation does not have an identity");
  if (r.count == 1 && p != 0)
    return reshape(abs(x), r.sizes);  // whatever the order, without a power's rounding
  Tensor out = r.count ? empty(r.kept, options_of(x)) : zeros(r.kept, options_of(x));
  if (!out.is_meta() && out.numel() && r.count) {
    Launch launch(x.device());
    norm_slot(launch, out.view(), x.view(), p);
  }
  out = shaped(out, r);
  if (needs_grad(x)) {
    Ref<Node> n = record_reduction(kNorm, x, r, p);
    n->save(x);
    set_history(out, n);
    n->save_output(out);
  }
  return out;
}
Tensor norm_impl(const Tensor& x, std::optional<Scalar> p, OptDims dims, bool keepdim, OptDType dtype) {
  return vector_norm_impl(x, p ? p->to_double() : 2.0, dims, keepdim, dtype);
}
Tensor norm_name_impl(const Tensor& x, std::string_view p, OptDims dims, bool keepdim, OptDType dtype) {
  if (p == "fro") return vector_norm_impl(x, 2.0, dims, keepdim, dtype);
  WT_CHECK(p == "nuc", Error, "norm: expected p to be a number, 'fro' or 'nuc', got '", p, "'");
  constexpr int64_t last_two[] = {-2, -1};
  return matrix_norm_name(x, p, dims.value_or(last_two), keepdim, dtype);
}

// ---- logsumexp -----------------------------------------------------------------------------------------

void logsumexp_backward(Node& n, Gradients& g) {
  const Data& d = n.data<Data>();
  Tensor x = n.saved(0), out = spread(n.saved(1), d.kept, d.sizes);
  // Where the result is infinite, so is x, and the difference is NaN: there is no share to tell.
  g.set(0, spread(g[0], d.kept, d.sizes) * exp(x - out));
}
constexpr NodeType kLogsumexp{"LogsumexpBackward0", logsumexp_backward};

Tensor complex_logsumexp(const Tensor& x, IntList dims, bool keepdim) {
  const Reduced r = reduced_shape("logsumexp", x, dims, keepdim);
  if (!x.numel()) return log(sum(x, dims, keepdim, std::nullopt));
  const Tensor largest = amax(real(detach(x)), dims, true), m = where_st(isinf(largest), Scalar(0), largest);
  return reshape(log(sum(exp(x - m), dims, true, std::nullopt)) + m, r.sizes);
}

Tensor logsumexp_impl(const Tensor& given, IntList dims, bool keepdim) {
  if (is_complex(given.dtype())) return complex_logsumexp(given, dims, keepdim);
  Tensor x = is_floating(given.dtype()) ? given : cast(given, rank_context().default_dtype);
  Reduced r = reduced_shape("logsumexp", x, dims, keepdim);
  Tensor out = run(logsumexp_slot, x, r, x.dtype());
  if (needs_grad(x)) {
    Ref<Node> n = record_reduction(kLogsumexp, x, r, 0);
    n->save(x);
    set_history(out, n);
    n->save_output(out);
  }
  return out;
}

constexpr OpFacts kBoth = kFunction | kMethod;
const Arg kDims{"dim", none, kDimIndex}, kKeep{"keepdim", false}, kDtype{"dtype", none, kKeywordOnly},
    kCorrection{"correction", none, kKeywordOnly};

}  // namespace

Reduced reduced_shape(const char* op, const Tensor& x, const OptDims& dims, bool keepdim) {
  Shape wrapped = dims ? wrap_dims(*dims, x.ndim(), op) : Shape();
  Reduced r{x.sizes(), {}, 1};
  for (int64_t d = 0; d < x.ndim(); ++d) {
    if (wrapped.empty() || std::find(wrapped.begin(), wrapped.end(), d) != wrapped.end()) {
      r.count *= x.sizes()[d];
      r.kept[d] = 1;
      if (keepdim) r.sizes.push_back(1);
    } else {
      r.sizes.push_back(x.sizes()[d]);
    }
  }
  return r;
}

Tensor spread(const Tensor& reduced, const Shape& kept, const Shape& sizes) {
  return expand(reduced.sizes() == kept ? reduced : reshape(reduced, kept), sizes);
}

const Op<Tensor(const Tensor&, OptDType)> sum_all_op{"sum",
                                                     sum_all_impl,
                                                     kBoth | kComplex | kFloat32Cuda | kAlongDims | kLinear,
                                                     {"input", kDtype},
                                                     "The sum of all elements."};
decltype(sum) sum{"sum",
                  sum_impl,
                  kBoth | kOut | kOutDtype | kComplex | kFloat32Cuda | kAlongDims | kLinear,
                  {"input", {"dim", none, kDimIndex}, kKeep, kDtype},
                  "The sum over dims; integers and bools give int64."};
const Op<Tensor(const Tensor&, OptDType)> mean_all_op{"mean",
                                                      mean_all_impl,
                                                      kBoth | kComplex | kAlongDims | kLinear,
                                                      {"input", kDtype},
                                                      "The mean of all elements."};
decltype(mean) mean{"mean",
                    mean_impl,
                    kBoth | kOut | kOutDtype | kComplex | kAlongDims | kLinear,
                    {"input", kDims, kKeep, kDtype},
                    "The mean over dims, of a floating tensor."};
const Op<Tensor(const Tensor&, OptDims, bool, OptDType)> nansum_op{
    "nansum",
    nansum_impl,
    kBoth | kOut | kOutDtype | kAlongDims | kLinear,
    {"input", kDims, kKeep, kDtype},
    "sum that takes NaN as 0."},
    nanmean_op{"nanmean",
               nanmean_impl,
               kBoth | kOut | kOutDtype | kAlongDims,
               {"input", kDims, kKeep, kDtype},
               "mean of what is not NaN."};
const Op<Tensor(const Tensor&)> any_all_op{"any",
                                           any_all_impl,
                                           kBoth | kOut | kOutExact | kComplex | kAlongDims,
                                           {"input"},
                                           "Whether any element is not 0."},
    all_all_op{"all",
               all_all_impl,
               kBoth | kOut | kOutExact | kComplex | kAlongDims,
               {"input"},
               "Whether no element is 0."};
decltype(any) any = overload_with(any_all_op, any_impl, {"input", kDims, kKeep}, {},
                                  "Whether any element over dims is not 0.");
decltype(all) all =
    overload_with(all_all_op, all_impl, {"input", kDims, kKeep}, {}, "Whether no element over dims is 0.");
const Op<Tensor(const Tensor&, OptDims)> count_nonzero_op{"count_nonzero",
                                                          count_nonzero_impl,
                                                          kBoth | kComplex | kAlongDims,
                                                          {"input", kDims},
                                                          "How many elements are not 0."};
const Op<Tensor(const Tensor&, bool)> var_all_op{"var",
                                                 var_all_impl,
                                                 kBoth | kComplex | kAlongDims,
                                                 {"input", "unbiased"},
                                                 "The variance of all elements."},
    std_all_op{"std",
               std_all_impl,
               kBoth | kComplex | kAlongDims,
               {"input", "unbiased"},
               "The standard deviation of all elements."};
const Op<Tensor(const Tensor&, OptDims, bool, bool)>
    var_flag_op = overload_with(var_all_op, var_flag_impl, {"input", {"dim", kDimIndex}, "unbiased", kKeep},
                                {}, "The variance over dims, with n - 1 or n."),
    std_flag_op = overload_with(std_all_op, std_flag_impl, {"input", {"dim", kDimIndex}, "unbiased", kKeep},
                                {}, "The standard deviation over dims, with n - 1 or n.");
decltype(var) var{"var",
                  var_impl,
                  kBoth | kOut | kComplex | kAlongDims,
                  {"input", kDims, kCorrection, {"keepdim", false, kKeywordOnly}},
                  "The variance over dims, divided by n - correction."};
decltype(std_op) std_op{"std",
                        std_impl,
                        kBoth | kOut | kComplex | kAlongDims,
                        {"input", kDims, kCorrection, {"keepdim", false, kKeywordOnly}},
                        "The standard deviation over dims."};
const Op<Pair(const Tensor&, OptDims, std::optional<double>, bool)> var_mean_op{
    "var_mean",
    var_mean_impl,
    kFunction | kComplex | kAlongDims,
    {"input", kDims, kCorrection, {"keepdim", false, kKeywordOnly}},
    "Variance and mean over dims."},
    std_mean_op{"std_mean",
                std_mean_impl,
                kFunction | kComplex | kAlongDims,
                {"input", kDims, kCorrection, {"keepdim", false, kKeywordOnly}},
                "Standard deviation and mean over dims."};
const Op<Pair(const Tensor&, OptDims, bool, bool)> var_mean_flag_op = overload_with(
                                                       var_mean_op, var_mean_flag_impl,
                                                       {"input", kDims, {"unbiased", true}, kKeep}, {},
                                                       "Variance and mean over dims, with n - 1 or n."),
                                                   std_mean_flag_op = overload_with(
                                                       std_mean_op, std_mean_flag_impl,
                                                       {"input", kDims, {"unbiased", true}, kKeep}, {},
                                                       "Standard deviation and mean over dims.");
const Op<Pair(const Tensor&, bool)> var_mean_all_op =
                                        overload_with(var_mean_op, var_mean_all_impl, {"input", "unbiased"},
                                                      {}, "Variance and mean of all elements."),
                                    std_mean_all_op =
                                        overload_with(std_mean_op, std_mean_all_impl, {"input", "unbiased"},
                                                      {}, "Standard deviation and mean of all elements.");
const Op<Tensor(const Tensor&, std::optional<Scalar>, OptDims, bool, OptDType)> norm_op{
    "norm",
    norm_impl,
    kBoth | kOut | kOutExact | kComplex | kFloat32Cuda,
    {"input", {"p", none}, kDims, kKeep, {"dtype", none}},
    "(sum |x|^p)^(1/p) over dims."};
const Op<Tensor(const Tensor&, std::string_view, OptDims, bool, OptDType)> norm_name_op{
    "norm",
    norm_name_impl,
    kBoth | kOut | kOutExact | kComplex | kFloat32Cuda,
    {"input", "p", kDims, kKeep, {"dtype", none}},
    "norm by name: 'fro', or of matrices 'nuc', the sum of the singular values."};
decltype(vector_norm) vector_norm{"vector_norm",
                                  vector_norm_impl,
                                  kLinalg | kOut | kOutExact | kComplex | kFloat32Cuda,
                                  {"x", {"ord", 2.0}, kDims, kKeep, kDtype},
                                  "(sum |x|^ord)^(1/ord) over dims."};
decltype(logsumexp) logsumexp{"logsumexp",
                              logsumexp_impl,
                              kBoth | kSpecial | kOut | kComplex | kFloat32Cuda | kAlongDims,
                              {"input", {"dim", kDimIndex}, kKeep},
                              "log(sum(exp(input))) over dims, without overflow."};

}  // namespace warptape::ops
