// Losses element by element. Forward is one launch, formula and sum together; backward is one elementwise
// launch, or differentiable ops where the gradient is itself recorded. Both take targets of another shape or
// dtype as elementwise ops do.
#include "ops/nn/regression.h"

#include "kernels/nn/regression.h"
#include "op/constant.h"
#include "op/forms.h"
#include "ops/elementwise/activation.h"
#include "ops/kernel_inputs.h"
#include "ops/reduce/reduce.h"

namespace warptape::ops {
namespace {

struct LossDef {
  const char* name;
  NodeType type;
  ElementwiseSlot slot, backward_slot;
  kernels::Slot<kernels::SumLossFn> sum_slot;
  bool numbered = false;  // takes a number (beta, delta) after the target
  // d loss / d input of one element, as differentiable ops; that of the target is its opposite.
  Tensor (*slope)(const Tensor& difference, double number) = nullptr;
};

struct LossData {
  double factor;  // of every element's loss: 1 over their number for a mean
  double number;
};

void check_input(const char* op, const Tensor& x) {
  WT_CHECK(is_floating(x.dtype()), NotImplementedError, op, ": expected a floating point input, got ", x,
           "; convert it with .float()");
}

double factor_of(Reduction how, const Shape& sizes) {
  return how == Reduction::Mean ? 1.0 / static_cast<double>(numel_of(sizes)) : 1.0;
}

// x seen with the sizes that the inputs broadcast to: gives the sum its geometry, no data.
Tensor broadcast_of(const Tensor& x, const Shape& sizes) {
  return x.sizes() == sizes ? x
                            : alias(x, sizes, broadcast_strides(x.sizes(), x.strides(), sizes), x.offset());
}

Tensor run_loss(LossDef& d, Reduction how, std::initializer_list<PointwiseInput> inputs) {
  if (how == Reduction::None) return pointwise(d.name, d.slot, ResultRule::Same, inputs);
  const std::span<const PointwiseInput> in{inputs.begin(), inputs.size()};
  const Device device = common_device(d.name, in);
  const Shape sizes = common_shape(d.name, in);
  const DType dtype = promoted_dtype(in);
  Tensor loss = empty(Shape{}, {dtype, device});
  if (loss.is_meta()) return loss;
  const PlannedElementwise planned(compute_dtype(dtype), broadcast_of(*in[0].tensor, sizes), in);
  d.sum_slot(Launch(device), loss.view(), *planned, how);
  return loss;
}

// ---- losses of the difference between input and target -------------------------------------------------

template <LossDef& D>
void difference_backward(Node& n, Gradients& grads) {
  const Tensor &g = grads[0], x = n.saved(0), y = n.saved(1);
  const LossData& d = n.data<LossData>();
  const Scalar k(d.factor);
  Tensor dx;
  if (needs_grad(g, x, y))
    dx = g * k * D.slope(x - y, d.number);
  else if (D.numbered)
    dx = pointwise(D.name, D.backward_slot, ResultRule::Same, {g, x, y, Scalar(d.number), k});
  else
    dx = pointwise(D.name, D.backward_slot, ResultRule::Same, {g, x, y, k});
  if (grads.wants(1)) grads.set(1, -dx);
  if (grads.wants(0)) grads.set(0, std::move(dx));
}

#define WT_DIFFERENCE_LOSS(NAME, NODE, NUMBERED, ...)                                                  \
  extern LossDef NAME##_def;                                                                           \
  Tensor NAME##_slope(const Tensor& d, [[maybe_unused]] double number) { return __VA_ARGS__; }         \
  LossDef NAME##_def {                                                                                 \
    #NAME, {NODE, difference_backward<NAME##_def>}, ElementwiseSlot{#NAME},                            \
        ElementwiseSlot{#NAME "_backward"}, kernels::Slot<kernels::SumLossFn>{#NAME "_sum"}, NUMBERED, \
        NAME##_slope                                                                                   \
  }

WT_DIFFERENCE_LOSS(mse_loss, "MseLossBackward0", false, d * 2);
WT_DIFFERENCE_LOSS(l1_loss, "L1LossBackward0", false, sign(d));
WT_DIFFERENCE_LOSS(smooth_l1_loss, "SmoothL1LossBackward0", true,
                   where(lt_ts(abs(d), number), d / number, sign(d)));
WT_DIFFERENCE_LOSS(huber_loss, "HuberLossBackward0", true, where(lt_ts(abs(d), number), d, sign(d) * number));

std::string size_text(const Shape& sizes) { return message("torch.Size(", sizes, ")"); }

void warn_of_sizes(const Tensor& x, const Tensor& y) {
  warn(message("Using a target size (", size_text(y.sizes()), ") that is different to the input size (",
               size_text(x.sizes()),
               "). This will likely lead to incorrect results due to broadcasting. Please ensure they have "
               "the same size."));
}

Tensor difference_loss(LossDef& d, const Tensor& x, const Tensor& y, Reduction how, double number) {
  const DType dtype =
      x.dtype() == y.dtype() ? x.dtype() : promoted_dtype(std::array<PointwiseInput, 2>{x, y});
  WT_CHECK(is_floating(dtype), NotImplementedError, d.name, ": expected floating point tensors, got ", x,
           " and ", y, "; convert them with .float()");
  const bool same = x.sizes() == y.sizes();
  if (!same) warn_of_sizes(x, y);
  Tensor out = d.numbered ? run_loss(d, how, {x, y, Scalar(number)}) : run_loss(d, how, {x, y});
  if (needs_grad(x, y)) {
    Ref<Node> n = record(d.type, x, y);
    n->save(x);
    n->save(y);
    n->emplace<LossData>(factor_of(how, same ? x.sizes() : broadcast_shapes(x.sizes(), y.sizes(), d.name)),
                         number);
    set_history(out, n);
  }
  return out;
}

// `by_weight`: the mean divides by the sum of the weights, else by their number.
Tensor weighted(LossDef& d, const Tensor& x, const Tensor& y, const Tensor& weight, Reduction how,
                double number, bool by_weight) {
  WT_CHECK(weight.sizes() == x.sizes(), ValueError, d.name,
           ": Weights and input must have the same size, got weight ", weight, " and input ", x);
  Tensor losses = difference_loss(d, x, y, Reduction::None, number) * weight;
  if (how == Reduction::None) return losses;
  Tensor sum = sum_all(losses);
  if (how == Reduction::Sum) return sum;
  return by_weight ? sum / sum_all(weight) : sum / Scalar(static_cast<double>(losses.numel()));
}

using Flag = std::optional<bool>;

template <LossDef& D>
Tensor plain_impl(const Tensor& x, const Tensor& y, Flag size_average, Flag reduce,
                  std::string_view reduction, const OptTensor& weight) {
  const Reduction how = reduction_of(D.name, size_average, reduce, reduction);
  // Differences of integers have a magnitude, though no mean.
  const bool any_complex = is_complex(x.dtype()) || is_complex(y.dtype());
  const bool integers = !is_floating(x.dtype()) && !is_floating(y.dtype());
  if (&D == &l1_loss_def && !weight && (any_complex || (integers && how != Reduction::Mean))) {
    if (x.sizes() != y.sizes()) warn_of_sizes(x, y);
    return reduced(abs(x - y), how);
  }
  if (weight) return weighted(D, x, y, *weight, how, 0, true);
  return difference_loss(D, x, y, how, 0);
}

Tensor smooth_l1_loss_impl(const Tensor& x, const Tensor& y, Flag size_average, Flag reduce,
                           std::string_view reduction, double beta) {
  const Reduction how = reduction_of("smooth_l1_loss", size_average, reduce, reduction);
  WT_CHECK(!(beta < 0), Error, "smooth_l1_loss does not support negative values for beta, got ", beta);
  return difference_loss(beta == 0 ? l1_loss_def : smooth_l1_loss_def, x, y, how, beta);
}

Tensor huber_loss_impl(const Tensor& x, const Tensor& y, std::string_view reduction, double delta,
                       const OptTensor& weight) {
  const Reduction how = reduction_of("huber_loss", std::nullopt, std::nullopt, reduction);
  WT_CHECK(delta > 0, Error, "huber_loss does not support non-positive values for delta, got ", delta);
  check_input("huber_loss", x);
  Tensor out = weight ? weighted(huber_loss_def, x, y, *weight, how, delta, false)
                      : difference_loss(huber_loss_def, x, y, how, delta);
  // The dtype is the input's, whatever the target's; with a weight it is promoted.
  return weight || out.dtype() == x.dtype() ? out : tape_cast(out, x.dtype());
}

// ---- losses of probabilities ---------------------------------------------------------------------------

// A weight in the input's dtype; undefined where absent.
Tensor weight_for(const char* op, const Tensor& x, const OptTensor& weight, const char* what) {
  if (!weight) return Tensor();
  check_constant(op, what, *weight);
  WT_CHECK(broadcast_shapes(x.sizes(), weight->sizes(), op) == x.sizes(), ShapeError, op, ": ", what,
           " of shape ", weight->sizes(), " does not broadcast to the input's shape ", x.sizes());
  return raw_cast(*weight, x.dtype());
}
PointwiseInput or_one(const Tensor& weight) {
  return weight.defined() ? PointwiseInput(weight) : PointwiseInput(Scalar(1.0));
}
Tensor times(const Tensor& g, const Tensor& weight) { return weight.defined() ? g * weight : g; }

// saved: input, target, weight, pos_weight
Tensor with_history(const Tensor& out, const NodeType& type, Reduction how, const Tensor& x, const Tensor& y,
                    const Tensor& weight, const Tensor& pos_weight) {
  if (!needs_grad(x, y)) return out;
  Ref<Node> n = record(type, x, y);
  for (const Tensor& t : {x, y, weight, pos_weight}) n->save(t);
  n->emplace<LossData>(factor_of(how, x.sizes()), 0.0);
  set_history(out, n);
  return out;
}

extern LossDef bce_def, logits_def;

void bce_backward(Node& n, Gradients& grads) {
  const Tensor &g = grads[0], x = n.saved(0), y = n.saved(1), w = n.saved(2);
  const Scalar k(n.data<LossData>().factor);
  if (grads.wants(0) && needs_grad(g, x, y))
    grads.set(0, times(g * k, w) * ((x - y) / clamp((1 - x) * x, Scalar(1e-12f), std::nullopt)));
  else if (grads.wants(0))
    grads.set(0, pointwise(bce_def.name, bce_def.backward_slot, ResultRule::Same, {g, x, y, or_one(w), k}));
  if (grads.wants(1)) grads.set(1, times(g * k, w) * (log1p(-x) - log(x)));
}

void logits_backward(Node& n, Gradients& grads) {
  const Tensor &g = grads[0], x = n.saved(0), y = n.saved(1), w = n.saved(2), p = n.saved(3);
  const Scalar k(n.data<LossData>().factor);
  if (grads.wants(0) && needs_grad(g, x, y)) {
    Tensor t = times(y, p);
    grads.set(0, times(g * k, w) * ((t + 1 - y) * sigmoid(x) - t));
  } else if (grads.wants(0)) {
    grads.set(0, pointwise(logits_def.name, logits_def.backward_slot, ResultRule::Same,
                           {g, x, y, or_one(w), or_one(p), k}));
  }
  if (grads.wants(1)) {
    Tensor slope = p.defined() ? -x - (p - 1) * logsigmoid(x) : -x;
    grads.set(1, times(g * k, w) * slope);
  }
}

LossDef bce_def{"binary_cross_entropy",
                {"BinaryCrossEntropyBackward0", bce_backward},
                ElementwiseSlot{"binary_cross_entropy"},
                ElementwiseSlot{"binary_cross_entropy_backward"},
                kernels::Slot<kernels::SumLossFn>{"binary_cross_entropy_sum"}};
LossDef logits_def{"binary_cross_entropy_with_logits",
                   {"BinaryCrossEntropyWithLogitsBackward0", logits_backward},
                   ElementwiseSlot{"binary_cross_entropy_with_logits"},
                   ElementwiseSlot{"binary_cross_entropy_with_logits_backward"},
                   kernels::Slot<kernels::SumLossFn>{"binary_cross_entropy_with_logits_sum"}};

// The kernel makes NaN of what is no probability: without one there is nothing to look for.
void check_probabilities(const char* op, const Tensor& loss, const Tensor& x, const Tensor& y) {
  if (!loss.device().is_host() || loss.is_meta() || !item(any(isnan(loss), std::nullopt, false)).to_bool())
    return;
  for (const Tensor* t : {&x, &y})
    WT_CHECK(item(all(logical_and(ge_ts(*t, 0), le_ts(*t, 1)), std::nullopt, false)).to_bool(), Error, op,
             ": all elements of ", t == &x ? "input" : "target",
             " should be between 0 and 1; for logits there is binary_cross_entropy_with_logits");
}

Tensor bce_impl(const Tensor& x, const Tensor& y, const OptTensor& weight, Flag size_average, Flag reduce,
                std::string_view reduction) {
  const char* op = bce_def.name;
  const Reduction how = reduction_of(op, size_average, reduce, reduction);
  WT_CHECK(x.sizes() == y.sizes(), ValueError, op, ": Using a target size (", size_text(y.sizes()),
           ") that is different to the input size (", size_text(x.sizes()),
           ") is deprecated. Please ensure they have the same size.");
  check_input(op, x);
  WT_CHECK(x.dtype() == y.dtype(), DtypeError, op, ": Found target of dtype ", y.dtype(), " but expected ",
           x.dtype(), ", the input's; convert it with .to(input.dtype)");
  check_same_device(op, x, y, "target");
  Tensor w = weight_for(op, x, weight, "weight");
  Tensor out = run_loss(bce_def, how, {x, y, or_one(w)});
  {
    NoGrad no_grad;
    check_probabilities(op, out, x, y);
  }
  return with_history(out, bce_def.type, how, x, y, w, Tensor());
}

Tensor logits_loss(const Tensor& input, const Tensor& y, const OptTensor& weight, const OptTensor& pos_weight,
                   Reduction how) {
  const char* op = logits_def.name;
  WT_CHECK(input.sizes() == y.sizes(), ValueError, op, ": Target size (", size_text(y.sizes()),
           ") must be the same as input size (", size_text(input.sizes()), ")");
  check_input(op, input);
  WT_CHECK(is_floating(y.dtype()), DtypeError, op, ": expected a floating point target, got ", y,
           "; convert it with .to(input.dtype)");
  // The result has the target's dtype.
  const Tensor x = input.dtype() == y.dtype() ? input : tape_cast(input, y.dtype());
  Tensor w = weight_for(op, x, weight, "weight"), p = weight_for(op, x, pos_weight, "pos_weight");
  Tensor out = run_loss(logits_def, how, {x, y, or_one(w), or_one(p)});
  return with_history(out, logits_def.type, how, x, y, w, p);
}
Tensor logits_impl(const Tensor& x, const Tensor& y, const OptTensor& weight, Flag size_average, Flag reduce,
                   std::string_view reduction, const OptTensor& pos_weight) {
  return logits_loss(x, y, weight, pos_weight,
                     reduction_of(logits_def.name, size_average, reduce, reduction));
}

// ---- Kullback-Leibler divergence -----------------------------------------------------------------------

void kl_div_backward(Node& n, Gradients& grads) {
  const Tensor &g = grads[0], x = n.saved(0), y = n.saved(1);
  const LossData& d = n.data<LossData>();
  const bool log_target = d.number != 0;
  if (grads.wants(0)) grads.set(0, g * Scalar(-d.factor) * (log_target ? exp(y) : y));
  if (!grads.wants(1)) return;
  // y / y is 1, and NaN where y is 0 and the slope endless, as PyTorch has it.
  Tensor slope = log_target ? exp(y) * (y - x + 1) : log(y) + y / y - x;
  grads.set(1, g * Scalar(d.factor) * slope);
}
constexpr NodeType kKlDiv{"KlDivBackward0", kl_div_backward};
LossDef kl_div_def{"kl_div", kKlDiv, ElementwiseSlot{"kl_div"}, ElementwiseSlot{"mul"},
                   kernels::Slot<kernels::SumLossFn>{"kl_div_sum"}},
    kl_div_log_def{"kl_div", kKlDiv, ElementwiseSlot{"kl_div_log"}, ElementwiseSlot{"mul"},
                   kernels::Slot<kernels::SumLossFn>{"kl_div_log_sum"}};

Tensor kl_divergence(const Tensor& x, const Tensor& y, Reduction how, bool log_target) {
  WT_CHECK(is_floating(x.dtype()) && is_floating(y.dtype()), DtypeError,
           "kl_div: Integral inputs not supported, got ", x, " and ", y, "; convert them with .float()");
  Tensor out = run_loss(log_target ? kl_div_log_def : kl_div_def, how, {x, y});
  if (needs_grad(x, y)) {
    Ref<Node> n = record(kKlDiv, x, y);
    n->save(x);
    n->save(y);
    n->emplace<LossData>(factor_of(how, broadcast_shapes(x.sizes(), y.sizes(), "kl_div")),
                         log_target ? 1.0 : 0.0);
    set_history(out, n);
  }
  return out;
}
Tensor kl_div_impl(const Tensor& x, const Tensor& y, Flag size_average, Flag reduce,
                   std::string_view reduction, bool log_target) {
  const bool flags = size_average || reduce, batch = !flags && reduction == "batchmean";
  if (!flags && reduction == "mean")
    warn(
        "reduction: 'mean' divides the total loss by both the batch size and the support size."
        "'batchmean' divides only by the batch size, and aligns with the KL div math definition."
        "'mean' will be changed to behave the same as 'batchmean' in the next major release.");
  const Reduction how = batch ? Reduction::Sum : reduction_of("kl_div", size_average, reduce, reduction);
  Tensor out = kl_divergence(x, y, how, log_target);
  return batch && x.ndim() ? out / Scalar(static_cast<double>(x.sizes()[0])) : out;
}

const Arg kSizeAverage{"size_average", none}, kReduce{"reduce", none}, kReduction{"reduction", "mean"},
    kWeight{"weight", none};

}  // namespace

decltype(mse_loss) mse_loss{"mse_loss",
                            plain_impl<mse_loss_def>,
                            kNN | kFloat32,
                            {"input", "target", kSizeAverage, kReduce, kReduction, kWeight},
                            "(input - target)^2. A mean with weights divides by their sum."};
decltype(l1_loss) l1_loss{"l1_loss",
                          plain_impl<l1_loss_def>,
                          kNN | kComplex | kFloat32,
                          {"input", "target", kSizeAverage, kReduce, kReduction, kWeight},
                          "|input - target|. A mean with weights divides by their sum."};
decltype(smooth_l1_loss) smooth_l1_loss{
    "smooth_l1_loss",
    smooth_l1_loss_impl,
    kNN | kFloat32,
    {"input", "target", kSizeAverage, kReduce, kReduction, {"beta", 1.0}},
    "With d = |input - target|: d^2 / (2 beta) where d < beta, d - beta / 2 beyond."};
decltype(huber_loss) huber_loss{
    "huber_loss",
    huber_loss_impl,
    kNN | kFloat32Cpu,
    {"input", "target", kReduction, {"delta", 1.0}, kWeight},
    "With d = |input - target|: d^2 / 2 where d < delta, delta (d - delta / 2) beyond."};
decltype(binary_cross_entropy) binary_cross_entropy{
    "binary_cross_entropy",
    bce_impl,
    kNN | kFloat32Cpu | kRefuseCuda,
    {"input", "target", kWeight, kSizeAverage, kReduce, kReduction},
    "-(target log(input) + (1 - target) log(1 - input)) of probabilities, logarithms not below -100."};
decltype(binary_cross_entropy_with_logits) binary_cross_entropy_with_logits{
    "binary_cross_entropy_with_logits",
    logits_impl,
    kNN | kFloat32,
    {"input", "target", kWeight, kSizeAverage, kReduce, kReduction, {"pos_weight", none}},
    "binary_cross_entropy of sigmoid(input), computed without overflow; pos_weight multiplies the positive "
    "part."};

decltype(kl_div) kl_div{"kl_div",
                        kl_div_impl,
                        kNN | kFloat32,
                        {"input", "target", kSizeAverage, kReduce, kReduction, {"log_target", false}},
                        "target (log(target) - input) of log-probabilities and probabilities (with "
                        "log_target: their logarithms); "
                        "reduction may also be 'batchmean', the sum over the batch's size."};

namespace {
// The top level's forms.
Tensor root_kl_div(const Tensor& x, const Tensor& y, int64_t reduction, bool log_target) {
  return kl_divergence(x, y, reduction_of("kl_div", reduction), log_target);
}
const auto kl_div_number =
    overload_with(kl_div, root_kl_div,
                  {"input", "target", Arg::integer("reduction", 0), {"log_target", false, kKeywordOnly}},
                  kFunction, "target (log(target) - input) of log-probabilities and probabilities.");
Tensor root_logits(const Tensor& x, const Tensor& y, const OptTensor& weight, const OptTensor& pos_weight,
                   int64_t reduction) {
  return logits_loss(x, y, weight, pos_weight, reduction_of(logits_def.name, reduction));
}
const auto logits_number =
    overload_with(binary_cross_entropy_with_logits, root_logits,
                  {"input", "target", kWeight, {"pos_weight", none}, Arg::integer("reduction", 0)}, kFunction,
                  "binary_cross_entropy of sigmoid(input).");
}  // namespace

}  // namespace warptape::ops
