// Complex numbers: their parts as views, conjugates, lengths and angles. A gradient is that of the conjugate
// (PyTorch's convention): for a real loss, d loss / d re + i d loss / d im.
#include <numbers>
#include <string_view>
#include <unordered_set>

#include "op/pointwise.h"
#include "ops/elementwise/unary.h"
#include "ops/index/masked.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"
#include "ops/view/view_copy.h"

namespace warptape::ops {
namespace {

constexpr OpFacts kBoth = kFunction | kMethod;
ElementwiseSlot conj_slot{"conj"}, hypot_slot{"hypot"}, atan2_slot{"atan2"};

// ---- parts and pairs ----
void parts_backward(Node&, Gradients& g) {
  const Tensor dense = contiguous(g[0]);
  g.set(0, view_as_complex(dense.offset() % 2 == 0 ? dense : clone(dense)));
}
void pairs_backward(Node&, Gradients& g) { g.set(0, view_as_real(g[0])); }
void part_backward(Node& n, Gradients& g) {
  const Tensor none = zeros(g[0].sizes(), options_of(g[0]));
  g.set(0, n.data<bool>() ? complex(none, g[0]) : complex(g[0], none));
}
constexpr NodeType kParts{"ViewAsRealBackward0", parts_backward},
    kPairs{"ViewAsComplexBackward0", pairs_backward}, kReal{"RealBackward0", part_backward},
    kImag{"ImagBackward0", part_backward};

Tensor as_view(Tensor out, const NodeType& type, const Tensor& x, bool imaginary = false) {
  set_view(out, x);
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    n->emplace<bool>(imaginary);
    set_history(out, n);
  }
  return out;
}

Tensor view_as_real_impl(const Tensor& x) {
  WT_CHECK(is_complex(x.dtype()), DtypeError,
           "view_as_real: view_as_real is only supported for complex tensors, got ", x.dtype());
  return as_view(raw_parts(x), kParts, x);
}

Tensor view_as_complex_impl(const Tensor& x) {
  WT_CHECK(x.dtype() == DType::Float32 || x.dtype() == DType::Float64, DtypeError,
           "view_as_complex: view_as_complex is only supported for floating point tensors of 32 or 64 bits, "
           "but got a tensor of scalar type: ",
           x.dtype());
  WT_CHECK(x.ndim() > 0, ShapeError, "view_as_complex: Input tensor must have one or more dimensions");
  WT_CHECK(x.sizes().back() == 2, ShapeError,
           "view_as_complex: Tensor must have a last dimension of size 2, got shape ", x.sizes());
  Shape sizes = x.sizes(), strides = x.strides();
  bool even = x.offset() % 2 == 0;
  WT_CHECK(strides.back() == 1, ShapeError,
           "view_as_complex: Tensor must have a last dimension with stride 1");
  sizes.pop_back(), strides.pop_back();
  for (size_t d = 0; d < sizes.size(); ++d) {
    even &= strides[d] % 2 == 0 || sizes[d] <= 1;
    strides[d] /= 2;
  }
  WT_CHECK(even, ShapeError,
           "view_as_complex: Tensor must have a stride divisible by 2 for all but last dimension and a "
           "storage_offset divisible by 2; call .contiguous() or .clone() first");
  Tensor out = alias(x, std::move(sizes), std::move(strides), x.offset() / 2, complex_of(x.dtype()));
  return as_view(std::move(out), kPairs, x);
}

Tensor real_impl(const Tensor& x) {
  return is_complex(x.dtype()) ? as_view(raw_part(x, 0), kReal, x, false) : x;
}
Tensor imag_impl(const Tensor& x) {
  WT_CHECK(is_complex(x.dtype()), DtypeError,
           "imag: imag is not implemented for tensors with non-complex dtypes.");
  return as_view(raw_part(x, 1), kImag, x, true);
}

// ---- from two real tensors ----
void complex_backward(Node&, Gradients& g) {
  if (g.wants(0)) g.set(0, real(g[0]));
  if (g.wants(1)) g.set(1, imag(g[0]));
}
constexpr NodeType kFromParts{"ComplexBackward0", complex_backward};

void check_pair(const char* op, const Tensor& a, const Tensor& b) {
  auto fits = [](const Tensor& t) { return t.dtype() == DType::Float32 || t.dtype() == DType::Float64; };
  WT_CHECK(fits(a) && fits(b), DtypeError, op,
           ": Expected both inputs to be Float or Double tensors but got ", a.dtype(), " and ", b.dtype());
  WT_CHECK(a.dtype() == b.dtype(), DtypeError, op, ": Expected object of scalar type ", a.dtype(),
           " but got scalar type ", b.dtype(), " for second argument");
}

Tensor complex_impl(const Tensor& re, const Tensor& im) {
  check_pair("complex", re, im);
  const PointwiseInput inputs[] = {re, im};
  Tensor out =
      empty(common_shape("complex", inputs), {complex_of(re.dtype()), common_device("complex", inputs)});
  raw_copy(raw_part(out, 0), re);
  raw_copy(raw_part(out, 1), im);
  if (needs_grad(re, im)) set_history(out, record(kFromParts, re, im));
  return out;
}

Tensor polar_impl(const Tensor& abs, const Tensor& angle) {
  check_pair("polar", abs, angle);
  return complex(abs * cos(angle), abs * sin(angle));
}

// ---- functions of one tensor ----
void conj_backward(Node&, Gradients& g) { g.set(0, conjugate(g[0])); }
constexpr NodeType kConj{"ConjBackward0", conj_backward};

Tensor conj_impl(const Tensor& x) {
  if (!is_complex(x.dtype())) return x;
  Tensor out = pointwise("conj", conj_slot, ResultRule::Same, {x});
  if (needs_grad(x)) set_history(out, record(kConj, x));
  return out;
}
Tensor conj_inplace(const Tensor& x) {
  if (!is_complex(x.dtype())) return x;
  return inplace("conj_physical_", conj_slot, ResultRule::Same, x, {x}, [&] { return record(kConj, x); });
}
Tensor itself(const Tensor& x) { return x; }
Tensor negated(const Tensor& x) { return neg(x); }
bool never(const Tensor&) { return false; }

void abs_backward(Node& n, Gradients& g) { g.set(0, g[0] * complex_sgn(n.saved(0))); }
constexpr NodeType kAbs{"AbsBackward0", abs_backward};

Tensor abs_impl(const Tensor& x) {
  WT_CHECK(is_complex(x.dtype()), DtypeError, "_complex_abs: expected complex numbers, got ", x);
  Tensor out = pointwise("abs", hypot_slot, ResultRule::Same, {raw_part(x, 0), raw_part(x, 1)});
  if (needs_grad(x)) {
    Ref<Node> n = record(kAbs, x);
    n->save(x);
    set_history(out, n);
  }
  return out;
}

// At 0 the value is 0, and so is the gradient.
Tensor sgn_impl(const Tensor& x) {
  WT_CHECK(is_complex(x.dtype()), DtypeError, "_complex_sgn: expected complex numbers, got ", x);
  const Tensor length = complex_abs(x), zero = eq_ts(length, 0), divisor = masked_fill(length, zero, 1);
  const Tensor masked = masked_fill(x, zero, 0);
  return complex(real(masked) / divisor, imag(masked) / divisor);
}

// Of real numbers 0 or pi, with gradient 0. At 0 the gradient is 0, as PyTorch has it.
void angle_backward(Node& n, Gradients& g) {
  if (!n.saved(0).defined()) return g.set(0, no_gradient(g[0]));
  Tensor x = n.saved(0), squared = square(real(x)) + square(imag(x));
  g.set(0, g[0] / masked_fill(squared, eq_ts(squared, 0), 1) * (x * Complex<double>(0, 1)));
}
constexpr NodeType kAngle{"AngleBackward0", angle_backward};

Tensor real_angle(const Tensor& x) {
  const DType dtype = is_floating(x.dtype()) ? x.dtype() : rank_context().default_dtype;
  Tensor out = where_ts(lt_ts(x, 0), full({}, std::numbers::pi, {dtype, x.device()}), Scalar(0.0));
  return is_floating(x.dtype()) ? where(isnan(x), detach(x), out) : out;
}
Tensor angle_impl(const Tensor& x) {
  const bool real = !is_complex(x.dtype());
  Tensor out = real ? real_angle(x)
                    : pointwise("angle", atan2_slot, ResultRule::Same, {raw_part(x, 1), raw_part(x, 0)});
  if (needs_grad(x)) {
    Ref<Node> n = record(kAngle, x);
    n->save(real ? Tensor() : x);
    set_history(out, n);
  }
  return out;
}

Tensor isreal_impl(const Tensor& x) {
  return is_complex(x.dtype()) ? eq_ts(imag(x), 0) : full(x.sizes(), true, {DType::Bool, x.device()});
}

Tensor adjoint_impl(const Tensor& x) {
  WT_CHECK(x.ndim() != 1, ShapeError,
           "adjoint: tensor.adjoint() is only supported on matrices or batches of "
           "matrices, got a 1-D tensor");
  return x.ndim() == 0 ? conj(x) : conj(transpose(x, -2, -1));
}

}  // namespace

decltype(view_as_real) view_as_real{"view_as_real",
                                    view_as_real_impl,
                                    kBoth | kComplex | Aliasing::View,
                                    {"input"},
                                    "A view: the parts of complex numbers as a last dim of 2."};
decltype(view_as_complex) view_as_complex{"view_as_complex",
                                          view_as_complex_impl,
                                          kBoth | kComplex | Aliasing::View,
                                          {"input"},
                                          "A view: pairs along the last dim as complex numbers."};
const auto view_as_real_copy = copy_of<view_as_real>("view_as_real_copy");
const auto view_as_complex_copy = copy_of<view_as_complex>("view_as_complex_copy");
decltype(real) real{"real",
                    real_impl,
                    kBoth | kComplex | kPointwise | Aliasing::View,
                    {"input"},
                    "The real part, as a view; a real tensor itself."};
decltype(imag) imag{"imag",
                    imag_impl,
                    kBoth | kComplex | kPointwise | Aliasing::View,
                    {"input"},
                    "The imaginary part, as a view."};
decltype(complex) complex{
    "complex", complex_impl, kFunction | kOut | kOutExact | kPointwise, {"real", "imag"}, "real + i imag."};
decltype(polar) polar{"polar",
                      polar_impl,
                      kFunction | kOut | kComplex | kPointwise,
                      {"abs", "angle"},
                      "abs * (cos(angle) + i sin(angle))."};
decltype(conj) conj{"conj",
                    conj_impl,
                    kBoth | kComplex | kPointwise | Aliasing::View,
                    {"input"},
                    "The conjugate, a copy; a real tensor itself."};
decltype(complex_abs) complex_abs{
    "_complex_abs", abs_impl, kPrivate | kComplex, {"input"}, "abs of complex numbers."};
decltype(complex_sgn) complex_sgn{
    "_complex_sgn", sgn_impl, kPrivate | kComplex, {"input"}, "sgn of complex numbers."};
decltype(angle) angle{"angle",
                      angle_impl,
                      kBoth | kOut | kComplex | kPointwise,
                      {"input"},
                      "The angle to the positive real axis."};

namespace {
const UnaryOp conj_physical{"conj_physical",
                            conj_impl,
                            kBoth | kOut | kOutExact | kComplex | kPointwise,
                            {"input"},
                            "The conjugate."},
    conj_physical_ = in_place_of(conj_physical, conj_inplace, kFunction | kMethod, "conj in place."),
    resolve_conj{"resolve_conj",
                 itself,
                 kBoth | kComplex | kPointwise | kLinear | Aliasing::Conversion,
                 {"input"},
                 "The tensor itself: conjugates are never pending."},
    resolve_neg{"resolve_neg",
                itself,
                kBoth | kComplex | kPointwise | kLinear | Aliasing::Conversion,
                {"input"},
                "The tensor itself: negations are never pending."},
    neg_view{"_neg_view",
             negated,
             kBoth | kComplex | kPointwise | kLinear,
             {"input"},
             "-input, in memory of its own: negations are never pending."},
    isreal{"isreal", isreal_impl, kBoth | kComplex, {"input"}, "Where the imaginary part is 0."},
    adjoint{"adjoint",
            adjoint_impl,
            kBoth | kComplex | Aliasing::View,
            {"input"},
            "The last two dims swapped, and the conjugate of that."};
const Op<bool(const Tensor&)> is_conj{
    "is_conj", never, kBoth | kComplex, {"input"}, "False: conjugates are never pending."},
    is_neg{"is_neg", never, kBoth | kComplex, {"input"}, "False: negations are never pending."};
}  // namespace
}  // namespace warptape::ops
