// where, clamp, lerp, addcmul, addcdiv.
#include "op/number_tensor.h"
#include "ops/elementwise/binary.h"
#include "ops/index/index.h"
#include "ops/view/copy.h"

namespace warptape::ops {
namespace {

ElementwiseSlot where_slot{"where"}, clamp_slot{"clamp"}, clamp_min_slot{"clamp_min"},
    clamp_max_slot{"clamp_max"}, clamp_backward_slot{"clamp_backward"}, lerp_slot{"lerp"},
    addcmul_slot{"addcmul"}, addcdiv_slot{"addcdiv"};

// ---- where ----
void where_backward(Node& n, Gradients& g) {
  const Tensor c = n.saved(0);
  if (g.wants(1)) g.set(1, where_ts(c, g[0], Scalar(0)));
  if (g.wants(2)) g.set(2, where_st(c, Scalar(0), g[0]));
}
constexpr NodeType kWhere{"WhereBackward0", where_backward};

Tensor as_condition(const Tensor& c) {
  if (c.dtype() == DType::Bool) return c;
  WT_CHECK(c.dtype() == DType::UInt8, Error,
           "where expected condition to be a boolean tensor, but got a tensor with dtype ", c.dtype(),
           "; compare it with != 0");
  warn(
      "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a future "
      "version of PyTorch. Use a boolean condition instead.");
  return raw_cast(c, DType::Bool);
}
Tensor where_launch(const Tensor& c, const PointwiseInput& a, const PointwiseInput& b) {
  const PointwiseInput values[] = {a, b};
  const DType result = promoted_dtype(values);
  for (const PointwiseInput& v : values)
    if (!v.tensor && opmath_dtype(result) == result) check_fits(v.scalar, result);
  const PointwiseInput all[] = {c, a, b};
  Tensor out = pointwise_output("where", all, result);
  run_elementwise(where_slot, compute_dtype(result), out, all);
  return out;
}
template <class A, class B>
Tensor where_impl(const Tensor& given, const A& a, const B& b) {
  const Tensor c = as_condition(given);
  Tensor out = where_launch(c, a, b);
  if (needs_grad(a, b)) {
    Ref<Node> n = record(kWhere, Tensor(), a, b);
    n->save(c);
    set_history(out, n);
  }
  return out;
}

// ---- clamp ----
using Bound = std::optional<Scalar>;
struct Bounds {
  double lo, hi;
};
void clamp_backward(Node& n, Gradients& g) {
  const Bounds& b = n.data<Bounds>();
  const Tensor x = n.saved(0);
  if (needs_grad(g[0], x)) return g.set(0, g[0] * logical_and(ge_ts(x, b.lo), le_ts(x, b.hi)));
  g.set(0, pointwise("clamp_backward", clamp_backward_slot, ResultRule::Same,
                     {g[0], x, Scalar(b.lo), Scalar(b.hi)}));
}
constexpr NodeType kClamp{"ClampBackward1", clamp_backward};

Ref<Node> record_clamp(const Tensor& x, const Tensor& saved, Bound lo, Bound hi) {
  const double inf = __builtin_inf();
  Ref<Node> n = record(kClamp, x);
  n->emplace<Bounds>(lo ? lo->to_double() : -inf, hi ? hi->to_double() : inf);
  n->save(saved);
  return n;
}
template <class B>
void check_bounds(const char* op, const Tensor& x, const B& lo, const B& hi) {
  WT_CHECK(lo || hi, Error, op, ": At least one of 'min' or 'max' must not be None");
  if constexpr (std::is_same_v<B, Bound>) {
    PromotionState state;
    for (const Bound* b : {&lo, &hi})
      if (*b) state.add_scalar((*b)->dtype());
    x.ndim() ? state.add_dimensioned(x.dtype()) : state.add_zero_dim(x.dtype());
    for (const Bound* b : {&lo, &hi})
      if (*b) check_fits(**b, state.result());
  }
}
// With tensor bounds: inputs x, min, max; absent bounds are undefined tensors. A minimum above the maximum
// loses.
void clamp_tensor_backward(Node& n, Gradients& g) {
  const Tensor x = n.saved(0), lo = n.saved(1), hi = n.saved(2);
  if (g.wants(0)) {
    Tensor inside = lo.defined() ? ge(x, lo) : le(x, hi);
    if (lo.defined() && hi.defined()) inside = logical_and(inside, le(x, hi));
    g.set(0, g[0] * inside);
  }
  if (g.wants(1)) {
    Tensor below = lt(x, lo);
    if (hi.defined()) below = logical_and(below, lt(lo, hi));
    g.set(1, g[0] * below);
  }
  if (g.wants(2)) {
    Tensor above = gt(x, hi);
    if (lo.defined()) above = logical_or(above, lt(hi, lo));
    g.set(2, g[0] * above);
  }
}
constexpr NodeType kClampTensor{"ClampBackward0", clamp_tensor_backward};
Ref<Node> record_clamp(const Tensor& x, const Tensor& saved, const OptTensor& lo, const OptTensor& hi) {
  Ref<Node> n = record(kClampTensor, x, lo, hi);
  n->save(saved);
  n->save(lo ? *lo : Tensor());
  n->save(hi ? *hi : Tensor());
  return n;
}
// B: Bound or const OptTensor&. `op` is the name in errors.
template <class B>
Tensor clamped(const char* op, const Tensor& x, B lo, B hi) {
  check_bounds<std::remove_cvref_t<B>>(op, x, lo, hi);
  Tensor out = lo && hi ? pointwise(op, clamp_slot, ResultRule::Same, {x, *lo, *hi})
               : lo     ? pointwise(op, clamp_min_slot, ResultRule::Same, {x, *lo})
                        : pointwise(op, clamp_max_slot, ResultRule::Same, {x, *hi});
  bool recorded = needs_grad(x);
  if constexpr (!std::is_same_v<B, Bound>) recorded = needs_grad(x, lo, hi);
  if (recorded) set_history(out, record_clamp(x, x, lo, hi));
  return out;
}
template <class B>
Tensor clamp_into(const char* op, const Tensor& x, B lo, B hi) {
  check_bounds<std::remove_cvref_t<B>>(op, x, lo, hi);
  auto node = [&] { return record_clamp(x, clone_with_history(x), lo, hi); };
  if (lo && hi) return inplace(op, clamp_slot, ResultRule::Same, x, {x, *lo, *hi}, node);
  return lo ? inplace(op, clamp_min_slot, ResultRule::Same, x, {x, *lo}, node)
            : inplace(op, clamp_max_slot, ResultRule::Same, x, {x, *hi}, node);
}
template <class B>
Tensor clamp_impl(const Tensor& x, B lo, B hi) {
  return clamped<B>("clamp", x, lo, hi);
}
template <class B>
Tensor clamp_inplace(const Tensor& x, B lo, B hi) {
  return clamp_into<B>("clamp_", x, lo, hi);
}
// T, a Tensor or a Scalar, as B.
template <class T>
using BoundOf = std::conditional_t<std::is_same_v<T, Tensor>, const OptTensor&, Bound>;
template <class T>
Tensor clamp_min_impl(const Tensor& x, const T& lo) {
  return clamped<BoundOf<T>>("clamp_min", x, lo, std::nullopt);
}
template <class T>
Tensor clamp_max_impl(const Tensor& x, const T& hi) {
  return clamped<BoundOf<T>>("clamp_max", x, std::nullopt, hi);
}
template <class T>
Tensor clamp_min_inplace(const Tensor& x, const T& lo) {
  return clamp_into<BoundOf<T>>("clamp_min_", x, lo, std::nullopt);
}
template <class T>
Tensor clamp_max_inplace(const Tensor& x, const T& hi) {
  return clamp_into<BoundOf<T>>("clamp_max_", x, std::nullopt, hi);
}

// ---- lerp(a, b, w) = a + w (b - a) ----
void check_lerp(const Tensor& a, const Tensor& b) {
  WT_CHECK(a.dtype() == b.dtype(), DtypeError, "lerp: expected dtype ", a.dtype(),
           " for `end` but got dtype ", b.dtype());
  WT_CHECK(is_differentiable(a.dtype()), DtypeError, "lerp: expected floating tensors, got ", a.dtype());
}
void lerp_backward(Node& n, Gradients& g) {
  const Tensor w = n.saved(2);
  if (g.wants(0)) g.set(0, g[0] * (1 - w));
  if (g.wants(1)) g.set(1, g[0] * w);
  if (g.wants(2)) g.set(2, g[0] * (n.saved(1) - n.saved(0)));
}
constexpr NodeType kLerp{"LerpBackward0", lerp_backward};
template <class W>
Ref<Node> record_lerp(const Tensor& a, const Tensor& saved, const Tensor& b, const W& w) {
  Ref<Node> n = record(kLerp, a, b, w);
  n->save(requires_grad(w) ? saved : Tensor());
  n->save(requires_grad(w) ? b : Tensor());
  n->save(as_operand(w));
  return n;
}
template <class W>
Tensor lerp_impl(const Tensor& a, const Tensor& b, const W& w) {
  check_lerp(a, b);
  if constexpr (std::is_same_v<W, Scalar>) check_fits(w, opmath_dtype(a.dtype()));
  if (is_complex(a.dtype())) return a + (b - a) * w;
  Tensor out = pointwise("lerp", lerp_slot, ResultRule::Same, {a, b, w});
  if (needs_grad(a, b, w)) set_history(out, record_lerp(a, a, b, w));
  return out;
}
template <class W>
Tensor lerp_inplace(const Tensor& a, const Tensor& b, const W& w) {
  check_lerp(a, b);
  if constexpr (std::is_same_v<W, Scalar>) check_fits(w, opmath_dtype(a.dtype()));
  if (is_complex(a.dtype())) return copy_(a, lerp_impl(a, b, w), false);
  return inplace("lerp_", lerp_slot, ResultRule::Same, a, {a, b, w},
                 [&] { return record_lerp(a, requires_grad(w) ? clone_with_history(a) : Tensor(), b, w); });
}

// ---- a + value * b * c, a + value * b / c ----
void addcmul_backward(Node& n, Gradients& g) {
  const Scalar& value = n.data<Scalar>();
  if (g.wants(0)) g.set(0, g[0]);
  if (g.wants(1)) g.set(1, g[0] * conjugate(n.saved(1)) * conjugate(value));
  if (g.wants(2)) g.set(2, g[0] * conjugate(n.saved(0)) * conjugate(value));
}
void addcdiv_backward(Node& n, Gradients& g) {
  const Scalar value = conjugate(n.data<Scalar>());
  const Tensor b = conjugate(n.saved(0)), c = conjugate(n.saved(1));
  if (g.wants(0)) g.set(0, g[0]);
  if (g.wants(1)) g.set(1, g[0] / c * value);
  if (g.wants(2)) g.set(2, -(g[0] * (b / c) / c) * value);
}
struct AddC {
  const char* name;
  const char* inplace_name;
  NodeType type;
  ElementwiseSlot& slot;
};
AddC addcmul_def{"addcmul", "addcmul_", {"AddcmulBackward0", addcmul_backward}, addcmul_slot},
    addcdiv_def{"addcdiv", "addcdiv_", {"AddcdivBackward0", addcdiv_backward}, addcdiv_slot};
template <AddC& D>
void check_addc(const char* op, const Tensor& a, const Tensor& b, const Tensor& c, const Scalar& value) {
  const PointwiseInput all[] = {a, b, c};
  const DType t = promoted_dtype(all);
  WT_CHECK(&D != &addcdiv_def || is_differentiable(t), DtypeError,
           "Integer division with addcdiv is no longer supported; convert to a floating dtype before ", op);
  WT_CHECK(!value.is_floating() || is_differentiable(t), DtypeError, op,
           ": for integral input tensors, argument value must not be a floating point number.");
  check_fits(value, opmath_dtype(t));
}
template <AddC& D>
Ref<Node> record_addc(const Tensor& a, const Tensor& b, const Tensor& c, const Scalar& value) {
  Ref<Node> n = record(D.type, a, b, c);
  n->template emplace<Scalar>(value);
  n->save(b.same(a) ? clone_with_history(b) : b);
  n->save(c.same(a) ? clone_with_history(c) : c);
  return n;
}
template <AddC& D>
Tensor addc_impl(const Tensor& a, const Tensor& b, const Tensor& c, const Scalar& value) {
  check_addc<D>(D.name, a, b, c, value);
  Tensor out = pointwise(D.name, D.slot, ResultRule::Same, {a, b, c, value});
  if (needs_grad(a, b, c)) set_history(out, record_addc<D>(a, b, c, value));
  return out;
}
template <AddC& D>
Tensor addc_inplace(const Tensor& a, const Tensor& b, const Tensor& c, const Scalar& value) {
  check_addc<D>(D.inplace_name, a, b, c, value);
  return inplace(D.inplace_name, D.slot, ResultRule::Same, a, {a, b, c, value},
                 [&] { return record_addc<D>(a, b, c, value); });
}

const char kWhereDoc[] = "input where condition holds, else other.";
const char kClampDoc[] = "input limited to [min, max].";
const char kLerpDoc[] = "input + weight * (end - input).";
const Arg kMin{"min", none}, kMax{"max", none}, kValue = Arg::integer("value", 1, kKeywordOnly);
const Arg kSelf{"input", kWritten};
constexpr OpFacts kPair = kFunction | kMethod | kPointwise;
}  // namespace

decltype(where) where{"where",
                      where_impl<Tensor, Tensor>,
                      kFunction | kOut | kComplex | kPointwise,
                      {"condition", "input", "other"},
                      kWhereDoc};
decltype(where_ts) where_ts = overload_of(where, where_impl<Tensor, Scalar>, kFunction);
decltype(where_st) where_st = overload_of(where, where_impl<Scalar, Tensor>, kFunction);
decltype(where_ss) where_ss = overload_of(where, where_impl<Scalar, Scalar>, kFunction);
namespace {
std::vector<Tensor> where_positions(const Tensor& c) { return std::get<1>(nonzero_as(c, true)); }
const Op<std::vector<Tensor>(const Tensor&)> where_only{
    "where",
    where_positions,
    kFunction | kComplex,
    {"condition"},
    "The positions of the elements that are not zero, one vector per dim."};
// As a method the tensor comes first.
template <class B>
Tensor where_method(const Tensor& x, const Tensor& c, const B& b) {
  return where_impl<Tensor, B>(c, x, b);
}
const auto where_m = overload_with(where, where_method<Tensor>, {"input", "condition", "other"}, kMethod);
const Op<Tensor(const Tensor&, const Tensor&, const Scalar&)> where_m_ts =
    overload_of(where_m, where_method<Scalar>);
}  // namespace

// Overloads of tensors come first: a 0-dim bound has a dtype and may want a gradient.
decltype(clamp_t) clamp_t{"clamp", clamp_impl<const OptTensor&>, kBothOut, {"input", kMin, kMax}, kClampDoc};
decltype(clamp) clamp = overload_of(clamp_t, clamp_impl<Bound>, kOutExact);
decltype(clamp_t_) clamp_t_ = in_place_of(clamp_t, clamp_inplace<const OptTensor&>, kFunction | kMethod);
decltype(clamp_) clamp_ = in_place_of(clamp_t, clamp_inplace<Bound>, kFunction | kMethod);
namespace {
const Alias clip{"clip", "clamp"};
const char kMinDoc[] = "input, but at least min.";
const char kMaxDoc[] = "input, but at most max.";
}  // namespace
const BinaryOp clamp_min{"clamp_min", clamp_min_impl<Tensor>, kBothOut, {"input", "min"}, kMinDoc},
    clamp_max{"clamp_max", clamp_max_impl<Tensor>, kBothOut, {"input", "max"}, kMaxDoc},
    clamp_min_ = in_place_of(clamp_min, clamp_min_inplace<Tensor>, kFunction | kMethod),
    clamp_max_ = in_place_of(clamp_max, clamp_max_inplace<Tensor>, kFunction | kMethod);
const BinaryTsOp clamp_min_ts = overload_of(clamp_min, clamp_min_impl<Scalar>),
                 clamp_max_ts = overload_of(clamp_max, clamp_max_impl<Scalar>),
                 clamp_min_ts_ = in_place_of(clamp_min, clamp_min_inplace<Scalar>, kFunction | kMethod),
                 clamp_max_ts_ = in_place_of(clamp_max, clamp_max_inplace<Scalar>, kFunction | kMethod);

decltype(lerp) lerp{"lerp", lerp_impl<Tensor>, kBothOut | kComplex, {"input", "end", "weight"}, kLerpDoc};
decltype(lerp_s) lerp_s = overload_of(lerp, lerp_impl<Scalar>);
decltype(lerp_) lerp_ = in_place_of(lerp, lerp_inplace<Tensor>);
decltype(lerp_s_) lerp_s_ = in_place_of(lerp, lerp_inplace<Scalar>);

#define WT_ADDC(NAME, DOC)                                     \
  decltype(NAME) NAME{#NAME,                                   \
                      addc_impl<NAME##_def>,                   \
                      kBothOut | kComplex | kWidestCuda,       \
                      {"input", "tensor1", "tensor2", kValue}, \
                      DOC};                                    \
  decltype(NAME##_) NAME##_ = in_place_of(NAME, addc_inplace<NAME##_def>)
WT_ADDC(addcmul, "input + value * tensor1 * tensor2.");
WT_ADDC(addcdiv, "input + value * tensor1 / tensor2.");

namespace {

// The same with a tensor in the number's place.
template <AddC& D, auto& op>
Tensor addc_by(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& value) {
  if (!may_stay_tensor(value, {a, b, c})) return op(a, b, c, item(value));
  return pointwise_by(D.name, D.slot, {a, b, c}, value);
}
template <AddC& D, auto& op>
Tensor addc_inplace_by(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& value) {
  if (!may_stay_tensor(value, {a, b, c})) return op(a, b, c, item(value));
  return inplace(D.inplace_name, D.slot, ResultRule::Same, a, {a, b, c, as_operand_of(value, {a, b, c})},
                 [] { return Ref<Node>(); });
}
using AddcByTensor = Op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&)>;
#define WT_ADDC_BY(NAME)                                                                           \
  const AddcByTensor NAME##_t = overload_of(NAME, addc_by<NAME##_def, NAME>, kFunction | kMethod), \
                     NAME##_t_ = in_place_of(NAME, addc_inplace_by<NAME##_def, NAME##_>)
WT_ADDC_BY(addcmul);
WT_ADDC_BY(addcdiv);

// The number before the tensors, as older programs write it.
void warn_of_order(const char* op) {
  warn(message("This overload of ", op, " is deprecated: ", op, "(input, value, tensor1, tensor2); use ", op,
               "(input, tensor1, tensor2, value=value)"));
}
template <auto& op>
Tensor addc_by_number(const Tensor& x, const Scalar& value, const Tensor& a, const Tensor& b) {
  warn_of_order(op.name);
  return op(x, a, b, value);
}
using AddcByNumber = Op<Tensor(const Tensor&, const Scalar&, const Tensor&, const Tensor&)>;
constexpr OpFacts kNumberFirst = kFunction | kMethod | kComplex | kPointwise;
const char kOlder[] = "Deprecated: the number before the tensors.";
const AddcByNumber addcmul_n{
    "addcmul", addc_by_number<addcmul>, kNumberFirst, {"input", "value", "tensor1", "tensor2"}, kOlder},
    addcdiv_n{
        "addcdiv", addc_by_number<addcdiv>, kNumberFirst, {"input", "value", "tensor1", "tensor2"}, kOlder},
    addcmul_n_ = in_place_of(addcmul_n, addc_by_number<addcmul_>),
    addcdiv_n_ = in_place_of(addcdiv_n, addc_by_number<addcdiv_>);

}  // namespace

}  // namespace warptape::ops
