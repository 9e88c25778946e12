// Fake quantisation: values rounded to what codes can stand for, for training. The gradient passes through
// where the code is within its bounds and is zero elsewhere ("Estimating or Propagating Gradients Through
// Stochastic Neurons", Bengio et al. 2013).
#include "op/constant.h"
#include "ops/kernel_inputs.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

constexpr const char *kPerTensor = "fake_quantize_per_tensor_affine",
                     *kPerChannel = "fake_quantize_per_channel_affine";

void masked_backward(Node& n, Gradients& g) { g.set(0, g[0] * raw_cast(n.saved(0), g[0].dtype())); }
constexpr NodeType kTensorNode{"FakeQuantizePerTensorAffineCachemaskBackward0", masked_backward},
    kChannelNode{"FakeQuantizePerChannelAffineCachemaskBackward0", masked_backward};

void check_bounds(const char* op, const Tensor& x, int64_t low, int64_t high) {
  check_floating(op, x);
  WT_CHECK(low <= high, ValueError, op, ": quant_min must be at most quant_max, got ", low, " and ", high);
}

// scale and zero broadcast to x.
Tensor rounded(const NodeType& node, const Tensor& x, const Tensor& scale, const Tensor& zero, int64_t low,
               int64_t high) {
  Tensor out, mask;
  {
    NoGrad no_grad;
    const Tensor codes = round(x * (1 / scale), 0) + zero;
    out = (clamp(codes, Scalar(low), Scalar(high)) - zero) * scale;
    mask = logical_and(ge_ts(codes, Scalar(low)), le_ts(codes, Scalar(high)));
  }
  if (needs_grad(x)) {
    Ref<Node> n = record(node, x);
    n->save(mask);
    set_history(out, n);
  }
  return out;
}

// A scale or zero point as a constant of x's dtype.
Tensor spread(const Tensor& t, const Tensor& x, const Shape& sizes) {
  NoGrad no_grad;
  return reshape(raw_cast(t, x.dtype()), sizes);
}

Tensor per_tensor_impl(const Tensor& x, double scale, int64_t zero_point, int64_t low, int64_t high) {
  check_bounds(kPerTensor, x, low, high);
  WT_CHECK(zero_point >= low && zero_point <= high, ValueError, kPerTensor,
           ": `zero_point` must be between `quant_min` and `quant_max`, got ", zero_point, ", ", low, " and ",
           high);
  const TensorOptions options{x.dtype(), x.device()};
  return rounded(kTensorNode, x, full({}, Scalar(scale), options), full({}, Scalar(zero_point), options), low,
                 high);
}

Tensor per_tensor_t_impl(const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t low,
                         int64_t high) {
  check_bounds(kPerTensor, x, low, high);
  check_constant(kPerTensor, "scale", scale);
  WT_CHECK(scale.numel() == 1 && zero_point.numel() == 1, ShapeError, kPerTensor,
           ": expected scale and zero_point of one element, got shapes ", scale.sizes(), " and ",
           zero_point.sizes());
  return rounded(kTensorNode, x, spread(scale, x, {}), spread(zero_point, x, {}), low, high);
}

Tensor per_channel_impl(const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t axis,
                        int64_t low, int64_t high) {
  check_bounds(kPerChannel, x, low, high);
  check_constant(kPerChannel, "scale", scale);
  WT_CHECK(axis >= 0 && axis < x.ndim(), IndexError, kPerChannel,
           ": `axis` must be between 0 and number of dimensions of input, got ", axis, " for shape ",
           x.sizes());
  const int64_t channels = x.sizes()[axis];
  WT_CHECK(scale.ndim() == 1 && scale.numel() == channels && zero_point.ndim() == 1 &&
               zero_point.numel() == channels,
           ShapeError, kPerChannel, ": expected scale and zero_point [", channels, "], as dim ", axis,
           " of the input ", x.sizes(), ", got shapes ", scale.sizes(), " and ", zero_point.sizes());
  Shape sizes(static_cast<size_t>(x.ndim()), 1);
  sizes[static_cast<size_t>(axis)] = channels;
  return rounded(kChannelNode, x, spread(scale, x, sizes), spread(zero_point, x, sizes), low, high);
}

}  // namespace

const Op<Tensor(const Tensor&, double, int64_t, int64_t, int64_t)> fake_quantize_per_tensor{
    kPerTensor,
    per_tensor_impl,
    kFunction | kPointwise,
    {"input", "scale", "zero_point", "quant_min", "quant_max"},
    "(clamp(round(input / scale) + zero_point, quant_min, quant_max) - zero_point) * scale; the gradient "
    "passes where nothing was clamped."};
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t)> fake_quantize_per_tensor_t{
    kPerTensor,
    per_tensor_t_impl,
    kFunction,
    {"input", "scale", "zero_point", "quant_min", "quant_max"},
    "The same, with scale and zero_point as tensors of one element, which get no gradient."};
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, int64_t)>
    fake_quantize_per_channel{
        kPerChannel,
        per_channel_impl,
        kFunction,
        {"input", "scale", "zero_point", "axis", "quant_min", "quant_max"},
        "fake_quantize_per_tensor_affine with a scale and zero_point [C] for each place along axis, which "
        "get no gradient."};

}  // namespace warptape::ops
