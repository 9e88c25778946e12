// Divisors of integers, and the parts of floats.
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/elementwise/elementwise.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

constexpr OpFacts kBoth = kFunction | kMethod | kOut | kPointwise;

// ---- divisors ------------------------------------------------------------------------------------------

ElementwiseSlot gcd_slot{"gcd"}, lcm_slot{"lcm"};

int64_t lowest_of(DType integer) {
  if (integer == DType::UInt8) return -1;  // none of its values
  return std::numeric_limits<int64_t>::min() >> (64 - 8 * itemsize(integer));
}
DType integer_dtype(const char* op, const Tensor& a, const Tensor& b) {
  const PointwiseInput inputs[] = {a, b};
  const DType t = promoted_dtype(inputs);
  WT_CHECK(is_integral(t), NotImplementedError, op, ": not implemented for ", t, "; expected integers");
  return t;
}
Tensor gcd_impl(const Tensor& a, const Tensor& b) {
  const DType t = integer_dtype("gcd", a, b);
  return pointwise("gcd", gcd_slot, ResultRule::Same, {a, b, Scalar(lowest_of(t))});
}
Tensor lcm_impl(const Tensor& a, const Tensor& b) {
  const DType t = integer_dtype("lcm", a, b);
  const int unused = t == DType::Int32 ? 32 : 0;  // narrower products are those of ints, cut when stored
  return pointwise("lcm", lcm_slot, ResultRule::Same, {a, b, Scalar(lowest_of(t)), Scalar(unused)});
}

// ---- the parts of floats -------------------------------------------------------------------------------

ElementwiseSlot ldexp_slot{"ldexp"}, mantissa_slot{"frexp_mantissa"}, exponent_slot{"frexp_exponent"},
    nextafter_slot{"nextafter"};

void frexp_backward(Node& n, Gradients& g) {
  if (g[0].defined()) g.set(0, g[0] / exp2(cast(n.saved(0), g[0].dtype())));
}
constexpr NodeType kFrexp{"FrexpBackward0", frexp_backward};

std::tuple<Tensor, Tensor> frexp_impl(const Tensor& x) {
  WT_CHECK(is_floating(x.dtype()), DtypeError,
           "frexp: torch.frexp() only supports floating-point dtypes, got ", x.dtype());
  Tensor mantissa = pointwise("frexp", mantissa_slot, ResultRule::Same, {x});
  Tensor exponent = empty_like_layout(x, DType::Int32);
  const PointwiseInput in[] = {x};
  run_elementwise(exponent_slot, compute_dtype(x.dtype()), exponent, in);
  if (needs_grad(x)) {
    Ref<Node> n = record(kFrexp, x);
    n->save(exponent);
    set_history(mantissa, n);
  }
  return {mantissa, exponent};
}

void ldexp_backward(Node& n, Gradients& g) {
  const Tensor exponent = n.saved(0);
  g.set(0, ldexp(g[0], exponent));
}
constexpr NodeType kLdexp{"LdexpBackward0", ldexp_backward};

// By the powers of integers exactly, in double: the power alone may be beyond what the dtype holds.
Tensor ldexp_impl(const Tensor& x, const Tensor& other) {
  if (is_complex(x.dtype()) || is_differentiable(other.dtype())) return x * pow_st(2.0, other);
  const PointwiseInput in[] = {x, other};
  DType t = promoted_dtype(in);
  if (!is_floating(t)) t = rank_context().default_dtype;
  Tensor out = empty(common_shape("ldexp", in), {t, common_device("ldexp", in)});
  run_elementwise(ldexp_slot, DType::Float64, out, in);
  if (needs_grad(x)) {
    Ref<Node> n = record(kLdexp, x);
    n->save(other);
    set_history(out, n);
  }
  return out;
}

// As the number that it starts from, unless it stays where both are equal.
void nextafter_backward(Node& n, Gradients& g) {
  const Tensor x = n.saved(0), other = n.saved(1);
  if (g.wants(0)) g.set(0, g[0] * ne(x, other));
  if (g.wants(1)) g.set(1, zeros(other.sizes(), options_of(g[0])));
}
constexpr NodeType kNextafter{"NextafterBackward0", nextafter_backward};

Tensor as_integers(const Tensor& t) {
  constexpr DType same_width[] = {DType::Int16, DType::Int32, DType::Int64};
  return alias(t, t.sizes(), t.strides(), t.offset(), same_width[itemsize(t.dtype()) / 4]);
}
int64_t infinity_bits(DType t) {
  return t == DType::Float16    ? 0x7c00
         : t == DType::BFloat16 ? 0x7f80
         : t == DType::Float32  ? 0x7f800000
                                : 0x7ff0000000000000;
}
Tensor nextafter_impl(const Tensor& x, const Tensor& other) {
  const PointwiseInput given[] = {x, other};
  const DType t = promoted_dtype(given);
  WT_CHECK(is_floating(t), NotImplementedError, "nextafter: not implemented for ", t);
  const Device device = common_device("nextafter", given);
  Tensor out = empty(common_shape("nextafter", given), {t, device});
  const Tensor bits = as_integers(out), a = as_integers(raw_cast(x, t)), b = as_integers(raw_cast(other, t));
  const PointwiseInput in[] = {a, b, Scalar(infinity_bits(t)), Scalar(lowest_of(bits.dtype()))};
  run_elementwise(nextafter_slot, DType::Int64, bits, in);
  if (needs_grad(x, other)) {
    Ref<Node> n = record(kNextafter, x, other);
    n->save(x);
    n->save(other);
    set_history(out, n);
  }
  return out;
}

// ---- mvlgamma ------------------------------------------------------------------------------------------

Tensor mvlgamma_impl(const Tensor& x, int64_t p) {
  WT_CHECK(p >= 1, Error, "mvlgamma: p has to be greater than or equal to 1, got ", p);
  WT_CHECK(x.dtype() != DType::Bool, DtypeError, "mvlgamma: The input tensor may not be a boolean tensor.");
  const DType t = is_floating(x.dtype()) ? x.dtype() : rank_context().default_dtype;
  const double order = static_cast<double>(p) * static_cast<double>(p - 1) / 4;
  Tensor halves = cumsum(full(Shape{p}, 0.5, {t, x.device()}), 0, std::nullopt) - 0.5;
  Tensor terms = lgamma(unsqueeze(cast(x, t), -1) - halves);
  const Shape last{-1};
  return sum(terms, OptDims(last), false, std::nullopt) + order * std::log(std::numbers::pi);
}

const Op<Tensor(const Tensor&, const Tensor&)> gcd{
    "gcd", gcd_impl, kBoth, {"input", "other"}, "The greatest common divisor of integers, at least 0."},
    lcm{"lcm", lcm_impl, kBoth, {"input", "other"}, "The least common multiple of integers, at least 0."},
    nextafter{"nextafter",
              nextafter_impl,
              kBoth,
              {"input", "other"},
              "The next number that the dtype has after input, towards other."};
const auto gcd_ = in_place<gcd>("gcd_"), lcm_ = in_place<lcm>("lcm_"),
           nextafter_ = in_place<nextafter>("nextafter_");
const Op<std::tuple<Tensor, Tensor>(const Tensor&)> frexp{
    "frexp",
    frexp_impl,
    kBoth,
    {"input"},
    "input = mantissa * 2^exponent with 0.5 <= |mantissa| < 1; the exponent is int32.",
    {"mantissa", "exponent"}};
const Op<Tensor(const Tensor&, int64_t)> mvlgamma{
    "mvlgamma", mvlgamma_impl, kBoth, {"input", "p"}, "The logarithm of the gamma function of dimension p."};
const Alias multigammaln{"multigammaln", "mvlgamma", kSpecial};
const auto mvlgamma_ = in_place<mvlgamma>("mvlgamma_");

}  // namespace

decltype(ldexp) ldexp{
    "ldexp", ldexp_impl, kBoth | kComplex, {"input", "other"}, "input * 2^other, exact for integers."};
namespace {
const auto ldexp_ = in_place<ldexp>("ldexp_");
}

}  // namespace warptape::ops
