// Activation functions. Each has a fused backward kernel and the differentiable composition of it.
#include "ops/elementwise/activation.h"

#include <cmath>
#include <numbers>

#include "ops/elementwise/unary.h"
#include "ops/index/gather.h"
#include "ops/index/index.h"
#include "ops/index/masked.h"
#include "ops/nn/softmax.h"
#include "ops/random/random.h"
#include "ops/reduce/reduce.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

constexpr double kSeluAlpha = 1.6732632423543772848170429916717,
                 kSeluScale = 1.0507009873554804934193349852946;

// Up to two numbers beside the input (slope; bounds; beta and threshold).
struct Numbers {
  double first = 0, second = 0;
};

struct ActivationDef {
  const char* name;
  NodeType type;
  ElementwiseSlot slot, backward_slot;
  int numbers = 0;
  bool integers = false;  // works on integers, too
};

// The numbers of an integer input are integers, so that its dtype stays.
Scalar number_for(const Tensor& x, double v) {
  check_fits(v, opmath_dtype(x.dtype()));
  return is_floating(x.dtype()) ? Scalar(v) : Scalar(static_cast<int64_t>(v));
}

Tensor launch(const char* op, ElementwiseSlot& slot, int count, const Tensor& x, const Numbers& v) {
  if (count == 0) return pointwise(op, slot, ResultRule::Same, {x});
  if (count == 1) return pointwise(op, slot, ResultRule::Same, {x, Scalar(v.first)});
  return pointwise(op, slot, ResultRule::Same, {x, number_for(x, v.first), number_for(x, v.second)});
}
Tensor launch_backward(ActivationDef& d, const Tensor& g, const Tensor& x, const Numbers& v) {
  if (d.numbers == 0) return pointwise(d.name, d.backward_slot, ResultRule::Same, {g, x});
  if (d.numbers == 1) return pointwise(d.name, d.backward_slot, ResultRule::Same, {g, x, Scalar(v.first)});
  return pointwise(d.name, d.backward_slot, ResultRule::Same, {g, x, Scalar(v.first), Scalar(v.second)});
}

void check_activation(const ActivationDef& d, const Tensor& x) {
  WT_CHECK(x.dtype() != DType::Bool && (d.integers || is_floating(x.dtype())), DtypeError, d.name,
           ": not implemented for ", x.dtype(), "; convert to a floating dtype");
}

Ref<Node> record_activation(const ActivationDef& d, const Tensor& x, const Tensor& saved, const Numbers& v) {
  Ref<Node> n = record(d.type, x);
  n->emplace<Numbers>(v);
  n->save(saved);
  return n;
}

Tensor activate(ActivationDef& d, const Tensor& x, Numbers v = {}) {
  check_activation(d, x);
  Tensor out = launch(d.name, d.slot, d.numbers, x, v);
  if (needs_grad(x)) set_history(out, record_activation(d, x, x, v));
  return out;
}

Tensor activate_inplace(ActivationDef& d, const Tensor& x, Numbers v = {}) {
  check_activation(d, x);
  auto node = [&] { return record_activation(d, x, clone_with_history(x), v); };
  if (d.numbers == 0) return inplace(d.name, d.slot, ResultRule::Same, x, {x}, node);
  if (d.numbers == 1) return inplace(d.name, d.slot, ResultRule::Same, x, {x, Scalar(v.first)}, node);
  return inplace(d.name, d.slot, ResultRule::Same, x, {x, number_for(x, v.first), number_for(x, v.second)},
                 node);
}

Tensor one(const Tensor& x) { return full({}, Scalar(1.0), {x.dtype(), x.device()}); }

}  // namespace

// SLOPE is the derivative of the function at x, with the numbers v, as differentiable ops.
#define WT_ACTIVATION(NAME, SLOT, BACKWARD_SLOT, NODE, NUMBERS, INTEGERS, ...)                          \
  namespace {                                                                                           \
  extern ActivationDef NAME##_def;                                                                      \
  void NAME##_backward(Node& n, Gradients& grads) {                                                     \
    const Tensor &g = grads[0], x = n.saved(0);                                                         \
    [[maybe_unused]] const Numbers v = n.data<Numbers>();                                               \
    if (!needs_grad(g, x)) return grads.set(0, launch_backward(NAME##_def, g, x, v));                   \
    grads.set(0, g * (__VA_ARGS__));                                                                    \
  }                                                                                                     \
  ActivationDef NAME##_def{                                                                             \
      #NAME,   {NODE, NAME##_backward}, ElementwiseSlot{SLOT}, ElementwiseSlot{BACKWARD_SLOT}, NUMBERS, \
      INTEGERS};                                                                                        \
  }

WT_ACTIVATION(silu, "silu", "silu_backward", "SiluBackward0", 0, false,
              sigmoid(x) * (1 + x * (1 - sigmoid(x))))
WT_ACTIVATION(gelu, "gelu", "gelu_backward", "GeluBackward0", 0, false,
              (erf(x * (1 / std::numbers::sqrt2)) + 1) * 0.5 +
                  x * exp(x * x * -0.5) * (std::numbers::inv_sqrtpi / std::numbers::sqrt2))
// u = sqrt(2 / pi) (x + 0.044715 x^3); gelu = x sigmoid(2 u)
Tensor gelu_tanh_slope(const Tensor& x) {
  const double k = 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  Tensor s = sigmoid(x * (x * x * 0.044715 + 1) * k);
  return s + x * s * (1 - s) * ((x * x * (3 * 0.044715) + 1) * k);
}
namespace {
Tensor mish_slope(const Tensor& x) {
  Tensor t = tanh(softplus(x, 1, 40));
  return t + x * sigmoid(x) * (1 - t * t);
}
}  // namespace
WT_ACTIVATION(gelu_tanh, "gelu_tanh", "gelu_tanh_backward", "GeluBackward0", 0, false, gelu_tanh_slope(x))
WT_ACTIVATION(mish, "mish", "mish_backward", "MishBackward0", 0, false, mish_slope(x))
WT_ACTIVATION(logsigmoid, "log_sigmoid", "log_sigmoid_backward", "LogSigmoidBackward0", 0, false, sigmoid(-x))
WT_ACTIVATION(selu, "selu", "selu_backward", "EluBackward0", 0, false,
              where_ts(le_ts(x, 0), exp(x) * kSeluAlpha, Scalar(1.0)) * kSeluScale)
WT_ACTIVATION(hardsigmoid, "hardsigmoid", "hardsigmoid_backward", "HardsigmoidBackward0", 0, false,
              logical_and(gt_ts(x, -3), lt_ts(x, 3)) * (one(x) / 6.0))
WT_ACTIVATION(hardswish, "hardswish", "hardswish_backward", "HardswishBackward0", 0, false,
              where_st(le_ts(x, -3), Scalar(0.0), where_st(ge_ts(x, 3), Scalar(1.0), x / 3 + 0.5)))
WT_ACTIVATION(softsign, "softsign", "softsign_backward", "SoftsignBackward0", 0, false,
              reciprocal(square(abs(x) + 1)) + (x - x))
WT_ACTIVATION(leaky_relu, "leaky_relu", "leaky_relu_backward", "LeakyReluBackward0", 1, false,
              where(gt_ts(x, 0), one(x), one(x) * v.first))
WT_ACTIVATION(elu, "elu", "elu_backward", "EluBackward0", 1, false,
              where_st(gt_ts(x, 0), Scalar(1.0), exp(x) * v.first))
WT_ACTIVATION(celu, "celu", "celu_backward", "CeluBackward0", 1, false,
              where_st(gt_ts(x, 0), Scalar(1.0), exp(x / v.first)))
WT_ACTIVATION(softplus, "softplus", "softplus_backward", "SoftplusBackward0", 2, false,
              where_st(gt_ts(x* v.first, v.second), Scalar(1.0), sigmoid(x* v.first)))
// A NaN passes.
WT_ACTIVATION(hardshrink, "hardshrink", "shrink_backward", "HardshrinkBackward0", 1, false,
              logical_not(le_ts(abs(detach(x)), v.first)))
WT_ACTIVATION(softshrink, "softshrink", "shrink_backward", "SoftshrinkBackward0", 1, false,
              logical_not(le_ts(abs(detach(x)), v.first)))
WT_ACTIVATION(hardtanh, "hardtanh", "hardtanh_backward", "HardtanhBackward0", 2, true,
              logical_and(gt_ts(x, v.first), lt_ts(x, v.second)))

// ---- relu keeps its output, threshold its input ----
namespace {
ElementwiseSlot threshold_backward_slot{"threshold_backward"};
Tensor threshold_gradient(const Tensor& g, const Tensor& x, double limit) {
  if (needs_grad(g, x)) return g * gt_ts(x, limit);
  return pointwise("threshold_backward", threshold_backward_slot, ResultRule::Same, {g, x, Scalar(limit)});
}
void check_no_bool(const char* op, const Tensor& x) {
  WT_CHECK(x.dtype() != DType::Bool, DtypeError, op,
           ": Boolean inputs not supported; convert to an integer dtype");
}
void threshold_node_backward(Node& n, Gradients& g) {
  g.set(0, threshold_gradient(g[0], n.saved(0), n.data<Numbers>().first));
}
ActivationDef threshold_def{"threshold",
                            {"ThresholdBackward0", threshold_node_backward},
                            ElementwiseSlot{"threshold"},
                            ElementwiseSlot{"threshold_backward"},
                            2,
                            true};
}  // namespace
WT_UNARY_BACKWARD(relu, "ReluBackward0", Same, Output, check_no_bool, threshold_gradient(g, s, 0))

namespace {
template <ActivationDef& D>
Tensor plain(const Tensor& x, bool inplace) {
  return inplace ? activate_inplace(D, x) : activate(D, x);
}
template <ActivationDef& D>
Tensor with_number(const Tensor& x, double a, bool inplace) {
  return inplace ? activate_inplace(D, x, {a}) : activate(D, x, {a});
}
template <ActivationDef& D>
Tensor with_numbers(const Tensor& x, double a, double b, bool inplace) {
  return inplace ? activate_inplace(D, x, {a, b}) : activate(D, x, {a, b});
}
// The same without the flag: always in place, or never.
template <ActivationDef& D, bool kInto>
Tensor fixed(const Tensor& x) {
  return plain<D>(x, kInto);
}
template <ActivationDef& D, bool kInto>
Tensor fixed_number(const Tensor& x, double a) {
  return with_number<D>(x, a, kInto);
}
template <ActivationDef& D, bool kInto>
Tensor fixed_numbers(const Tensor& x, double a, double b) {
  return with_numbers<D>(x, a, b, kInto);
}
Tensor gelu_impl(const Tensor& x, std::string_view approximate) {
  WT_CHECK(approximate == "none" || approximate == "tanh", Error,
           "gelu: approximate argument must be either none or tanh, got '", approximate, "'");
  return activate(approximate == "tanh" ? gelu_tanh_def : gelu_def, x);
}
Tensor celu_impl(const Tensor& x, double alpha, bool inplace) {
  WT_CHECK(alpha != 0, Error, "celu: ZeroDivisionError: alpha cannot be 0");
  return with_number<celu_def>(x, alpha, inplace);
}
Tensor hardtanh_impl(const Tensor& x, double lo, double hi, bool inplace) {
  WT_CHECK(lo <= hi, ValueError, "hardtanh: min_val cannot be greater than max_val, got ", lo, " and ", hi);
  return with_numbers<hardtanh_def>(x, lo, hi, inplace);
}
Tensor softshrink_impl(const Tensor& x, double lambd) {
  WT_CHECK(lambd >= 0, Error, "softshrink: lambda must be greater or equal to 0, but found to be ", lambd);
  return fixed_number<softshrink_def, false>(x, lambd);
}
Tensor relu6_impl(const Tensor& x, bool inplace) { return with_numbers<hardtanh_def>(x, 0, 6, inplace); }
Tensor relu_nn(const Tensor& x, bool inplace) {
  return inplace ? unary_inplace<relu_def>(x) : unary_impl<relu_def>(x);
}
Tensor softplus_impl(const Tensor& x, double beta, double limit) {
  return activate(softplus_def, x, {beta, limit});
}

// ---- composed of elementwise ops ----

Tensor tanhshrink_impl(const Tensor& x) { return x - tanh(x); }

// [N, C, *] and a weight of one element or C.
Tensor prelu_impl(const Tensor& x, const Tensor& weight) {
  WT_CHECK(x.dtype() == weight.dtype(), DtypeError, "prelu: Type promoting not supported. Got ", x.dtype(),
           " and ", weight.dtype());
  if (weight.numel() != 1) {
    WT_CHECK(x.ndim() > 0, ShapeError, "prelu: Not allow zero-dim input tensor with a weight of ",
             weight.numel(), " elements");
    const int64_t channels = x.ndim() > 1 ? x.sizes()[1] : 1;
    WT_CHECK(weight.numel() == channels, ShapeError,
             "prelu: Mismatch of parameter numbers and input channel size. Found parameter numbers = ",
             weight.numel(), " and channel size = ", channels);
  }
  WT_CHECK(weight.ndim() <= 1, ShapeError,
           "prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = ", weight.ndim());
  Shape row(x.sizes().size(), 1);
  if (x.ndim() > 1) row[1] = weight.numel();
  return where(gt_ts(x, 0), x, x * (weight.ndim() == x.ndim() ? weight : reshape(weight, row)));
}

Tensor glu_impl(const Tensor& x, int64_t dim) {
  WT_CHECK(x.ndim() > 0, ShapeError, "glu does not support 0-dimensional tensors");
  dim = wrap_dim(dim, x.ndim(), "glu");
  const int64_t n = x.sizes()[dim];
  WT_CHECK(n % 2 == 0, ShapeError, "glu: Halving dimension must be even, but dimension ", dim, " is size ",
           n);
  return narrow(x, dim, 0, n / 2) * sigmoid(narrow(x, dim, n / 2, n / 2));
}

// On the host one number, of 53 bits, for each element that is not above 0, as in PyTorch.
Tensor rrelu_slope(const Tensor& x, double lower, double upper) {
  Tensor below = le_ts(x, 0);
  if (!x.device().is_host())
    return where_ts(below, draw_uniform(x.sizes(), options_of(x), lower, upper), Scalar(1.0));
  const Shape count{nonzero(below).sizes()[0]};
  Tensor drawn = draw_uniform(count, {DType::Float64, x.device()}, lower, upper);
  return masked_scatter(full(x.sizes(), 1, options_of(x)), below, raw_cast(drawn, x.dtype()));
}

// In training a slope is drawn for each element, else it is their mean.
Tensor rrelu_impl(const Tensor& x, double lower, double upper, bool training, bool inplace) {
  WT_CHECK(lower <= upper, Error,
           "rrelu: Lower bound should be less than or equal to the upper bound, got lower=", lower,
           " and upper=", upper);
  if (!training) return with_number<leaky_relu_def>(x, (lower + upper) / 2, inplace);
  check_floating("rrelu", x);
  Tensor slope = rrelu_slope(detach(x), lower, upper);
  return inplace ? mul_(x, slope) : x * slope;
}
Tensor root_rrelu(const Tensor& x, double lower, double upper, bool training) {
  return rrelu_impl(x, lower, upper, training, false);
}
Tensor rrelu_into(const Tensor& x, double lower, double upper, bool training) {
  return rrelu_impl(x, lower, upper, training, true);
}

// Numbers without a kernel of their own.
Tensor softsign_impl(const Tensor& x) {
  return is_floating(x.dtype()) || x.dtype() == DType::Bool ? fixed<softsign_def, false>(x)
                                                            : x / (abs(x) + 1);
}
Tensor silu_impl(const Tensor& x, bool inplace) {
  if (!is_complex(x.dtype())) return plain<silu_def>(x, inplace);
  return inplace ? mul_(x, sigmoid(clone_with_history(x))) : x * sigmoid(x);
}

Tensor softmin_impl(const Tensor& x, std::optional<int64_t> dim, int64_t, std::optional<DType> dtype) {
  if (!dim)
    warn(
        "Implicit dimension choice for softmin has been deprecated. Change the call to include dim=X as an "
        "argument.");
  const int64_t implied = x.ndim() == 0 || x.ndim() == 1 || x.ndim() == 3 ? 0 : 1;
  return softmax(-x, dim.value_or(implied), dtype);
}

// A sample of the categories along dim, relaxed to a softmax at temperature tau (Jang et al. 2017).
Tensor gumbel_softmax_impl(const Tensor& logits, double tau, bool hard, double eps, int64_t dim) {
  check_floating("gumbel_softmax", logits);
  if (eps != 1e-10) warn("`eps` parameter is deprecated and has no effect.");
  Tensor noise = -log(draw_exponential(logits.sizes(), options_of(logits)));
  Tensor soft = softmax((logits + noise) / tau, dim, std::nullopt);
  if (!hard) return soft;
  Tensor sample = detach(soft);
  Tensor one_hot = scatter_value(zeros(soft.sizes(), options_of(soft)), dim, argmax(sample, dim, true), 1.0);
  return one_hot - sample + soft;
}

const Arg kSelf{"input", kWritten}, kSlope{"negative_slope", 0.01}, kAlpha{"alpha", 1.0},
    kInplace{"inplace", false, kSwitch | kInPlace}, kX{"input", kUpdated};
const Arg kMinVal{"min_val", -1.0}, kMaxVal{"max_val", 1.0};
}  // namespace

decltype(relu) relu{"relu",
                    unary_impl<relu_def>,
                    kFunction | kMethod | kPointwise | kIdempotent,
                    {"input"},
                    "max(input, 0)."};
decltype(relu_) relu_ =
    in_place_of(relu, unary_inplace<relu_def>, kFunction | kMethod | kNN, "relu in place.");
decltype(gelu) gelu{"gelu",
                    gelu_impl,
                    kNN | kOut | kOutExact | kPointwise,
                    {"input", {"approximate", "none", kKeywordOnly}},
                    "input * Phi(input), Phi the normal distribution's; or its tanh approximation."};
decltype(logsigmoid) logsigmoid{"logsigmoid",
                                fixed<logsigmoid_def, false>,
                                kNN | kOut | kOutExact | kPointwise,
                                {"input"},
                                "log(sigmoid(input))."};
decltype(softsign) softsign{
    "softsign", softsign_impl, kNN | kComplex | kPointwise, {"input"}, "input / (1 + |input|)."};
decltype(softplus) softplus{
    "softplus",
    softplus_impl,
    kNN | kOut | kOutExact | kFloat32Cuda | kPointwise,
    {"input", {"beta", 1.0}, {"threshold", 20.0}},
    "log(1 + exp(beta * input)) / beta; input itself where beta * input > threshold."};
decltype(silu) silu{
    "silu", silu_impl, kNN | kComplex | kPointwise, {kX, kInplace}, "input * sigmoid(input)."};
decltype(mish) mish{
    "mish", plain<mish_def>, kNN | kPointwise, {kX, kInplace}, "input * tanh(softplus(input))."};
decltype(selu) selu{
    "selu", plain<selu_def>, kNN | kPointwise, {kX, kInplace}, "Scaled elu for self-normalising networks."};
decltype(hardsigmoid) hardsigmoid{"hardsigmoid",
                                  plain<hardsigmoid_def>,
                                  kNN | kPointwise,
                                  {kX, kInplace},
                                  "clamp(input / 6 + 1 / 2, 0, 1)."};
decltype(hardswish) hardswish{
    "hardswish", plain<hardswish_def>, kNN | kPointwise, {kX, kInplace}, "input * hardsigmoid(input)."};
decltype(relu6) relu6{"relu6", relu6_impl, kNN | kPointwise, {kX, kInplace}, "clamp(input, 0, 6)."};
decltype(leaky_relu) leaky_relu{"leaky_relu",
                                with_number<leaky_relu_def>,
                                kNN | kPointwise,
                                {kX, kSlope, kInplace},
                                "input where positive, else negative_slope * input."};
decltype(elu) elu{"elu",
                  with_number<elu_def>,
                  kNN | kPointwise,
                  {kX, kAlpha, kInplace},
                  "input where positive, else alpha * expm1(input)."};
decltype(celu) celu{"celu",
                    celu_impl,
                    kNN | kPointwise,
                    {kX, kAlpha, kInplace},
                    "input where positive, else alpha * expm1(input / alpha)."};
decltype(hardtanh) hardtanh{"hardtanh",
                            hardtanh_impl,
                            kNN | kPointwise,
                            {kX, kMinVal, kMaxVal, kInplace},
                            "clamp(input, min_val, max_val)."};
decltype(threshold) threshold{"threshold",
                              with_numbers<threshold_def>,
                              kNN | kPointwise,
                              {kX, "threshold", "value", kInplace},
                              "input where above threshold, else value."};

decltype(nn_relu) nn_relu{"relu", relu_nn, kNN | kPointwise | kIdempotent, {kX, kInplace}, "max(input, 0)."};

namespace {
using PlainOp = Op<Tensor(const Tensor&)>;
using NumberOp = Op<Tensor(const Tensor&, double)>;
using NumbersOp = Op<Tensor(const Tensor&, double, double)>;
const PlainOp root_selu = overload_of(selu, fixed<selu_def, false>, kFunction);
const PlainOp selu_into = in_place_of(selu, fixed<selu_def, true>, kFunction | kNN, "selu in place.");
const NumberOp celu_into = in_place_of(celu, fixed_number<celu_def, true>, kFunction | kNN, "celu in place.");
const NumberOp root_celu = overload_of(celu, fixed_number<celu_def, false>, kFunction);
const NumberOp elu_into = in_place_of(elu, fixed_number<elu_def, true>, kNN, "elu in place.");
const NumberOp leaky_into =
    in_place_of(leaky_relu, fixed_number<leaky_relu_def, true>, kNN, "leaky_relu in place.");
const NumbersOp hardtanh_into =
    in_place_of(hardtanh, fixed_numbers<hardtanh_def, true>, kNN, "hardtanh in place.");
const NumbersOp threshold_into =
    in_place_of(threshold, fixed_numbers<threshold_def, true>, kFunction | kNN, "threshold in place.");
const NumbersOp root_threshold = overload_of(threshold, fixed_numbers<threshold_def, false>, kFunction);

const NumberOp hardshrink{"hardshrink",
                          fixed_number<hardshrink_def, false>,
                          kFunction | kMethod | kNN | kOut | kPointwise,
                          {"input", {"lambd", 0.5}},
                          "input, 0 between -lambd and lambd."};
const NumberOp softshrink{"softshrink",
                          softshrink_impl,
                          kNN | kOut | kPointwise,
                          {"input", {"lambd", 0.5}},
                          "input moved towards 0 by lambd, 0 where it would cross."};
const PlainOp tanhshrink{
    "tanhshrink", tanhshrink_impl, kNN | kComplex | kPointwise, {"input"}, "input - tanh(input)."};
const Op<Tensor(const Tensor&, const Tensor&)> prelu{
    "prelu",
    prelu_impl,
    kFunction | kMethod | kNN | kLower,
    {"input", "weight"},
    "input [N, C, *] where positive, else weight * input; weight has one element or C."};
const Op<Tensor(const Tensor&, int64_t)> glu{"glu",
                                             glu_impl,
                                             kNN | kAlongDims,
                                             {"input", Arg::integer("dim", -1, kDimIndex)},
                                             "The first half along dim times the sigmoid of the second."};
const Arg kLower{"lower", 1.0 / 8}, kUpper{"upper", 1.0 / 3}, kTraining{"training", false, kDraws};
const char kRreluDoc[] =
    "input where positive, else input times a slope: in training one drawn for each element from [lower, "
    "upper), else their mean.";
const Op<Tensor(const Tensor&, double, double, bool, bool)> nn_rrelu{
    "rrelu", rrelu_impl, kNN | kRandom, {kX, kLower, kUpper, kTraining, kInplace}, kRreluDoc};
const Op<Tensor(const Tensor&, double, double, bool)> rrelu = overload_of(nn_rrelu, root_rrelu, kFunction),
                                                      rrelu_ = in_place_of(nn_rrelu, rrelu_into,
                                                                           kFunction | kNN | kPointwise,
                                                                           "rrelu in place.");
const Op<Tensor(const Tensor&, std::optional<int64_t>, int64_t, std::optional<DType>)> softmin{
    "softmin",
    softmin_impl,
    kNN | kComplex | kAlongDims,
    {"input", {"dim", none, kDimIndex}, Arg::integer("_stacklevel", 3), {"dtype", none}},
    "softmax(-input) over dim."};
const Op<Tensor(const Tensor&, double, bool, double, int64_t)> gumbel_softmax{
    "gumbel_softmax",
    gumbel_softmax_impl,
    kNN | kRandom,
    {"logits", {"tau", 1.0}, {"hard", false}, {"eps", 1e-10}, Arg::integer("dim", -1)},
    "A sample of the categories along dim, relaxed to a softmax at temperature tau. With hard the value is "
    "one-hot and the gradient that of the relaxed sample."};
}  // namespace

}  // namespace warptape::ops
