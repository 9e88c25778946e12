// Special functions of one and two numbers, under torch.special's names.
#include <numbers>

#include "ops/elementwise/binary.h"

namespace warptape::ops {
namespace {

extern UnaryDef special_i1_def, special_i1e_def;
// 1 at 0, for a quotient that is not taken there.
Tensor one_at_zero(const Tensor& x) { return where_st(eq_ts(x, 0), Scalar(1), x); }
// I1(x) / x is 1/2 at 0.
Tensor half_at_zero(const Tensor& x, const Tensor& slope) {
  return where_st(eq_ts(x, 0), Scalar(0.5), slope);
}

}  // namespace

// NAME is "special_" and the name.
#define WT_SPECIAL(NAME, NODE, SAVES, DOC, ...)                     \
  WT_UNARY_BACKWARD(NAME, NODE, Float, SAVES, nullptr, __VA_ARGS__) \
  const UnaryOp NAME { &#NAME[8], unary_impl<NAME##_def>, kSpecial | kOut | kPointwise, {"input"}, DOC }

WT_UNARY_BACKWARD(special_i0, "I0Backward0", Float, Input, nullptr, g* unary_impl<special_i1_def>(s))
namespace {
const char kI0Doc[] = "The modified Bessel function of order 0.";
const UnaryOp i0{"i0", unary_impl<special_i0_def>, kBothOut | kSpecial, {"input"}, kI0Doc};
const UnaryOp i0_ = in_place_of(i0, unary_inplace<special_i0_def>, kFunction | kMethod);
}  // namespace
WT_SPECIAL(special_i0e, "SpecialI0EBackward0", Input, "exp(-|input|) i0(input).",
           g*(unary_impl<special_i1e_def>(s) - sign(s) * unary_impl<special_i0e_def>(s)));
WT_SPECIAL(special_i1, "SpecialI1Backward0", Input, "The modified Bessel function of order 1.",
           g* half_at_zero(s,
                           unary_impl<special_i0_def>(s) - unary_impl<special_i1_def>(s) / one_at_zero(s)));
WT_SPECIAL(special_i1e, "SpecialI1EBackward0", Input, "exp(-|input|) i1(input).",
           g* half_at_zero(s, unary_impl<special_i0e_def>(s) -
                                  unary_impl<special_i1e_def>(s) * (sign(s) + reciprocal(one_at_zero(s)))));
WT_SPECIAL(special_ndtri, "SpecialNdtriBackward0", Output,
           "The number below which that share of the standard normal distribution lies.",
           g* exp(s * s * 0.5) * (std::numbers::sqrt2 / std::numbers::inv_sqrtpi));

WT_BINARY_DEF(special_xlog1py, "SpecialXlog1PyBackward0", Float, false, nullptr,
              where_st(logical_and(eq_ts(a, 0), le_ts(b, -1)), Scalar(0),
                       g* log1p(where_st(logical_and(eq_ts(a, 0), le_ts(b, -1)), Scalar(1), b))),
              g*(a / (b + 1)))
namespace {
const char kXlog1pyDoc[] = "input log(1 + other), 0 where input is 0.";
const BinaryOp xlog1py_tt{"xlog1py",
                          binary_impl<special_xlog1py_def, Tensor, Tensor>,
                          kSpecial | kOut | kPointwise,
                          {"input", "other"},
                          kXlog1pyDoc};
const BinaryTsOp xlog1py_ts = overload_of(xlog1py_tt, binary_impl<special_xlog1py_def, Tensor, Scalar>);
const BinaryStOp xlog1py_st = overload_of(xlog1py_tt, binary_impl<special_xlog1py_def, Scalar, Tensor>);
}  // namespace

// ---- the incomplete gamma functions ----
namespace {
// d P(a, x) / dx
Tensor gamma_density(const Tensor& a, const Tensor& x) { return exp((a - 1) * log(x) - x - lgamma(a)); }
[[noreturn]] Tensor no_derivative(const char* op) {
  throw NotImplementedError(message("the derivative for '", op, ": input' is not implemented"));
}
}  // namespace
WT_BINARY_DEF(igamma, "IgammaBackward0", Float, false, nullptr, no_derivative("igamma"),
              g* gamma_density(a, b))
WT_BINARY_DEF(igammac, "IgammacBackward0", Float, false, nullptr, no_derivative("igammac"),
              -g* gamma_density(a, b))
namespace {
const char kIgammaDoc[] = "The regularised lower incomplete gamma function P(input, other).";
const char kIgammacDoc[] = "The regularised upper incomplete gamma function Q(input, other).";
const BinaryOp igamma{
    "igamma", binary_impl<igamma_def, Tensor, Tensor>, kBothOut, {"input", "other"}, kIgammaDoc};
const BinaryOp igammac{
    "igammac", binary_impl<igammac_def, Tensor, Tensor>, kBothOut, {"input", "other"}, kIgammacDoc};
const Alias gammainc{"gammainc", "igamma", kSpecial}, gammaincc{"gammaincc", "igammac", kSpecial};
const BinaryOp igamma_ = in_place_of(igamma, binary_inplace<igamma_def, Tensor>);
const BinaryOp igammac_ = in_place_of(igammac, binary_inplace<igammac_def, Tensor>);
}  // namespace

}  // namespace warptape::ops
