// Transcendental functions and roots.
#include <numbers>

#include "ops/elementwise/unary.h"
#include "ops/view/copy.h"

namespace warptape::ops {

namespace {
constexpr double kLn2 = std::numbers::ln2, kLn10 = std::numbers::ln10;
constexpr double kTwoOverSqrtPi = 2 * std::numbers::inv_sqrtpi;
constexpr double kPi = std::numbers::pi;

ElementwiseSlot sqrt_backward_slot{"sqrt_backward"}, rsqrt_backward_slot{"rsqrt_backward"},
    reciprocal_backward_slot{"reciprocal_backward"}, tanh_backward_slot{"tanh_backward"},
    sigmoid_backward_slot{"sigmoid_backward"}, sin_backward_slot{"sin_backward"},
    cos_backward_slot{"cos_backward"}, erf_backward_slot{"erf_backward"}, polygamma_slot{"polygamma"};
}  // namespace
#define WT_FUSED(NAME, ...) fused(#NAME, NAME##_slot, g, s, [&] { return __VA_ARGS__; })

WT_UNARY(exp, "ExpBackward0", Float, Output, kComplex | kFloat32Cuda, "e to the power of input.", g* s);
WT_UNARY(exp2, "Exp2Backward0", Float, Output, kComplex | kSpecial, "2 to the power of input.", g * s * kLn2);
WT_UNARY(expm1, "Expm1Backward0", Float, Output, kComplex | kFloat32Cuda | kSpecial,
         "exp(input) - 1, exact near 0.", g*(s + 1));
WT_UNARY(log, "LogBackward0", Float, Input, kComplex | kFloat32Cuda, "Natural logarithm.", g / s);
WT_UNARY(log2, "Log2Backward0", Float, Input, kComplex | kFloat32Cuda, "Logarithm to base 2.",
         g / (s * kLn2));
WT_UNARY(log10, "Log10Backward0", Float, Input, kComplex | kFloat32Cuda, "Logarithm to base 10.",
         g / (s * kLn10));
WT_UNARY(log1p, "Log1PBackward0", Float, Input, kComplex | kFloat32Cuda | kSpecial,
         "log(1 + input), exact near 0.", g / (s + 1));
WT_UNARY(sin, "SinBackward0", Float, Input, kComplex, "Sine.", WT_FUSED(sin_backward, g* cos(s)));
WT_UNARY(cos, "CosBackward0", Float, Input, kComplex, "Cosine.", WT_FUSED(cos_backward, -(g* sin(s))));
WT_UNARY(tan, "TanBackward0", Float, Output, kComplex | kFloat32Cuda, "Tangent.", g*(s* s + 1));
WT_UNARY(asin, "AsinBackward0", Float, Input, kComplex | kFloat32Cuda, "Inverse sine.", g* rsqrt(1 - s * s));
WT_UNARY(acos, "AcosBackward0", Float, Input, kComplex | kFloat32Cuda, "Inverse cosine.",
         -(g* rsqrt(1 - s * s)));
WT_UNARY(atan, "AtanBackward0", Float, Input, kComplex, "Inverse tangent.", g / (s * s + 1));
WT_UNARY(sinh, "SinhBackward0", Float, Input, kComplex | kFloat32Cuda, "Hyperbolic sine.", g* cosh(s));
WT_UNARY(cosh, "CoshBackward0", Float, Input, kComplex | kFloat32Cuda, "Hyperbolic cosine.", g* sinh(s));
WT_UNARY(tanh, "TanhBackward0", Float, Output, kComplex | kNN, "Hyperbolic tangent.",
         WT_FUSED(tanh_backward, g * (1 - s * s)));
WT_UNARY(asinh, "AsinhBackward0", Float, Input, kComplex, "Inverse hyperbolic sine.", g* rsqrt(s* s + 1));
WT_UNARY(acosh, "AcoshBackward0", Float, Input, kComplex, "Inverse hyperbolic cosine.",
         is_complex(s.dtype()) ? g * rsqrt(s - 1) * rsqrt(s + 1) : g * rsqrt(s * s - 1));
WT_UNARY(atanh, "AtanhBackward0", Float, Input, kComplex, "Inverse hyperbolic tangent.", g / (1 - s * s));
WT_UNARY(erf, "ErfBackward0", Float, Input, kSpecial, "Error function.",
         WT_FUSED(erf_backward, g* exp(-(s* s)) * kTwoOverSqrtPi));
WT_UNARY(erfc, "ErfcBackward0", Float, Input, kSpecial, "1 - erf(input), exact for large input.",
         g* exp(-(s* s)) * -kTwoOverSqrtPi);
WT_UNARY(erfinv, "ErfinvBackward0", Float, Output, kFloat32Cuda | kSpecial, "Inverse of erf.",
         g* exp(s* s) * (1 / kTwoOverSqrtPi));
WT_UNARY(lgamma, "LgammaBackward0", Float, Input, kNoFacts,
         "Logarithm of the absolute value of the gamma function.", g* digamma(s));
WT_UNARY(digamma, "DigammaBackward0", Float, Input, kSpecial, "Derivative of lgamma.", g* polygamma(1, s));
namespace {
// 0 where the formula has no value; the operand is replaced there, for the derivatives would be 0 * inf.
Tensor sinc_slope(const Tensor& s) {
  const Tensor flat = eq_ts(s * s * kPi, 0), x = where_st(flat, Scalar(1), s);
  return where_st(flat, Scalar(0), (cos(x * kPi) * (x * kPi) - sin(x * kPi)) / (x * x * kPi));
}
}  // namespace
WT_UNARY(sinc, "SincBackward0", Float, Input, kComplex | kSpecial, "sin(pi x) / (pi x), 1 at 0.",
         g* sinc_slope(s));
WT_UNARY(sqrt, "SqrtBackward0", Float, Output, kComplex, "Square root.",
         WT_FUSED(sqrt_backward, g / (s * 2)));
WT_UNARY(rsqrt, "RsqrtBackward0", Float, Output, kComplex | kFloat32Cuda, "1 / sqrt(input).",
         WT_FUSED(rsqrt_backward, g*(s * s * s) * -0.5));
WT_UNARY(reciprocal, "ReciprocalBackward0", Float, Output, kComplex | kFloat32Cuda, "1 / input.",
         WT_FUSED(reciprocal_backward, -(g*(s* s))));
WT_UNARY(sigmoid, "SigmoidBackward0", Float, Output, kComplex | kNN, "1 / (1 + exp(-input)).",
         WT_FUSED(sigmoid_backward, g * ((1 - s) * s)));
WT_UNARY(rad2deg, "Rad2DegBackward0", Float, Nothing, kNoFacts, "Radians to degrees.", g * (180 / kPi));
WT_UNARY(deg2rad, "Deg2RadBackward0", Float, Nothing, kNoFacts, "Degrees to radians.", g*(kPi / 180));

// ---- logit(x, eps): x is first limited to [eps, 1 - eps], outside of which the gradient is 0. abs makes a
// slope of +inf at -0, as at 0. ----
WT_UNARY_BACKWARD(logit, "LogitBackward0", Float, Input, nullptr,
                  where_st(logical_or(lt_ts(s, 0), gt_ts(s, 1)), Scalar(__builtin_nan("")),
                           g / (abs(s) * (1 - s))))
namespace {
Tensor logit_impl(const Tensor& x, std::optional<double> eps) {
  if (!eps) return unary_impl<logit_def>(x);
  const Scalar low(*eps), high(1 - *eps);
  return unary_impl<logit_def>(where_st(lt_ts(x, low), low, where_st(gt_ts(x, high), high, x)));
}
Tensor logit_inplace(const Tensor& x, std::optional<double> eps) {
  if (!eps) return unary_inplace<logit_def>(x);
  return copy_(x, logit_impl(is_floating(x.dtype()) ? clone_with_history(x) : x, eps), false);
}

struct Order {
  int64_t n;
};
void polygamma_backward(Node& n, Gradients& g) {
  g.set(1, g[0] * polygamma(n.data<Order>().n + 1, n.saved(0)));
}
constexpr NodeType kPolygamma{"PolygammaBackward0", polygamma_backward};
Tensor polygamma_impl(int64_t n, const Tensor& x) {
  WT_CHECK(n >= 0, Error, "polygamma(n, x) does not support negative n, got ", n);
  // The factor n! is infinite from 171 on, and its sign that of (-1)^n: no need to multiply further.
  const int64_t order = std::min<int64_t>(n, n % 2 ? 171 : 172);
  Tensor out = pointwise("polygamma", polygamma_slot, ResultRule::Float, {x, Scalar(order)});
  if (needs_grad(x)) {
    Ref<Node> node = record(kPolygamma, Scalar(n), x);
    node->emplace<Order>(n);
    node->save(x);
    set_history(out, node);
  }
  return out;
}
}  // namespace
decltype(logit) logit{
    "logit", logit_impl, kBothOut | kSpecial, {"input", {"eps", none}}, "log(input / (1 - input))."};
decltype(logit_) logit_ = in_place_of(logit, logit_inplace, kMethod, "logit in place.");
decltype(polygamma) polygamma{"polygamma",
                              polygamma_impl,
                              kFunction | kSpecial | kOut | kPointwise,
                              {"n", "input"},
                              "Derivative n of digamma."};
namespace {
Tensor polygamma_of(const Tensor& x, int64_t n) { return polygamma(n, x); }
const auto polygamma_method = overload_with(polygamma, polygamma_of, {"input", "n"}, kMethod);
const auto polygamma_ = in_place<polygamma_method>("polygamma_");
}  // namespace

namespace {
const Alias expit{"expit", "sigmoid", kSpecial}, gammaln{"gammaln", "lgamma", kSpecial},
    psi{"psi", "digamma", kSpecial};
const Alias arcsin{"arcsin", "asin"};
const Alias arccos{"arccos", "acos"};
const Alias arctan{"arctan", "atan"};
const Alias arcsinh{"arcsinh", "asinh"};
const Alias arccosh{"arccosh", "acosh"};
const Alias arctanh{"arctanh", "atanh"};
}  // namespace

}  // namespace warptape::ops
