// Signs, squares, rounding, predicates of one tensor.
#include <cmath>
#include <limits>

#include "ops/elementwise/unary.h"
#include "ops/view/copy.h"

namespace warptape::ops {
namespace {
ElementwiseSlot abs_backward_slot{"abs_backward"}, nan_to_num_slot{"nan_to_num"};

void check_not_bool(const char* op, const Tensor& x) {
  WT_CHECK(x.dtype() != DType::Bool, DtypeError, op,
           ": not defined for bool tensors; convert with .to(torch.uint8)");
}
void check_integral(const char* op, const Tensor& x) {
  WT_CHECK(!is_floating(x.dtype()), DtypeError, op, ": expected an integer or bool tensor, got ", x.dtype(),
           "; convert it to an integer dtype");
}
}  // namespace
#define WT_FUSED(NAME, ...) fused(#NAME, NAME##_slot, g, s, [&] { return __VA_ARGS__; })
#define WT_CHECKED(NAME, NODE, RULE, SAVES, CHECK, FACTS, DOC, ...)                                   \
  WT_UNARY_BACKWARD(NAME, NODE, RULE, SAVES, CHECK, __VA_ARGS__)                                      \
  decltype(NAME) NAME{#NAME, unary_impl<NAME##_def>, kBothOut | kOutExact | (FACTS), {"input"}, DOC}; \
  decltype(NAME##_) NAME##_ =                                                                         \
      in_place_of(NAME, unary_inplace<NAME##_def>, kMethod | kFunction, #NAME " in place.")

WT_UNARY_BACKWARD(abs, "AbsBackward0", Same, Input, nullptr, WT_FUSED(abs_backward, g* sign(s)))
namespace {
Tensor abs_impl(const Tensor& x) { return is_complex(x.dtype()) ? complex_abs(x) : unary_impl<abs_def>(x); }
Tensor abs_inplace(const Tensor& x) {
  WT_CHECK(!is_complex(x.dtype()), DtypeError, "abs_: In-place abs is not supported for complex tensors.");
  return unary_inplace<abs_def>(x);
}
}  // namespace
decltype(abs) abs{"abs", abs_impl, kBothOut | kComplex, {"input"}, "Absolute value."};
decltype(abs_) abs_ = in_place_of(abs, abs_inplace, kMethod | kFunction, "abs in place.");
WT_UNARY(sign, "SignBackward0", Same, Nothing, kOutExact, "-1, 0 or 1.", no_gradient(g));
WT_UNARY_BACKWARD(square, "SquareBackward0", Same, Input, nullptr, g * s * 2)
namespace {
// A power with an integer exponent: of bools it is int64.
Tensor square_impl(const Tensor& x) {
  return unary_impl<square_def>(x.dtype() == DType::Bool ? raw_cast(x, DType::Int64) : x);
}
Tensor square_inplace(const Tensor& x) {
  WT_CHECK(x.dtype() != DType::Bool, DtypeError,
           "square_: result type int64 can't be cast to the desired output type bool");
  return unary_inplace<square_def>(x);
}
}  // namespace
decltype(square) square{"square", square_impl, kBothOut | kComplex, {"input"}, "input * input."};
decltype(square_) square_ = in_place_of(square, square_inplace, kMethod | kFunction, "square in place.");
WT_CHECKED(floor, "FloorBackward0", Same, Nothing, check_not_bool, kIdempotent, "Largest integer not above.",
           no_gradient(g));
WT_CHECKED(ceil, "CeilBackward0", Same, Nothing, check_not_bool, kIdempotent, "Smallest integer not below.",
           no_gradient(g));
WT_CHECKED(trunc, "TruncBackward0", Same, Nothing, check_not_bool, kIdempotent, "Fraction cut off.",
           no_gradient(g));
WT_CHECKED(frac, "FracBackward0", Same, Nothing, check_floating, kNoFacts, "input - trunc(input).", g);

// ---- sgn is sign for real numbers; positive is the tensor itself ----
namespace {
Tensor sgn_impl(const Tensor& x) { return is_complex(x.dtype()) ? complex_sgn(x) : unary_impl<sign_def>(x); }
Tensor sgn_inplace(const Tensor& x) {
  return is_complex(x.dtype()) ? copy_(x, complex_sgn(clone_with_history(x)), false)
                               : unary_inplace<sign_def>(x);
}
Tensor positive_impl(const Tensor& x) {
  WT_CHECK(x.dtype() != DType::Bool, DtypeError,
           "positive: The `+` operator, on a bool tensor is not supported.");
  return x;
}
}  // namespace
decltype(sgn) sgn{"sgn",
                  sgn_impl,
                  kBothOut | kOutExact | kComplex,
                  {"input"},
                  "-1, 0 or 1; of complex numbers input / |input|."};
decltype(sgn_) sgn_ = in_place_of(sgn, sgn_inplace, kMethod, "sgn in place.");
decltype(positive) positive{"positive",
                            positive_impl,
                            kFunction | kMethod | kComplex | kPointwise | kLinear | Aliasing::Conversion,
                            {"input"},
                            "input itself."};

// ---- round(x, decimals): halves to even ----
WT_UNARY_BACKWARD(round, "RoundBackward0", Same, Nothing, check_not_bool, no_gradient(g))
namespace {
Tensor round_impl(const Tensor& x, int64_t decimals) {
  if (decimals == 0) return unary_impl<round_def>(x);
  WT_CHECK(is_floating(x.dtype()), NotImplementedError, "round: decimals are not implemented for ",
           x.dtype());
  const double factor = std::pow(10.0, std::abs(double(decimals)));
  Tensor out;
  {
    NoGrad no_grad;
    Tensor wide = raw_cast(x, compute_dtype(x.dtype()));  // narrow floats do not hold the scaled number
    wide = decimals > 0 ? round(wide * factor, 0) / factor : round(wide / factor, 0) * factor;
    out = raw_cast(wide, x.dtype());
  }
  if (needs_grad(x)) {
    Ref<Node> n = record(round_def.type, x);
    n->emplace<bool>(false);
    set_history(out, n);
  }
  return out;
}
Tensor round_inplace(const Tensor& x, int64_t decimals) {
  return decimals == 0 ? unary_inplace<round_def>(x) : copy_(x, round_impl(x, decimals), false);
}
const Arg kDecimals = Arg::integer("decimals", 0, kKeywordOnly);
}  // namespace
decltype(round) round{"round",
                      round_impl,
                      kBothOut | kOutExact | kSpecial,
                      {"input", kDecimals},
                      "To the nearest integer, halves to even."};
decltype(round_) round_ = in_place_of(round, round_inplace, kMethod | kFunction, "round in place.");

// ---- predicates ----
namespace {
ElementwiseSlot isnan_slot{"isnan"}, isinf_slot{"isinf"}, isfinite_slot{"isfinite"},
    isposinf_slot{"isposinf"}, isneginf_slot{"isneginf"}, signbit_slot{"signbit"};
bool is_whole(DType t) { return is_integral(t) || t == DType::Bool; }
}  // namespace
// `OF_INTEGERS` is what holds of every integer, or nothing if it is to be found out.
#define WT_PREDICATE(NAME, RULE, PLACES, JOIN, OF_INTEGERS, DOC)          \
  namespace {                                                             \
  Tensor NAME##_impl(const Tensor& x) {                                   \
    if (is_complex(x.dtype())) return JOIN(NAME(real(x)), NAME(imag(x))); \
    if (constexpr std::optional<bool> known = OF_INTEGERS;                \
        known && is_whole(x.dtype()) && x.is_contiguous())                \
      return full(x.sizes(), *known, {DType::Bool, x.device()});          \
    return pointwise(#NAME, NAME##_slot, ResultRule::RULE, {x});          \
  }                                                                       \
  }                                                                       \
  decltype(NAME) NAME { #NAME, NAME##_impl, PLACES, {"input"}, DOC }
WT_PREDICATE(isnan, Equal, kFunction | kMethod | kComplex | kPointwise, logical_or, false,
             "Where input is not a number.");
WT_PREDICATE(isinf, Bool, kFunction | kMethod | kComplex | kPointwise, logical_or, false,
             "Where input is infinite.");
WT_PREDICATE(isfinite, Bool, kFunction | kMethod | kComplex | kPointwise, logical_and, true,
             "Where input is finite.");
WT_PREDICATE(isposinf, Bool, kBothOut | kOutExact, logical_or, std::nullopt, "Where input is plus infinity.");
WT_PREDICATE(isneginf, Bool, kBothOut | kOutExact, logical_or, std::nullopt,
             "Where input is minus infinity.");
WT_PREDICATE(signbit, Bool, kBothOut | kOutExact, logical_or, std::nullopt, "Where the sign bit is set.");

WT_UNARY_BACKWARD(logical_not, "LogicalNotBackward0", Bool, Nothing, nullptr, no_gradient(g))
decltype(logical_not) logical_not{
    "logical_not", unary_impl<logical_not_def>, kBothOut | kComplex, {"input"}, "Where input is zero."};
decltype(logical_not_) logical_not_ =
    in_place_of(logical_not, unary_inplace<logical_not_def>, kMethod, "logical_not in place.");
// Of bools, the bits are the truth values.
WT_UNARY_BACKWARD(bitwise_not, "BitwiseNotBackward0", Bits, Nothing, check_integral, no_gradient(g))
namespace {
Tensor bitwise_not_impl(const Tensor& x) {
  return x.dtype() == DType::Bool ? unary_impl<logical_not_def>(x) : unary_impl<bitwise_not_def>(x);
}
Tensor bitwise_not_inplace(const Tensor& x) {
  return x.dtype() == DType::Bool ? unary_inplace<logical_not_def>(x) : unary_inplace<bitwise_not_def>(x);
}
}  // namespace
decltype(bitwise_not) bitwise_not{
    "bitwise_not", bitwise_not_impl, kBothOut | kOutExact, {"input"}, "~input."};
decltype(bitwise_not_) bitwise_not_ =
    in_place_of(bitwise_not, bitwise_not_inplace, kMethod, "bitwise_not in place.");

// ---- nan_to_num ----
namespace {
double largest(DType t) {
  switch (t) {
    case DType::Float16:
      return 65504;
    case DType::BFloat16:
      return 0x1.fep127;
    case DType::Float32:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}
void nan_to_num_backward(Node& n, Gradients& g) {
  Tensor x = n.saved(0);
  g.set(0, g[0] * isfinite(x));
}
constexpr NodeType kNanToNum{"NanToNumBackward0", nan_to_num_backward};
using Replacement = std::optional<double>;
Tensor nan_to_num_impl(const Tensor& x, Replacement nan, Replacement posinf, Replacement neginf) {
  if (!is_floating(x.dtype())) return raw_clone(x);
  const double top = largest(x.dtype());
  Tensor out =
      pointwise("nan_to_num", nan_to_num_slot, ResultRule::Same,
                {x, Scalar(nan.value_or(0)), Scalar(posinf.value_or(top)), Scalar(neginf.value_or(-top))});
  if (needs_grad(x)) {
    Ref<Node> n = record(kNanToNum, x);
    n->save(x);
    set_history(out, n);
  }
  return out;
}
Tensor nan_to_num_inplace(const Tensor& x, Replacement nan, Replacement posinf, Replacement neginf) {
  if (!is_floating(x.dtype())) return x;
  const double top = largest(x.dtype());
  return inplace("nan_to_num_", nan_to_num_slot, ResultRule::Same, x,
                 {x, Scalar(nan.value_or(0)), Scalar(posinf.value_or(top)), Scalar(neginf.value_or(-top))},
                 [&] {
                   Ref<Node> n = record(kNanToNum, x);
                   n->save(raw_clone(x));
                   return n;
                 });
}
}  // namespace
decltype(nan_to_num) nan_to_num{"nan_to_num",
                                nan_to_num_impl,
                                kBothOut,
                                {"input", {"nan", none}, {"posinf", none}, {"neginf", none}},
                                "NaN and infinities replaced: by 0 and the dtype's bounds where not given."};
decltype(nan_to_num_) nan_to_num_ =
    in_place_of(nan_to_num, nan_to_num_inplace, kMethod | kFunction, "nan_to_num in place.");

namespace {
const Alias absolute{"absolute", "abs"}, fix{"fix", "trunc"};
}  // namespace
}  // namespace warptape::ops
