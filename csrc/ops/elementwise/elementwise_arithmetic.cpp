// add, sub, mul, div, neg, and what is a step away from them.
#include "op/number_tensor.h"
#include "ops/elementwise/binary.h"
#include "ops/elementwise/elementwise.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

ElementwiseSlot add_slot{"add"}, sub_slot{"sub"}, mul_slot{"mul"}, div_slot{"div"}, neg_slot{"neg"};
ElementwiseSlot add_scaled_slot{"add_scaled"};  // a + c * b

// ---- add and sub ---------------------------------------------------------------------------------------

void add_backward(Node& n, Gradients& g) {
  const Scalar& alpha = n.data<Scalar>();
  if (g.wants(0)) g.set(0, g[0]);
  if (g.wants(1)) g.set(1, alpha.equal(1) ? g[0] : g[0] * conjugate(alpha));
}
constexpr NodeType kAdd{"AddBackward0", add_backward}, kSub{"SubBackward0", add_backward};

template <class A, class B>
void check_alpha(const char* op, const A& a, const B& b, const Scalar& alpha) {
  if (alpha.kind() == DTypeCategory::Integral) return;
  const DType result = promoted_dtype(std::array<PointwiseInput, 2>{PointwiseInput(a), PointwiseInput(b)});
  WT_CHECK(!alpha.is_bool() || result == DType::Bool, DtypeError, op,
           ": Boolean alpha only supported for Boolean results.");
  WT_CHECK(!alpha.is_complex() || is_complex(result), DtypeError, op,
           ": For non-complex input tensors, argument alpha must not be a complex number.");
  WT_CHECK(!alpha.is_floating() || is_differentiable(result), DtypeError, op,
           ": For integral input tensors, argument alpha must not be a floating point number.");
}

template <class A, class B>
void check_sub(const A& a, const B& b) {
  WT_CHECK(a.dtype() != DType::Bool && b.dtype() != DType::Bool, DtypeError,
           "sub: Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to "
           "invert a mask, "
           "use the `~` or `logical_not()` operator instead.");
}

Scalar negated(const Scalar& s) {
  if (s.is_complex()) return -s.to_complex();
  return s.is_floating() ? Scalar(-s.to_double()) : Scalar(-s.to_int());
}

// Of bools -1 is True, as any factor but 0.
template <class A, class B>
bool subtracts(const A& a, const B& b) {
  return a.dtype() != DType::Bool || b.dtype() != DType::Bool;
}

// alpha has no say in the dtype; as a number of the result's category it does not change it.
template <class A, class B>
Scalar factor(const A& a, const B& b, const Scalar& alpha) {
  const DType result = promoted_dtype(std::array<PointwiseInput, 2>{PointwiseInput(a), PointwiseInput(b)});
  check_fits(alpha, result);
  return result == DType::Bool ? Scalar(alpha.to_bool()) : alpha;
}

// a + alpha * b into a fresh tensor, or into self.
template <class A, class B>
Tensor add_out_of_place(const char* op, const A& a, const B& b, const Scalar& alpha) {
  check_alpha(op, a, b, alpha);
  if (alpha.equal(1)) return pointwise(op, add_slot, ResultRule::Same, {a, b});
  if (alpha.equal(-1) && subtracts(a, b)) return pointwise(op, sub_slot, ResultRule::Same, {a, b});
  return pointwise(op, add_scaled_slot, ResultRule::Same, {a, b, factor(a, b, alpha)});
}

template <class A, class B>
Tensor add_recorded(const char* op, const NodeType& type, const A& a, const B& b, const Scalar& alpha) {
  Tensor out = add_out_of_place(op, a, b, alpha);
  if (needs_grad(a, b)) {
    Ref<Node> n = record(type, a, b);
    n->emplace<Scalar>(alpha);
    set_history(out, n);
  }
  return out;
}

template <class A, class B>
Tensor add_impl(const A& a, const B& b, const Scalar& alpha) {
  return add_recorded("add", kAdd, a, b, alpha);
}

template <class A, class B>
Tensor sub_impl(const A& a, const B& b, const Scalar& alpha) {
  check_sub(a, b);
  check_alpha("sub", a, b, alpha);
  return add_recorded("sub", kSub, a, b, negated(alpha));
}

template <class B>
Tensor add_into(const char* op, const NodeType& type, const Tensor& self, const B& b, const Scalar& alpha) {
  auto node = [&] {
    Ref<Node> n = record(type, self, b);
    n->emplace<Scalar>(alpha);
    return n;
  };
  check_alpha(op, self, b, alpha);
  if (alpha.equal(1)) return inplace(op, add_slot, ResultRule::Same, self, {self, b}, node);
  if (alpha.equal(-1) && subtracts(self, b))
    return inplace(op, sub_slot, ResultRule::Same, self, {self, b}, node);
  return inplace(op, add_scaled_slot, ResultRule::Same, self, {self, b, factor(self, b, alpha)}, node);
}

template <class B>
Tensor add_inplace(const Tensor& self, const B& b, const Scalar& alpha) {
  return add_into("add_", kAdd, self, b, alpha);
}

template <class B>
Tensor sub_inplace(const Tensor& self, const B& b, const Scalar& alpha) {
  check_sub(self, b);
  check_alpha("sub_", self, b, alpha);
  return add_into("sub_", kSub, self, b, negated(alpha));
}

// The same with a tensor in alpha's place.
template <bool kSub>
Tensor add_by(const Tensor& a, const Tensor& b, const Tensor& alpha) {
  if (!may_stay_tensor(alpha, {a, b})) return (kSub ? sub : add)(a, b, item(alpha));
  if (kSub) check_sub(a, b);
  return pointwise_by(kSub ? "sub" : "add", add_scaled_slot, {a, b}, kSub ? neg(alpha) : alpha);
}

template <bool kSub>
Tensor add_inplace_by(const Tensor& self, const Tensor& b, const Tensor& alpha) {
  if (!may_stay_tensor(alpha, {self, b})) return (kSub ? sub_ : add_)(self, b, item(alpha));
  if (kSub) check_sub(self, b);
  const Tensor by = as_operand_of(kSub ? neg(alpha) : alpha, {self, b});
  return inplace(kSub ? "sub_" : "add_", add_scaled_slot, ResultRule::Same, self, {self, b, by},
                 [] { return Ref<Node>(); });
}

// ---- mul and div ---------------------------------------------------------------------------------------

// The operands of a recorded binary op: saved tensors, or the number in their place.
struct Number {
  Scalar value;
};

template <class A, class B>
Ref<Node> record_operands(const NodeType& type, const A& a, const B& b, bool save_a, bool save_b) {
  Ref<Node> n = record(type, a, b);
  save_operand(*n, a, save_a);
  save_operand(*n, b, save_b);
  if constexpr (std::is_same_v<A, Scalar>) n->emplace<Number>(a);
  if constexpr (std::is_same_v<B, Scalar>) n->emplace<Number>(b);
  return n;
}

void mul_backward(Node& n, Gradients& g) {
  if (g.wants(0)) g.set(0, g[0] * conjugate(n.saved(1)));
  if (g.wants(1)) g.set(1, g[0] * conjugate(n.saved(0)));
}
void mul_ts_backward(Node& n, Gradients& g) {
  const Scalar& s = n.data<Number>().value;
  g.set(g.wants(0) ? 0 : 1, g[0] * conjugate(s));
}
constexpr NodeType kMul{"MulBackward0", mul_backward}, kMulScalar{"MulBackward0", mul_ts_backward};

void div_backward(Node& n, Gradients& g) {
  Tensor b = conjugate(n.saved(1));
  if (g.wants(0)) g.set(0, g[0] / b);
  if (g.wants(1)) g.set(1, -g[0] * (conjugate(n.saved(0)) / b) / b);
}
void div_ts_backward(Node& n, Gradients& g) { g.set(0, g[0] / conjugate(n.data<Number>().value)); }
void div_st_backward(Node& n, Gradients& g) {
  Tensor b = conjugate(n.saved(0));
  g.set(1, -g[0] * (conjugate(n.data<Number>().value) / b) / b);
}
constexpr NodeType kDiv{"DivBackward0", div_backward}, kDivTs{"DivBackward0", div_ts_backward},
    kDivSt{"DivBackward0", div_st_backward};

template <class A, class B>
Tensor mul_impl(const A& a, const B& b) {
  Tensor out = pointwise("mul", mul_slot, ResultRule::Same, {a, b});
  if (needs_grad(a, b)) {
    constexpr bool tensors = std::is_same_v<A, B>;
    set_history(out, record_operands(tensors ? kMul : kMulScalar, a, b, tensors && requires_grad(b),
                                     tensors && requires_grad(a)));
  }
  return out;
}

template <class A, class B>
const NodeType& div_type() {
  if constexpr (std::is_same_v<A, Scalar>)
    return kDivSt;
  else if constexpr (std::is_same_v<B, Scalar>)
    return kDivTs;
  else
    return kDiv;
}

template <class A, class B>
Tensor div_impl(const A& a, const B& b) {
  Tensor out = pointwise("div", div_slot, ResultRule::Float, {a, b});
  if (needs_grad(a, b)) set_history(out, record_operands(div_type<A, B>(), a, b, requires_grad(b), true));
  return out;
}

template <class B>
Tensor mul_inplace(const Tensor& self, const B& b) {
  constexpr bool tensors = std::is_same_v<B, Tensor>;
  return inplace("mul_", mul_slot, ResultRule::Same, self, {self, b}, [&] {
    bool needs_self = tensors && requires_grad(b);
    Ref<Node> n = record(tensors ? kMul : kMulScalar, self, b);
    if constexpr (tensors) {
      n->save(needs_self ? clone_with_history(self) : Tensor());
      n->save(b.same(self) ? clone_with_history(self) : b);
    } else {
      n->emplace<Number>(b);
    }
    return n;
  });
}

template <class B>
Tensor div_inplace(const Tensor& self, const B& b) {
  return inplace("div_", div_slot, ResultRule::Float, self, {self, b}, [&] {
    Ref<Node> n = record(div_type<Tensor, B>(), self, b);
    n->save(requires_grad(b) ? clone_with_history(self) : Tensor());
    if constexpr (std::is_same_v<B, Tensor>) {
      n->save(b.same(self) ? clone_with_history(self) : b);
    } else {
      n->emplace<Number>(b);
    }
    return n;
  });
}

// ---- neg -----------------------------------------------------------------------------------------------

void neg_backward(Node&, Gradients& g) { g.set(0, -g[0]); }
constexpr NodeType kNeg{"NegBackward0", neg_backward};

void check_neg(const Tensor& x) {
  WT_CHECK(x.dtype() != DType::Bool, DtypeError,
           "neg: Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert "
           "a mask, use "
           "the `~` or `logical_not()` operator instead.");
}
Tensor neg_impl(const Tensor& x) {
  check_neg(x);
  Tensor out = pointwise("neg", neg_slot, ResultRule::Same, {x});
  if (needs_grad(x)) set_history(out, record(kNeg, x));
  return out;
}
Tensor neg_inplace(const Tensor& x) {
  check_neg(x);
  return inplace("neg_", neg_slot, ResultRule::Same, x, {x}, [&] { return record(kNeg, x); });
}

// ---- rsub, diff ----------------------------------------------------------------------------------------

Tensor rsub_impl(const Tensor& x, const Tensor& other, const Scalar& alpha) { return sub(other, x, alpha); }
Tensor rsub_ts_impl(const Tensor& x, const Scalar& other, const Scalar& alpha) {
  return sub_st(other, x, alpha);
}

Tensor diff_impl(const Tensor& x, int64_t n, int64_t dim, const OptTensor& prepend, const OptTensor& append) {
  WT_CHECK(x.ndim() > 0, ShapeError, "diff: diff expects input to be at least one-dimensional");
  WT_CHECK(n >= 0, ValueError, "diff: order must be non-negative but got ", n);
  dim = wrap_dim(dim, x.ndim(), "diff");
  for (const OptTensor* t : {&prepend, &append}) {
    if (!*t) continue;
    WT_CHECK((*t)->ndim() == x.ndim(), ShapeError,
             "diff: diff expects prepend or append to be the same dimension as input");
    for (int64_t d = 0; d < x.ndim(); ++d)
      WT_CHECK(
          d == dim || (*t)->sizes()[d] == x.sizes()[d], ShapeError,
          "diff: diff expects the shape of tensor to prepend or append to match that of input except along "
          "the differencing dimension; input.size(",
          d, ") = ", x.sizes()[d], ", but got tensor.size(", d, ") = ", (*t)->sizes()[d]);
  }
  if (n == 0) return clone(x);
  std::vector<Tensor> parts;
  if (prepend) parts.push_back(*prepend);
  parts.push_back(x);
  if (append) parts.push_back(*append);
  Tensor out = parts.size() == 1 ? x : cat(parts, dim);
  n = std::min(n, out.sizes()[dim]);
  if (n == 0) return clone(out);
  for (; n > 0; --n) {
    const int64_t length = out.sizes()[dim], rest = std::max<int64_t>(length - 1, 0);
    const Tensor later = narrow(out, dim, length - rest, rest), earlier = narrow(out, dim, 0, rest);
    out = out.dtype() == DType::Bool ? logical_xor(later, earlier) : later - earlier;
  }
  return out;
}

constexpr OpFacts kBoth = kFunction | kMethod | kOut | kPointwise;
const Arg kAlpha = Arg::integer("alpha", 1, kKeywordOnly);

}  // namespace

// With a number second, with one first, in place, and that with a number.
#define WT_FORMS(name)                                                            \
  decltype(name##_ts) name##_ts = overload_of(name, name##_impl<Tensor, Scalar>); \
  decltype(name##_st) name##_st = overload_of(name, name##_impl<Scalar, Tensor>); \
  decltype(name##_) name##_ = in_place_of(name, name##_inplace<Tensor>);          \
  decltype(name##_ts_) name##_ts_ = in_place_of(name, name##_inplace<Scalar>)

decltype(add) add{"add",
                  add_impl<Tensor, Tensor>,
                  kBoth | kComplex,
                  {"input", "other", kAlpha},
                  "input + alpha * other, broadcast."};
WT_FORMS(add);
decltype(sub) sub{"sub",
                  sub_impl<Tensor, Tensor>,
                  kBoth | kComplex,
                  {"input", "other", kAlpha},
                  "input - alpha * other, broadcast."};
WT_FORMS(sub);
namespace {
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&)> add_at = overload_of(add, add_by<false>,
                                                                                   kFunction | kMethod),
                                                              sub_at = overload_of(sub, add_by<true>,
                                                                                   kFunction | kMethod),
                                                              add_at_ =
                                                                  in_place_of(add, add_inplace_by<false>),
                                                              sub_at_ =
                                                                  in_place_of(sub, add_inplace_by<true>);
}  // namespace
decltype(mul) mul{
    "mul", mul_impl<Tensor, Tensor>, kBoth | kComplex, {"input", "other"}, "input * other, broadcast."};
WT_FORMS(mul);
decltype(div) div{"div",
                  div_impl<Tensor, Tensor>,
                  kBoth | kComplex,
                  {"input", "other"},
                  "input / other, broadcast; integers give the default floating dtype."};
WT_FORMS(div);
// div with a rounding mode: the gradient is zero.
WT_BINARY_DEF(trunc_divide, "DivBackward1", Same, true, check_no_bool, no_gradient(g), no_gradient(g))
namespace {
BinaryDef floor_div_def{"div",
                        "div_",
                        ResultRule::Same,
                        {"DivBackward1", trunc_divide_backward},
                        ElementwiseSlot{"floor_divide"},
                        true,
                        check_no_bool};
using Mode = std::optional<std::string_view>;
void check_mode(Mode mode) {
  WT_CHECK(!mode || *mode == "floor" || *mode == "trunc", Error,
           "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '", *mode, "'");
}
template <class B>
Tensor div_mode_impl(const Tensor& a, const B& b, Mode mode) {
  check_mode(mode);
  if (!mode) return a / b;
  return *mode == "floor" ? binary_impl<floor_div_def, Tensor, B>(a, b)
                          : binary_impl<trunc_divide_def, Tensor, B>(a, b);
}
template <class B>
Tensor div_mode_inplace(const Tensor& a, const B& b, Mode mode) {
  check_mode(mode);
  if (mode)
    return *mode == "floor" ? binary_inplace<floor_div_def, B>(a, b)
                            : binary_inplace<trunc_divide_def, B>(a, b);
  if constexpr (std::is_same_v<B, Tensor>)
    return div_(a, b);
  else
    return div_ts_(a, b);
}
const char kDivDoc[] = "input / other, rounded to an integer as rounding_mode ('floor' or 'trunc') says.";
const Arg kMode{"rounding_mode", kKeywordOnly};
}  // namespace
decltype(div_mode) div_mode{
    "div", div_mode_impl<Tensor>, kBothOut | kComplex, {"input", "other", kMode}, kDivDoc};
decltype(div_mode_ts) div_mode_ts = overload_of(div_mode, div_mode_impl<Scalar>);
decltype(div_mode_) div_mode_ = in_place_of(div_mode, div_mode_inplace<Tensor>);
decltype(div_mode_ts_) div_mode_ts_ = in_place_of(div_mode, div_mode_inplace<Scalar>);

decltype(neg) neg{
    "neg", neg_impl, kBoth | kOutExact | kComplex | kLinear | kInvolution, {"input"}, "-input."};
decltype(neg_) neg_ = in_place_of(neg, neg_inplace, kMethod, "neg in place.");
namespace {
const Alias multiply{"multiply", "mul"}, subtract{"subtract", "sub"}, divide{"divide", "div"},
    true_divide{"true_divide", "div"}, negative{"negative", "neg"};
const Op<Tensor(const Tensor&, const Tensor&, const Scalar&)> rsub{"rsub",
                                                                   rsub_impl,
                                                                   kFunction | kComplex | kPointwise,
                                                                   {"input", "other", kAlpha},
                                                                   "other - alpha * input, broadcast."};
const Op<Tensor(const Tensor&, const Scalar&, const Scalar&)> rsub_ts{
    "rsub",
    rsub_ts_impl,
    kFunction | kComplex | kPointwise,
    {"input", "other", Arg::integer("alpha", 1)},
    "other - alpha * input."};
const Op<Tensor(const Tensor&, int64_t, int64_t, const OptTensor&, const OptTensor&)> diff{
    "diff",
    diff_impl,
    kFunction | kMethod | kOut | kComplex | kAlongDims | kLinear,
    {"input", Arg::integer("n", 1), Arg::integer("dim", -1, kDimIndex), {"prepend", none}, {"append", none}},
    "Differences of neighbours along dim, n times; prepend and append are joined on first."};
}  // namespace

}  // namespace warptape::ops
