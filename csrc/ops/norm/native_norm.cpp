// The norms with the statistics they normalised by, which are results of their own. As in PyTorch those of
// group norm alone require a gradient.
#include "ops/kernel_inputs.h"
#include "ops/norm/norm.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

using Normed = std::tuple<Tensor, Tensor, Tensor>;

// Mean and 1 / sqrt(variance + eps) of x [split] over the dims that are 1 in `kept`, as tensors of `sizes`.
Normed with_statistics(const Tensor& out, const Tensor& x, const Shape& split, const Shape& kept,
                       const Shape& sizes, double eps) {
  Tensor wide = reshape(tape_cast(x, stats_dtype(x.dtype())), split);
  const Scalar share(static_cast<double>(numel_of(kept)) / static_cast<double>(numel_of(split)));
  Tensor mean = sum_to(wide, kept) * share, centred = wide - mean;
  Tensor rstd = rsqrt(sum_to(centred * centred, kept) * share + Scalar(eps));
  return {out, tape_cast(reshape(mean, sizes), x.dtype()), tape_cast(reshape(rstd, sizes), x.dtype())};
}

Normed native_layer_norm_impl(const Tensor& x, IntList shape, const OptTensor& weight, const OptTensor& bias,
                              double eps) {
  Tensor out = layer_norm(x, shape, weight, bias, eps);
  NoGrad no_grad;
  Shape kept(x.sizes());
  for (size_t i = 0; i < shape.size(); ++i) kept[kept.size() - 1 - i] = 1;
  return with_statistics(out, x, x.sizes(), kept, kept, eps);
}

Normed native_group_norm_impl(const Tensor& x, const OptTensor& weight, const OptTensor& bias, int64_t batch,
                              int64_t channels, int64_t inner, int64_t groups, double eps) {
  WT_CHECK(x.numel() == batch * channels * inner, ShapeError,
           "native_group_norm: expected input of N * C * HxW = ", batch * channels * inner, " elements, got ",
           x);
  Tensor out = group_norm(x, groups, weight, bias, eps);
  return with_statistics(out, x, Shape{batch, groups, channels / groups * inner}, Shape{batch, groups, 1},
                         Shape{batch, groups}, eps);
}

Normed native_batch_norm_impl(const Tensor& x, const OptTensor& weight, const OptTensor& bias,
                              const OptTensor& running_mean, const OptTensor& running_var, bool training,
                              double momentum, double eps) {
  Tensor out = batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps);
  if (!training) {
    const Tensor none = empty(Shape{0}, options_of(x));
    return {out, none, empty(Shape{0}, options_of(x))};
  }
  NoGrad no_grad;
  const int64_t batch = x.sizes()[0], channels = x.sizes()[1];
  const int64_t inner = x.numel() / std::max<int64_t>(batch * channels, 1);
  return with_statistics(out, x, Shape{batch, channels, inner}, Shape{1, channels, 1}, Shape{channels}, eps);
}

const Op<Normed(const Tensor&, IntList, const OptTensor&, const OptTensor&, double)> native_layer_norm{
    "native_layer_norm",
    native_layer_norm_impl,
    kFunction | kFloat32Cuda,
    {"input", "normalized_shape", "weight", "bias", "eps"},
    "layer_norm, its mean and its 1 / sqrt(var + eps)."};
const Op<Normed(const Tensor&, const OptTensor&, const OptTensor&, int64_t, int64_t, int64_t, int64_t,
                double)>
    native_group_norm{"native_group_norm",
                      native_group_norm_impl,
                      kFunction | kFloat32Cuda,
                      {"input", "weight", "bias", "N", "C", "HxW", "group", "eps"},
                      "group_norm of an input [N, C, ...], its mean and its 1 / sqrt(var + eps) per group."};
const Op<Normed(const Tensor&, const OptTensor&, const OptTensor&, const OptTensor&, const OptTensor&, bool,
                double, double)>
    native_batch_norm{"native_batch_norm",
                      native_batch_norm_impl,
                      kFunction | kOut,
                      {"input",
                       "weight",
                       "bias",
                       {"running_mean", kUpdated},
                       {"running_var", kUpdated},
                       {"training", kSwitch},
                       "momentum",
                       "eps"},
                      "batch_norm and, in training, the batch's mean and 1 / sqrt(var + eps)."};

}  // namespace
}  // namespace warptape::ops
