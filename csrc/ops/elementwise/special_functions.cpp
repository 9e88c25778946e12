// Special functions that are computed number by number, and those composed of others, under torch.special's
// names.
#include "kernels/elementwise/special.h"
#include "op/forms.h"

#include <cmath>
#include <numbers>

#include "ops/elementwise/elementwise.h"
#include "ops/factory/factory.h"
#include "ops/nn/softmax.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

using kernels::SpecialFunction;
using kernels::SpecialPairFunction;
kernels::Slot<kernels::SpecialUnaryFn> unary_slot{"special_unary"};
kernels::Slot<kernels::SpecialPairFn> pair_slot{"special_pair"};

// ---- of one tensor -------------------------------------------------------------------------------------

struct SpecialDef {
  const char* name;
  SpecialFunction function;
  bool narrow;  // takes float16 and bfloat16
  const char* node = nullptr;
  Tensor (*slope)(const Tensor& x) = nullptr;  // of differentiable ops; null: no gradient flows
};

template <const SpecialDef& D>
Tensor apply(const Tensor& given) {
  const DType dtype = is_floating(given.dtype()) ? given.dtype() : rank_context().default_dtype;
  const bool narrow = dtype == DType::Float16 || dtype == DType::BFloat16;
  WT_CHECK(!narrow || D.narrow, NotImplementedError, D.name, ": not implemented for ", dtype);
  const DType wide = narrow ? DType::Float32 : dtype;
  Tensor from = raw_contiguous(raw_cast(given, wide)), out = empty(given.sizes(), {wide, given.device()});
  if (out.numel() && !out.is_meta())
    unary_slot(Launch(out.device()), D.function, wide, out.numel(), out.data(), from.data());
  out = raw_cast(out, dtype);
  if constexpr (D.slope != nullptr) {
    if (needs_grad(given)) {
      static constexpr NodeType kNode{D.node,
                                      [](Node& n, Gradients& g) { g.set(0, g[0] * D.slope(n.saved(0))); }};
      Ref<Node> n = record(kNode, given);
      n->save(given);
      set_history(out, n);
    }
  }
  return out;
}

#define WT_SPECIAL(NAME, FUNCTION, DOC)                                     \
  constexpr SpecialDef NAME##_def{#NAME, SpecialFunction::FUNCTION, false}; \
  const UnaryOp NAME { #NAME, apply<NAME##_def>, kSpecial | kOut | kPointwise, {"input"}, DOC }
WT_SPECIAL(airy_ai, AiryAi, "The Airy function Ai.");
WT_SPECIAL(bessel_j0, BesselJ0, "The Bessel function of the first kind of order 0.");
WT_SPECIAL(bessel_j1, BesselJ1, "The Bessel function of the first kind of order 1.");
WT_SPECIAL(bessel_y0, BesselY0, "The Bessel function of the second kind of order 0.");
WT_SPECIAL(bessel_y1, BesselY1, "The Bessel function of the second kind of order 1.");
WT_SPECIAL(modified_bessel_i0, ModifiedBesselI0,
           "The modified Bessel function of the first kind of order 0.");
WT_SPECIAL(modified_bessel_i1, ModifiedBesselI1,
           "The modified Bessel function of the first kind of order 1.");
WT_SPECIAL(modified_bessel_k0, ModifiedBesselK0,
           "The modified Bessel function of the second kind of order 0.");
WT_SPECIAL(modified_bessel_k1, ModifiedBesselK1,
           "The modified Bessel function of the second kind of order 1.");
WT_SPECIAL(scaled_modified_bessel_k0, ScaledModifiedBesselK0, "exp(input) modified_bessel_k0(input).");
WT_SPECIAL(scaled_modified_bessel_k1, ScaledModifiedBesselK1, "exp(input) modified_bessel_k1(input).");
WT_SPECIAL(spherical_bessel_j0, SphericalBesselJ0, "sin(input) / input, 1 at 0.");

extern const SpecialDef erfcx_def;
const double kDensity = std::numbers::inv_sqrtpi / std::numbers::sqrt2;  // the normal distribution's at 0
Tensor entr_slope(const Tensor& x) { return -(log(x) + 1); }
Tensor ndtr_slope(const Tensor& x) { return exp(x * x * -0.5) * kDensity; }
Tensor log_ndtr_slope(const Tensor& x) {
  return reciprocal(apply<erfcx_def>(x * -std::sqrt(0.5))) * (2 * kDensity);
}
Tensor erfcx_slope(const Tensor& x) { return x * apply<erfcx_def>(x) * 2 - 2 * std::numbers::inv_sqrtpi; }
constexpr SpecialDef entr_def{"entr", SpecialFunction::Entr, true, "SpecialEntrBackward0", entr_slope};
constexpr SpecialDef ndtr_def{"ndtr", SpecialFunction::Ndtr, true, "SpecialNdtrBackward0", ndtr_slope};
constexpr SpecialDef log_ndtr_def{"log_ndtr", SpecialFunction::LogNdtr, false, "SpecialLogNdtrBackward0",
                                  log_ndtr_slope};
constexpr SpecialDef erfcx_def{"erfcx", SpecialFunction::Erfcx, false, "SpecialErfcxBackward0", erfcx_slope};
const UnaryOp entr{"entr",
                   apply<entr_def>,
                   kSpecial | kOut | kPointwise,
                   {"input"},
                   "-input log(input); 0 at 0, -inf below."},
    ndtr{"ndtr",
         apply<ndtr_def>,
         kSpecial | kOut | kPointwise,
         {"input"},
         "The share of the standard normal distribution below input."},
    log_ndtr{"log_ndtr",
             apply<log_ndtr_def>,
             kSpecial | kOut | kPointwise,
             {"input"},
             "log(ndtr(input)), without underflow."},
    erfcx{"erfcx", apply<erfcx_def>, kSpecial | kOut | kPointwise, {"input"}, "exp(input^2) erfc(input)."};

template <bool kLog>
Tensor special_softmax_impl(const Tensor& x, int64_t dim, std::optional<DType> dtype) {
  return (kLog ? log_softmax : softmax)(x, dim, dtype);
}
const Op<Tensor(const Tensor&, int64_t, std::optional<DType>)> special_softmax{
    "softmax",
    special_softmax_impl<false>,
    kSpecial | kAlongDims,
    {"input", {"dim", kDimIndex}, {"dtype", none, kKeywordOnly}},
    "exp(input) / sum(exp(input)) over dim."},
    special_log_softmax{"log_softmax",
                        special_softmax_impl<true>,
                        kSpecial | kAlongDims,
                        {"input", {"dim", kDimIndex}, {"dtype", none, kKeywordOnly}},
                        "log(softmax(input, dim)), computed without overflow."};

// ---- of two operands -----------------------------------------------------------------------------------

struct PairDef {
  const char* name;
  SpecialPairFunction function;
  bool shifted = false;  // of 2 x - 1
};

Tensor as_tensor(const Tensor& t, DType) { return t; }
Tensor as_tensor(const Scalar& s, DType dtype) { return full(Shape{}, s, {dtype, {}}); }

void zeta_backward(Node& n, Gradients& g);
constexpr NodeType kZeta{"SpecialZetaBackward0", zeta_backward};

template <const PairDef& D, class A, class B>
Tensor apply_pair(const A& a, const B& b) {
  const PointwiseInput inputs[] = {a, b};
  DType dtype = promoted_dtype(inputs);
  if (!is_floating(dtype)) dtype = rank_context().default_dtype;
  WT_CHECK(dtype == DType::Float32 || dtype == DType::Float64, NotImplementedError, D.name,
           ": not implemented for ", dtype);
  const Tensor ta = as_tensor(a, dtype), tb = as_tensor(b, dtype);
  const Shape sizes = broadcast_shapes(ta.sizes(), tb.sizes(), D.name);
  const Device device = common_device(D.name, inputs);
  Tensor out = empty(sizes, {dtype, device});
  if (out.numel() && !out.is_meta()) {
    auto dense = [&](const Tensor& t) {
      return raw_contiguous(expand_view(raw_cast(detach(t), dtype), sizes, D.name));
    };
    Tensor x = dense(ta), y = dense(tb);
    if (D.shifted) {
      NoGrad no_grad;
      x = x * 2 - 1;
    }
    pair_slot(Launch(device), D.function, dtype, out.numel(), out.data(), x.data(), y.data());
  }
  if (D.function == SpecialPairFunction::Zeta && needs_grad(tb)) {
    Ref<Node> n = record(kZeta, ta, tb);
    n->save(ta);
    n->save(tb);
    set_history(out, n);
  }
  return out;
}

constexpr OpFacts kPair = kSpecial | kOut | kPointwise;
#define WT_PAIR(NAME, FUNCTION, SHIFTED, FIRST, SECOND, DOC)                       \
  constexpr PairDef NAME##_def{#NAME, SpecialPairFunction::FUNCTION, SHIFTED};     \
  const Op<Tensor(const Tensor&, const Tensor&)> NAME{                             \
      #NAME, apply_pair<NAME##_def, Tensor, Tensor>, kPair, {FIRST, SECOND}, DOC}; \
  const Op<Tensor(const Tensor&, const Scalar&)> NAME##_ts =                       \
      overload_of(NAME, apply_pair<NAME##_def, Tensor, Scalar>);                   \
  const Op<Tensor(const Scalar&, const Tensor&)> NAME##_st =                       \
      overload_of(NAME, apply_pair<NAME##_def, Scalar, Tensor>)
#define WT_POLYNOMIAL(NAME, FUNCTION, SHIFTED, DOC) WT_PAIR(NAME, FUNCTION, SHIFTED, "input", "n", DOC)
WT_POLYNOMIAL(chebyshev_polynomial_t, ChebyshevT, false, "Chebyshev's polynomial of the first kind.");
WT_POLYNOMIAL(chebyshev_polynomial_u, ChebyshevU, false, "Chebyshev's polynomial of the second kind.");
WT_POLYNOMIAL(chebyshev_polynomial_v, ChebyshevV, false, "Chebyshev's polynomial of the third kind.");
WT_POLYNOMIAL(chebyshev_polynomial_w, ChebyshevW, false, "Chebyshev's polynomial of the fourth kind.");
WT_POLYNOMIAL(shifted_chebyshev_polynomial_t, ChebyshevT, true, "chebyshev_polynomial_t(2 input - 1, n).");
WT_POLYNOMIAL(shifted_chebyshev_polynomial_u, ChebyshevU, true, "chebyshev_polynomial_u(2 input - 1, n).");
WT_POLYNOMIAL(shifted_chebyshev_polynomial_v, ChebyshevV, true, "chebyshev_polynomial_v(2 input - 1, n).");
WT_POLYNOMIAL(shifted_chebyshev_polynomial_w, ChebyshevW, true, "chebyshev_polynomial_w(2 input - 1, n).");
WT_POLYNOMIAL(hermite_polynomial_h, HermiteH, false, "The physicist's Hermite polynomial of degree n.");
WT_POLYNOMIAL(hermite_polynomial_he, HermiteHe, false, "The probabilist's Hermite polynomial of degree n.");
WT_POLYNOMIAL(laguerre_polynomial_l, LaguerreL, false, "The Laguerre polynomial of degree n.");
WT_POLYNOMIAL(legendre_polynomial_p, LegendreP, false, "The Legendre polynomial of degree n.");
WT_PAIR(zeta, Zeta, false, "input", "other",
        "Hurwitz's zeta function: the sum of (other + k)^-input over k.");

void zeta_backward(Node& n, Gradients& g) {
  Tensor x = n.saved(0), q = n.saved(1);
  if (g.wants(0))
    throw NotImplementedError("the derivative for 'special_zeta: input' is not implemented; detach() it");
  g.set(1, g[0] * -x * zeta(x + 1, q));
}

}  // namespace
}  // namespace warptape::ops
