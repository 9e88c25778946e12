// Powers, divisions with a remainder, maxima and other functions of two tensors.
#include <numbers>

#include "ops/elementwise/binary.h"
#include "ops/view/copy.h"

namespace warptape::ops {
namespace {

ElementwiseSlot maximum_backward_slot{"maximum_backward"}, minimum_backward_slot{"minimum_backward"},
    pow_base_backward_slot{"pow_base_backward"};

void check_floats(const char* op, DType promoted) {
  WT_CHECK(is_floating(promoted), DtypeError, op, ": not implemented for ", promoted,
           "; convert to a floating dtype");
}

// 1 where a wins, 1/2 where both are equal.
Tensor share(const Tensor& wins, const Tensor& a, const Tensor& b) { return wins + eq(a, b) * 0.5; }
[[noreturn]] Tensor no_derivative(const char* op) {
  throw NotImplementedError(message("derivative for ", op, " is not implemented"));
}
Tensor zero_where(const Tensor& mask, const Tensor& t) { return where_st(mask, Scalar(0), t); }
// For what counts as 0 where the formula has no value: the derivatives would be 0 * inf.
Tensor one_where(const Tensor& mask, const Tensor& t) { return where_st(mask, Scalar(1), t); }
// 1 / (a^2 + b^2), and 0 at the origin.
Tensor inverse_squares(const Tensor& a, const Tensor& b) {
  Tensor squares = a * a + b * b;
  const Tensor none_there = eq_ts(squares, 0);
  return zero_where(none_there, reciprocal(one_where(none_there, squares)));
}
}  // namespace

// ---- division ----
WT_BINARY_DEF(fmod, "FmodBackward0", Same, true, check_no_bool, g, -(g* trunc(a / b)))
WT_BINARY_TT(fmod, kNoFacts, "Remainder with the sign of input.");
WT_BINARY_TT_(fmod);
WT_BINARY_TS(fmod);
WT_BINARY_TS_(fmod);
WT_BINARY_DEF(remainder, "RemainderBackward0", Same, true, check_no_bool, g, -(g* floor(a / b)))
WT_BINARY_TT(remainder, kNoFacts, "Remainder with the sign of other, as Python's %.");
WT_BINARY_TT_(remainder);
WT_BINARY_TS(remainder);
WT_BINARY_TS_(remainder);
WT_BINARY_ST(remainder);
WT_BINARY_DEF(floor_divide, "FloorDivideBackward0", Same, true, check_no_bool, no_derivative("floor_divide"),
              no_derivative("floor_divide"))
WT_BINARY_TT(floor_divide, kNoFacts, "Quotient rounded down.");
WT_BINARY_TT_(floor_divide);
WT_BINARY_TS(floor_divide);
WT_BINARY_TS_(floor_divide);
namespace {
const BinaryStOp floor_divide_st =
    overload_of(floor_divide, binary_impl<floor_divide_def, Scalar, Tensor>, kFunction);
}

// ---- powers ----
namespace {
Tensor pow_base_gradient(const Tensor& g, const Tensor& a, const Tensor& b) {
  if (!needs_grad(g, a, b) && !is_complex(g.dtype()))
    return pointwise("pow_base_backward", pow_base_backward_slot, ResultRule::Same, {g, a, b});
  const Tensor constant = eq_ts(b, 0);
  return zero_where(constant, g * (b * pow(one_where(constant, a), b - 1)));
}
// 0 ^ b does not change with b > 0, though log(0) is infinite.
Tensor pow_exponent_gradient(const Tensor& g, const Tensor& a, const Tensor& b) {
  Tensor grows = is_complex(b.dtype()) ? logical_and(eq_ts(imag(b), 0), ge_ts(real(b), 0)) : ge_ts(b, 0);
  const Tensor still = logical_and(eq_ts(a, 0), grows);
  const Tensor base = one_where(still, is_complex(g.dtype()) ? tape_cast(a, g.dtype()) : a);
  return zero_where(still, g * (pow(base, b) * log(base)));
}
void check_exponent(const Tensor& a, const Scalar& e) {
  WT_CHECK(is_differentiable(a.dtype()) || e.kind() >= DTypeCategory::Floating || e.to_int() >= 0, Error,
           "pow: Integers to negative integer powers are not allowed. Convert the base to a floating dtype");
  const PointwiseInput both[] = {a, e};
  const DType t = promoted_dtype(both);
  if (is_integral(t) || opmath_dtype(t) != t) check_fits(e, t);
}
}  // namespace
WT_BINARY_DEF(pow, "PowBackward1", Same, false, check_no_bool, pow_base_gradient(g, a, b),
              pow_exponent_gradient(g, a, b))
namespace {
void pow_scalar_backward(Node& n, Gradients& g) {
  const Scalar& e = n.data<Scalar>();
  const Tensor x = n.saved(0);
  if (e.equal(0)) return g.set(0, no_gradient(g[0]));
  if (e.equal(1)) return g.set(0, g[0]);
  if (e.equal(2)) return g.set(0, g[0] * conjugate(x) * 2);
  const Scalar less = e.is_complex()    ? Scalar(e.to_complex() - Complex<double>(1))
                      : e.is_floating() ? Scalar(e.to_double() - 1)
                                        : Scalar(e.to_int() - 1);
  g.set(0, g[0] * conjugate(pow_ts(x, less) * e));
}
constexpr NodeType kPowScalar{"PowBackward0", pow_scalar_backward};
Ref<Node> record_pow(const Tensor& a, const Tensor& saved, const Scalar& e) {
  Ref<Node> n = record(kPowScalar, a);
  n->emplace<Scalar>(e);
  n->save(saved);
  return n;
}
// Roots are not powers at -inf, at -0 and off the positive axis.
ElementwiseSlot sqrt_slot{"sqrt"}, rsqrt_slot{"rsqrt"};
ElementwiseSlot* root_slot(const Scalar& e) {
  return e.equal(0.5) ? &sqrt_slot : e.equal(-0.5) ? &rsqrt_slot : nullptr;
}
Tensor pow_scalar(const Tensor& a, const Scalar& e) {
  if (a.dtype() == DType::Bool && e.is_bool())
    return e.to_bool() ? raw_clone(a) : full(a.sizes(), true, options_of(a));
  check_exponent(a, e);
  check_binary(pow_def, "pow", a, e);
  ElementwiseSlot* root = e.is_complex() ? nullptr : root_slot(e);
  Tensor out = root ? pointwise("pow", *root, ResultRule::Float, {a})
                    : pointwise("pow", pow_def.slot, ResultRule::Same, {a, e});
  if (needs_grad(a)) set_history(out, record_pow(a, a, e));
  return out;
}
Tensor pow_scalar_inplace(const Tensor& a, const Scalar& e) {
  check_exponent(a, e);
  auto node = [&] { return record_pow(a, clone_with_history(a), e); };
  if (ElementwiseSlot* root = e.is_complex() ? nullptr : root_slot(e))
    return inplace("pow_", *root, ResultRule::Float, a, {a}, node);
  return inplace("pow_", pow_def.slot, ResultRule::Same, a, {a, e}, node);
}
const Arg kExponent = "exponent";
}  // namespace
decltype(pow) pow{"pow",
                  binary_impl<pow_def, Tensor, Tensor>,
                  kBothOut | kComplex | kFloat32Cuda,
                  {"input", kExponent},
                  "input ** exponent."};
decltype(pow_ts) pow_ts = overload_of(pow, pow_scalar);
decltype(pow_st) pow_st = overload_with(pow, binary_impl<pow_def, Scalar, Tensor>, {{"self"}, kExponent});
decltype(pow_) pow_ = in_place_of(pow, binary_inplace<pow_def, Tensor>, kMethod, "pow in place.");
decltype(pow_ts_) pow_ts_ = in_place_of(pow, pow_scalar_inplace, kMethod, "pow in place.");
namespace {
// In float64 or complex128 whatever the dtypes.
BinaryDef float_power_def{
    "float_power", "float_power_", ResultRule::Same, {"PowBackward1", pow_backward}, ElementwiseSlot{"pow"}};
DType widest(DType t) { return is_complex(t) ? DType::Complex128 : DType::Float64; }
Tensor in_widest(const Tensor& t) { return tape_cast(t, widest(t.dtype())); }
Scalar in_widest(const Scalar& s) { return s.is_complex() ? s : Scalar(s.to_double()); }
template <class A, class B>
Tensor float_power(const A& a, const B& b) {
  return binary_impl<float_power_def, A, B>(in_widest(a), in_widest(b));
}
template <class B>
Tensor float_power_into(const Tensor& a, const B& b) {
  const PointwiseInput inputs[] = {a, b};
  const DType dtype = widest(promoted_dtype(inputs));
  WT_CHECK(a.dtype() == dtype, DtypeError, "float_power_: the base given to float_power_ has dtype ",
           a.dtype(), " but the operation's result requires dtype ", dtype);
  return binary_inplace<float_power_def, B>(a, in_widest(b));
}
const char kFloatPower[] = "input ** exponent in float64 or complex128.";
const BinaryOp float_power_tt{
    "float_power", float_power<Tensor, Tensor>, kBothOut | kComplex, {"input", kExponent}, kFloatPower};
const BinaryTsOp float_power_ts = overload_of(float_power_tt, float_power<Tensor, Scalar>);
const BinaryStOp float_power_st = overload_of(float_power_tt, float_power<Scalar, Tensor>, kFunction | kOut);
const BinaryOp float_power_tt_ = in_place_of(float_power_tt, float_power_into<Tensor>);
const BinaryTsOp float_power_ts_ = in_place_of(float_power_tt, float_power_into<Scalar>);
}  // namespace

// ---- maxima ----
WT_BINARY_DEF(maximum, "MaximumBackward0", Same, false, nullptr,
              needs_grad(g, a, b)
                  ? g * share(gt(a, b), a, b)
                  : pointwise("maximum_backward", maximum_backward_slot, ResultRule::Same, {g, a, b}),
              needs_grad(g, a, b)
                  ? g * share(gt(b, a), a, b)
                  : pointwise("maximum_backward", maximum_backward_slot, ResultRule::Same, {g, b, a}))
WT_BINARY_TT(maximum, kNoFacts, "The larger of each pair; NaN wins.");
WT_BINARY_DEF(minimum, "MinimumBackward0", Same, false, nullptr,
              needs_grad(g, a, b)
                  ? g * share(lt(a, b), a, b)
                  : pointwise("minimum_backward", minimum_backward_slot, ResultRule::Same, {g, a, b}),
              needs_grad(g, a, b)
                  ? g * share(lt(b, a), a, b)
                  : pointwise("minimum_backward", minimum_backward_slot, ResultRule::Same, {g, b, a}))
WT_BINARY_TT(minimum, kNoFacts, "The smaller of each pair; NaN wins.");
WT_BINARY_DEF(fmax, "FmaxBackward0", Same, false, nullptr, g* logical_or(ge(a, b), isnan(b)),
              g* logical_not(logical_or(ge(a, b), isnan(b))))
WT_BINARY_TT(fmax, kNoFacts, "The larger of each pair; a NaN loses.");
WT_BINARY_DEF(fmin, "FminBackward0", Same, false, nullptr, g* logical_or(le(a, b), isnan(b)),
              g* logical_not(logical_or(le(a, b), isnan(b))))
WT_BINARY_TT(fmin, kNoFacts, "The smaller of each pair; a NaN loses.");

// ---- others ----
WT_BINARY_DEF(atan2, "Atan2Backward0", Float, false, nullptr, g * b * inverse_squares(a, b),
              g * -a * inverse_squares(a, b))
WT_BINARY_TT(atan2, kWidestCuda, "Angle of the point (other, input).");
WT_BINARY_TT_(atan2);
namespace {
const Alias arctan2{"arctan2", "atan2"};
}
WT_BINARY_DEF(hypot, "HypotBackward0", Same, false, check_floats, g*(a / hypot(a, b)), g*(b / hypot(a, b)))
WT_BINARY_TT(hypot, kNoFacts, "sqrt(input^2 + other^2) without overflow.");
WT_BINARY_TT_(hypot);
WT_BINARY_DEF(logaddexp, "LogaddexpBackward0", Same, false, check_floats, g* sigmoid(a - b),
              g* sigmoid(b - a))
namespace {
// From the operand with the larger real part. Where both are the same infinity their difference is 0.
Tensor logaddexp_impl(const Tensor& a, const Tensor& b) {
  const PointwiseInput inputs[] = {a, b};
  const DType dtype = promoted_dtype(inputs);
  if (!is_complex(dtype)) return binary_impl<logaddexp_def, Tensor, Tensor>(a, b);
  const Tensor x = tape_cast(a, dtype), y = tape_cast(b, dtype), rx = real(detach(x)), ry = real(detach(y));
  const Tensor first = ge(rx, ry), high = where(first, x, y), low = where(first, y, x);
  return high + log1p(exp(where_st(logical_and(eq(rx, ry), isinf(rx)), Scalar(0), low - high)));
}
}  // namespace
decltype(logaddexp) logaddexp{"logaddexp",
                              logaddexp_impl,
                              kBothOut | kComplex,
                              {"input", "other"},
                              "log(exp(input) + exp(other)) without overflow."};
WT_BINARY_DEF(logaddexp2, "Logaddexp2Backward0", Same, false, check_floats,
              g* sigmoid((a - b) * std::numbers::ln2), g* sigmoid((b - a) * std::numbers::ln2))
WT_BINARY_TT(logaddexp2, kNoFacts, "log2(2^input + 2^other) without overflow.");
WT_BINARY_DEF(copysign, "CopysignBackward0", Float, false, nullptr,
              g* zero_where(eq_ts(a, 0), copysign(a, b) / one_where(eq_ts(a, 0), a)), no_gradient(g))
WT_BINARY_TT(copysign, kNoFacts, "The magnitude of input with the sign of other.");
WT_BINARY_TT_(copysign);
WT_BINARY_TS(copysign);
WT_BINARY_TS_(copysign);
WT_BINARY_DEF(xlogy, "XlogyBackward0", Float, false, nullptr,
              zero_where(logical_and(eq_ts(a, 0), le_ts(b, 0)),
                         g* log(one_where(logical_and(eq_ts(a, 0), le_ts(b, 0)), b))),
              g*(a / b))
WT_BINARY_TT(xlogy, kSpecial, "input * log(other), 0 where input is 0.");
WT_BINARY_TT_(xlogy);
WT_BINARY_TS(xlogy);
WT_BINARY_TS_(xlogy);
WT_BINARY_ST(xlogy);
WT_BINARY_DEF(heaviside, "HeavisideBackward0", Same, false, nullptr, no_derivative("heaviside"),
              no_derivative("heaviside"))
decltype(heaviside) heaviside{"heaviside",
                              binary_impl<heaviside_def, Tensor, Tensor>,
                              kBothOut,
                              {"input", "values"},
                              "0 below 0, 1 above it, values at it."};
namespace {
const auto heaviside_ = in_place<heaviside>("heaviside_");
}  // namespace

}  // namespace warptape::ops
