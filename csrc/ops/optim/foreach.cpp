// Ops over lists of tensors (_foreach_*): for each item what the op of one tensor does, gradients included.
// Adding, multiplying and norms of floating lists run in one launch (optim.cpp).
#include "op/forms.h"
#include "ops/kernel_inputs.h"
#include "ops/linalg/matmul.h"
#include "ops/optim/optim.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"

namespace warptape::ops {
namespace {

using Tensors = std::vector<Tensor>;
constexpr OpFacts kList = kFunction | kComplex | kMixedDevices;

// ---- one mechanism -------------------------------------------------------------------------------------

// What call i gets of an argument: the item of a list, else all of it.
template <class T>
decltype(auto) item_of(const T& x, size_t i) {
  if constexpr (std::is_same_v<T, TensorList> || std::is_same_v<T, ScalarList>)
    return (x[i]);
  else
    return (x);
}

template <class T>
void check_length(const char* op, size_t n, const T& x) {
  if constexpr (std::is_same_v<T, TensorList>) {
    // An empty list is one of numbers in PyTorch.
    WT_CHECK(!x.empty(), ShapeError, op, ": Tensor list must have same number of elements as scalar list.",
             " Got ", n, " and 0.");
    WT_CHECK(x.size() == n, ShapeError, op, ": Tensor lists must have the same number of tensors, got ", n,
             " and ", x.size());
  } else if constexpr (std::is_same_v<T, ScalarList>)
    WT_CHECK(x.size() == n, ShapeError, op, ": Tensor list must have same number of elements as scalar list.",
             " Got ", n, " and ", x.size());
  else if constexpr (std::is_same_v<T, Tensor>)
    WT_CHECK(x.numel() == 1, ShapeError, op, ": scalar tensor expected to be 0 dim but it has ", x.ndim(),
             " dimensions and ", x.numel(), " elements.");
}
template <class... A>
void check_lists(const char* op, TensorList self, const A&... args) {
  WT_CHECK(!self.empty(), ShapeError, op, ": Tensor list must have at least one tensor.");
  (check_length(op, self.size(), args), ...);
}

// F has `name`, `of`, which gives the result for one item, `into`, which is the same in place, and where the
// op has one `at_once`, which does the whole list in place or says that it does not.
template <class F, class... A>
Tensors each(TensorList self, A... args) {
  check_lists(F::name, self, args...);
  Tensors out;
  out.reserve(self.size());
  for (size_t i = 0; i < self.size(); ++i) out.push_back(F::of(self[i], item_of(args, i)...));
  return out;
}
template <class F, class... A>
void each_(TensorList self, A... args) {
  check_lists(F::name, self, args...);
  if constexpr (requires { F::at_once(self, args...); })
    if (F::at_once(self, args...)) return;
  for (size_t i = 0; i < self.size(); ++i) F::into(self[i], item_of(args, i)...);
}

// The op and its in-place form; `rest` are the arguments behind self.
template <class F, class... A>
struct Both {
  template <class... More>
  explicit Both(const char* doc, const More&... rest)
      : out(list_form_name(F::name, nullptr), each<F, A...>, kList, {Arg("self"), Arg(rest)...}, doc),
        in_place(in_place_of(out, each_<F, A...>, kList)) {}
  // Over lists what `one`, which takes a tensor alone, is of one.
  Both(const OpInfo* one, const char* doc)
      : out(list_form_name(F::name, one), each<F, A...>, kList, {Arg("self")}, doc),
        in_place(in_place_of(out, each_<F, A...>, kList)) {}
  // Another overload of `of`, with the same arguments or with others.
  explicit Both(const OpInfo& of)
      : out(overload_of(of, each<F, A...>)), in_place(in_place_of(of, each_<F, A...>, kList)) {}
  template <class... More>
  Both(const OpInfo& of, const More&... rest)
      : out(overload_with(of, each<F, A...>, {Arg("self"), Arg(rest)...})),
        in_place(in_place_of(out, each_<F, A...>, kList)) {}
  Op<Tensors(TensorList, A...)> out;
  Op<void(TensorList, A...)> in_place;
};

// ---- arithmetic ----------------------------------------------------------------------------------------

#define WT_NAME(NAME) static constexpr const char* name = "_foreach_" NAME

struct Add {
  WT_NAME("add");
  static Tensor of(const Tensor& x, const Tensor& y, const Scalar& alpha) { return add(x, y, alpha); }
  static Tensor of(const Tensor& x, const Scalar& y) { return add_ts(x, y, 1); }
  static Tensor into(const Tensor& x, const Tensor& y, const Scalar& alpha) { return add_(x, y, alpha); }
  static Tensor into(const Tensor& x, const Scalar& y) { return add_ts_(x, y, 1); }
  static bool at_once(TensorList self, TensorList other, const Scalar& alpha) {
    return !alpha.is_complex() && add_at_once(self, other, alpha.to_double());
  }
  static bool at_once(TensorList self, const Scalar& y) {
    return !y.is_complex() && add_at_once(self, {}, y.to_double());
  }
};
struct Sub {
  WT_NAME("sub");
  static Tensor of(const Tensor& x, const Tensor& y, const Scalar& alpha) { return sub(x, y, alpha); }
  static Tensor of(const Tensor& x, const Scalar& y) { return sub_ts(x, y, 1); }
  static Tensor into(const Tensor& x, const Tensor& y, const Scalar& alpha) { return sub_(x, y, alpha); }
  static Tensor into(const Tensor& x, const Scalar& y) { return sub_ts_(x, y, 1); }
};
struct Mul {
  WT_NAME("mul");
  static Tensor of(const Tensor& x, const Tensor& y) { return mul(x, y); }
  static Tensor of(const Tensor& x, const Scalar& y) { return mul_ts(x, y); }
  static Tensor into(const Tensor& x, const Tensor& y) { return mul_(x, y); }
  static Tensor into(const Tensor& x, const Scalar& y) { return mul_ts_(x, y); }
  static bool at_once(TensorList self, const Scalar& y) {
    return !y.is_complex() && scale_at_once(self, y.to_double(), Tensor());
  }
  static bool at_once(TensorList self, const Tensor& y) { return scale_at_once(self, 1, y); }
};
struct Div {
  WT_NAME("div");
  static Tensor of(const Tensor& x, const Tensor& y) { return div(x, y); }
  static Tensor of(const Tensor& x, const Scalar& y) { return div_ts(x, y); }
  static Tensor into(const Tensor& x, const Tensor& y) { return div_(x, y); }
  static Tensor into(const Tensor& x, const Scalar& y) { return div_ts_(x, y); }
};
struct ClampMin {
  WT_NAME("clamp_min");
  static Tensor of(const Tensor& x, const Tensor& low) { return clamp_min(x, low); }
  static Tensor of(const Tensor& x, const Scalar& low) { return clamp_min_ts(x, low); }
  static Tensor into(const Tensor& x, const Tensor& low) { return clamp_min_(x, low); }
  static Tensor into(const Tensor& x, const Scalar& low) { return clamp_min_ts_(x, low); }
};
struct ClampMax {
  WT_NAME("clamp_max");
  static Tensor of(const Tensor& x, const Tensor& high) { return clamp_max(x, high); }
  static Tensor of(const Tensor& x, const Scalar& high) { return clamp_max_ts(x, high); }
  static Tensor into(const Tensor& x, const Tensor& high) { return clamp_max_(x, high); }
  static Tensor into(const Tensor& x, const Scalar& high) { return clamp_max_ts_(x, high); }
};
struct Pow {
  WT_NAME("pow");
  static Tensor of(const Tensor& x, const Tensor& y) { return pow(x, y); }
  static Tensor of(const Tensor& x, const Scalar& y) { return pow_ts(x, y); }
  static Tensor into(const Tensor& x, const Tensor& y) { return pow_(x, y); }
  static Tensor into(const Tensor& x, const Scalar& y) { return pow_ts_(x, y); }
};
struct Lerp {
  WT_NAME("lerp");
  static Tensor of(const Tensor& x, const Tensor& end, const Tensor& w) { return lerp(x, end, w); }
  static Tensor of(const Tensor& x, const Tensor& end, const Scalar& w) { return lerp_s(x, end, w); }
  static Tensor into(const Tensor& x, const Tensor& end, const Tensor& w) { return lerp_(x, end, w); }
  static Tensor into(const Tensor& x, const Tensor& end, const Scalar& w) { return lerp_s_(x, end, w); }
};
template <class F>
struct Pointwise {
  // Of the form whose numbers are packed in a tensor of one dim.
  static Tensors packed(TensorList self, TensorList a, TensorList b, const Tensor& scalars) {
    return each<F, TensorList, TensorList, ScalarList>(self, a, b, unpacked(self, scalars));
  }
  static void packed_(TensorList self, TensorList a, TensorList b, const Tensor& scalars) {
    each_<F, TensorList, TensorList, ScalarList>(self, a, b, unpacked(self, scalars));
  }

 private:
  static std::vector<Scalar> unpacked(TensorList self, const Tensor& scalars) {
    WT_CHECK(scalars.ndim() == 1, ShapeError, F::name,
             ": Expected packed scalar Tensor to be of dimension 1. Got ", scalars.ndim(), " instead.");
    const auto n = static_cast<int64_t>(self.size());
    WT_CHECK(scalars.numel() == n, ShapeError, F::name,
             ": Expected length of scalars to match input of length ", n, " but got ", scalars.numel(),
             " instead.");
    std::vector<Scalar> values;
    for (int64_t i = 0; i < n; ++i)
      values.push_back(item(alias(scalars, Shape{}, Shape{}, i * scalars.stride(0))));
    return values;
  }
};
struct AddCMul {
  WT_NAME("addcmul");
  static Tensor of(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& value) {
    return addcmul(x, a, b, value);
  }
  static Tensor into(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& value) {
    return addcmul_(x, a, b, value);
  }
};
struct AddCDiv {
  WT_NAME("addcdiv");
  static Tensor of(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& value) {
    return addcdiv(x, a, b, value);
  }
  static Tensor into(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& value) {
    return addcdiv_(x, a, b, value);
  }
};

// ---- what has one list ---------------------------------------------------------------------------------

template <const auto& OP>
Tensor apply(const Tensor& x) {
  return OP(x);
}
template <>
Tensor apply<abs>(const Tensor& x) {
  return is_complex(x.dtype()) ? complex_abs(x) : abs(x);
}
template <>
Tensor apply<round>(const Tensor& x) {
  return round(x, 0);
}
template <>
Tensor apply<round_>(const Tensor& x) {
  return round_(x, 0);
}

struct Norm {
  static constexpr const char* name = "_foreach_norm";
  static Tensor of(const Tensor& x, const Scalar& ord, std::optional<DType> dtype) {
    return vector_norm(x, ord.to_double(), {}, false, dtype);
  }
};
Tensors norms(TensorList self, const Scalar& ord, std::optional<DType> dtype) {
  check_lists(Norm::name, self);
  if (!dtype)
    if (auto out = norms_at_once(self, ord.to_double())) return *out;
  return each<Norm, const Scalar&, std::optional<DType>>(self, ord, dtype);
}
struct PowSum {
  static constexpr const char* name = "_foreach_powsum";
  static Tensor of(const Tensor& x, const Scalar& ord, std::optional<DType> dtype) {
    return sum(pow_ts(apply<abs>(x), ord), {}, false, dtype);
  }
};
struct Max {
  static constexpr const char* name = "_foreach_max";
  static Tensor of(const Tensor& x) { return amax(x, {}, false); }
};
struct MatMul {
  static constexpr const char* name = "_foreach_mm";
  static Tensor of(const Tensor& x, const Tensor& y) { return mm(x, y); }
};
struct Clone {
  static constexpr const char* name = "_foreach_clone";
  static Tensor of(const Tensor& x) { return clone(x); }
};
Tensors pow_of_number(const Scalar& self, TensorList exponent) {
  check_lists(Pow::name, exponent);
  Tensors out;
  for (const Tensor& x : exponent) out.push_back(pow_st(self, x));
  return out;
}
void copy_lists(TensorList self, TensorList src, bool non_blocking) {
  check_lists("_foreach_copy_", self, src);
  for (size_t i = 0; i < self.size(); ++i) copy_(self[i], src[i], non_blocking);
}
void zero_list(TensorList self) {
  check_lists("_foreach_zero_", self);
  for (const Tensor& x : self) zero_(x);
}

// ---- declarations: lists before numbers, which a 0-dim tensor is too ------------------------------------

// For F's second operand: a list of tensors, one number for all, a list of numbers.
template <class F>
struct Arithmetic {
  explicit Arithmetic(const char* doc)
      : of_lists(doc, "other"), of_number(of_lists.out, "scalar"), of_numbers(of_lists.out, "scalars") {}
  explicit Arithmetic(const OpInfo& of) : of_lists(of), of_number(of, "scalar"), of_numbers(of, "scalars") {}
  Both<F, TensorList> of_lists;
  Both<F, const Scalar&> of_number;
  Both<F, ScalarList> of_numbers;
};

const Arg kAlpha = Arg::integer("alpha", 1, kKeywordOnly);
const Both<Add, TensorList, const Scalar&> add_lists(
    "Adds alpha * other[i], or a number, to each tensor of a list.", "other", kAlpha);
const Both<Add, const Tensor&, const Scalar&> add_tensor(add_lists.out);
const Both<Add, const Scalar&> add_number(add_lists.out, "scalar");
const Both<Add, ScalarList> add_numbers(add_lists.out, "scalars");
const Both<Sub, TensorList, const Scalar&> sub_lists(
    "Subtracts alpha * other[i], or a number, from each tensor of a list.", "other", kAlpha);
const Both<Sub, const Scalar&> sub_number(sub_lists.out, "scalar");
const Both<Sub, ScalarList> sub_numbers(sub_lists.out, "scalars");
const Both<Mul, const Tensor&> mul_tensor("Multiplies each tensor of a list by other[i], or by a number.",
                                          "other");
const Arithmetic<Mul> mul_others(mul_tensor.out);
const Both<Div, const Tensor&> div_tensor("Divides each tensor of a list by other[i], or by a number.",
                                          "other");
const Arithmetic<Div> div_others(div_tensor.out);
const Arithmetic<ClampMin> clamp_min_others("The larger of each element and other[i], or a number.");
const Alias maximum_alias{"_foreach_maximum", "_foreach_clamp_min"};
const Arithmetic<ClampMax> clamp_max_others("The smaller of each element and other[i], or a number.");
const Alias minimum_alias{"_foreach_minimum", "_foreach_clamp_max"};
const Both<Pow, TensorList> pow_lists(
    "Each tensor of a list to the power exponent[i], or to that of a number.", "exponent");
const Both<Pow, const Scalar&> pow_by_number(pow_lists.out);
const Both<Pow, ScalarList> pow_by_numbers(pow_lists.out);
const Op<Tensors(const Scalar&, TensorList)> pow_number =
    overload_of(pow_lists.out, pow_of_number, {}, "A number to the power of each tensor.");
const Both<Lerp, TensorList, TensorList> lerp_lists(
    "self[i] + weight * (tensors1[i] - self[i]) for lists of tensors.", "tensors1", "weights");
const Both<Lerp, TensorList, const Scalar&> lerp_number(lerp_lists.out, "tensors1", "weight");
const Both<Lerp, TensorList, ScalarList> lerp_numbers(lerp_number.out);

template <class F>
struct PointwiseForms {
  explicit PointwiseForms(const char* doc)
      : of_packed(list_form_name(F::name, nullptr), Pointwise<F>::packed, kList,
                  {"self", "tensor1", "tensor2", "scalars"}, doc),
        in_place_packed(in_place_of(of_packed, Pointwise<F>::packed_, kList)),
        of_number(of_packed, "tensor1", "tensor2", Arg::integer("value", 1)),
        of_numbers(of_packed) {}
  Op<Tensors(TensorList, TensorList, TensorList, const Tensor&)> of_packed;
  Op<void(TensorList, TensorList, TensorList, const Tensor&)> in_place_packed;
  Both<F, TensorList, TensorList, const Scalar&> of_number;
  Both<F, TensorList, TensorList, ScalarList> of_numbers;
};
const PointwiseForms<AddCMul> addcmul_forms("self[i] + value * tensor1[i] * tensor2[i].");
const PointwiseForms<AddCDiv> addcdiv_forms("self[i] + value * tensor1[i] / tensor2[i].");

#define WT_EACH(NAME)                                                      \
  struct Each_##NAME {                                                     \
    WT_NAME(#NAME);                                                        \
    static Tensor of(const Tensor& x) { return apply<ops::NAME>(x); }      \
    static Tensor into(const Tensor& x) { return apply<ops::NAME##_>(x); } \
  };                                                                       \
  const Both<Each_##NAME> each_##NAME(&ops::NAME, #NAME " of each tensor of a list.")
WT_EACH(abs);
WT_EACH(acos);
WT_EACH(asin);
WT_EACH(atan);
WT_EACH(ceil);
WT_EACH(cos);
WT_EACH(cosh);
WT_EACH(erf);
WT_EACH(erfc);
WT_EACH(exp);
WT_EACH(expm1);
WT_EACH(floor);
WT_EACH(frac);
WT_EACH(lgamma);
WT_EACH(log);
WT_EACH(log10);
WT_EACH(log1p);
WT_EACH(log2);
WT_EACH(neg);
WT_EACH(reciprocal);
WT_EACH(round);
WT_EACH(rsqrt);
WT_EACH(sigmoid);
WT_EACH(sign);
WT_EACH(sin);
WT_EACH(sinh);
WT_EACH(sqrt);
WT_EACH(tan);
WT_EACH(tanh);
WT_EACH(trunc);

const Op<Tensors(TensorList)> max_list{
    list_form_name(Max::name, nullptr), each<Max>, kList, {"self"}, "The maximum of each tensor, 0-dim."};
const Op<Tensors(TensorList)> clone_list{
    list_form_name(Clone::name, nullptr), each<Clone>, kList, {"self"}, "A copy of each tensor."};
const Op<Tensors(TensorList, TensorList)> mm_lists{list_form_name(MatMul::name, nullptr),
                                                   each<MatMul, TensorList>,
                                                   kList,
                                                   {"self", "mat2"},
                                                   "self[i] @ mat2[i] for lists of matrices."};
const Op<Tensors(TensorList, const Scalar&, std::optional<DType>)> powsum_list{
    list_form_name(PowSum::name, nullptr),
    each<PowSum, const Scalar&, std::optional<DType>>,
    kList,
    {"self", Arg::integer("ord", 2), {"dtype", none}},
    "The sum of abs(x)**ord over each tensor, 0-dim."};
const Op<Tensors(TensorList, const Scalar&, std::optional<DType>)> norm_list{
    list_form_name(Norm::name, nullptr),
    norms,
    kList,
    {"self", Arg::integer("ord", 2), {"dtype", none}},
    "The norm of each tensor, 0-dim."};
const Op<void(TensorList, TensorList, bool)> copy_list{list_form_name("_foreach_copy_", nullptr),
                                                       copy_lists,
                                                       kList,
                                                       {{"self", kWritten}, "src", {"non_blocking", false}},
                                                       "Copies src[i] into self[i]."};
const Op<void(TensorList)> zero_each{list_form_name("_foreach_zero_", nullptr),
                                     zero_list,
                                     kList,
                                     {{"self", kWritten}},
                                     "Fills each tensor with zeros."};

}  // namespace
}  // namespace warptape::ops
