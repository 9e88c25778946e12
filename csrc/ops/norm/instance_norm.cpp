// Normalisations made of batch_norm and pooling. Legend: N batch, C channels.
#include "ops/conv/pool.h"
#include "ops/kernel_inputs.h"
#include "ops/norm/norm.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

// [C] -> [N * C]
Tensor per_sample(const OptTensor& t, int64_t n, int64_t c) {
  if (!t) return Tensor();
  WT_CHECK(t->sizes() == Shape{c}, ShapeError, "instance_norm: expected statistics, weight and bias of ", c,
           " elements, the channels, got ", t->sizes());
  return contiguous(reshape(expand(*t, Shape{n, c}), Shape{n * c}));
}

// The running statistics move by the mean over the samples.
void update(const OptTensor& running, const Tensor& updated, int64_t n, int64_t c) {
  if (!running) return;
  NoGrad no_grad;
  const int64_t samples[] = {0};
  copy_(detach(*running), mean(reshape(updated, Shape{n, c}), IntList(samples), false, std::nullopt), false);
}

// batch_norm over N * C channels.
Tensor instance_norm_impl(const Tensor& x, const OptTensor& running_mean, const OptTensor& running_var,
                          const OptTensor& weight, const OptTensor& bias, bool use_input_stats,
                          double momentum, double eps) {
  const char* op = "instance_norm";
  WT_CHECK(x.ndim() >= 2, ShapeError, op, ": expected an input of at least 2 dims, got ", x.sizes());
  const IntList rest = IntList(x.sizes()).subspan(2);
  WT_CHECK(!use_input_stats || numel_of(rest) != 1, ValueError, op,
           ": Expected more than 1 spatial element when training, got input size ", x.sizes());
  WT_CHECK(use_input_stats || (running_mean && running_var), Error, op,
           ": Expected running_mean and running_var to be defined when use_input_stats is false");
  const int64_t n = x.sizes()[0], c = x.sizes()[1];
  Shape flat{1, n * c};
  flat.append(rest.begin(), rest.end());
  Tensor means = per_sample(running_mean, n, c), vars = per_sample(running_var, n, c);
  auto given = [](const Tensor& t) { return t.defined() ? OptTensor(t) : OptTensor(); };
  Tensor out = batch_norm(reshape(x, flat), given(means), given(vars), given(per_sample(weight, n, c)),
                          given(per_sample(bias, n, c)), use_input_stats, momentum, eps);
  if (use_input_stats) {
    update(running_mean, means, n, c);
    update(running_var, vars, n, c);
  }
  return reshape(out, x.sizes());
}

// x / (k + alpha * mean of x^2 over `size` neighbouring channels)^beta.
Tensor local_response_norm_impl(const Tensor& x, int64_t size, double alpha, double beta, double k) {
  WT_CHECK(x.ndim() >= 3, ValueError, "local_response_norm: Expected 3D or higher dimensionality input (got ",
           x.ndim(), " dimensions)");
  if (x.numel() == 0) return x;
  const int64_t n = x.sizes()[0], c = x.sizes()[1], area = x.numel() / (n * c);
  auto padding = [&](int64_t channels) { return zeros(Shape{n, channels, area}, options_of(x)); };
  Tensor padded = cat(
      std::vector<Tensor>{padding(size / 2), reshape(x * x, Shape{n, c, area}), padding((size - 1) / 2)}, 1);
  const int64_t window[] = {size, 1}, one[] = {1}, none_at_all[] = {0};
  Tensor means = avg_pool2d(unsqueeze(padded, 1), IntList(window), IntList(one), IntList(none_at_all), false,
                            true, std::nullopt);
  return x / pow_ts(reshape(means, x.sizes()) * alpha + k, beta);
}

Tensor root_batch_norm(const Tensor& x, const OptTensor& weight, const OptTensor& bias,
                       const OptTensor& running_mean, const OptTensor& running_var, bool training,
                       double momentum, double eps, bool) {
  return batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps);
}
Tensor root_instance_norm(const Tensor& x, const OptTensor& weight, const OptTensor& bias,
                          const OptTensor& running_mean, const OptTensor& running_var, bool use_input_stats,
                          double momentum, double eps, bool) {
  return instance_norm_impl(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps);
}

const char kInstanceDoc[] =
    "[N, C, *]: each channel of each sample to mean 0 and variance 1, then times weight[C] plus bias[C]. "
    "Without use_input_stats the running statistics take the place of the sample's; else they move by the "
    "mean over the samples.";
const Op<Tensor(const Tensor&, const OptTensor&, const OptTensor&, const OptTensor&, const OptTensor&, bool,
                double, double)>
    instance_norm{"instance_norm",
                  instance_norm_impl,
                  kNN,
                  {"input",
                   {"running_mean", none, kUpdated},
                   {"running_var", none, kUpdated},
                   {"weight", none},
                   {"bias", none},
                   {"use_input_stats", true, kSwitch},
                   {"momentum", 0.1},
                   {"eps", 1e-5}},
                  kInstanceDoc};
const Op<Tensor(const Tensor&, int64_t, double, double, double)> local_response_norm{
    "local_response_norm",
    local_response_norm_impl,
    kNN,
    {"input", "size", {"alpha", 1e-4}, {"beta", 0.75}, {"k", 1.0}},
    "[N, C, *]: input / (k + alpha * mean of input^2 over `size` neighbouring channels)^beta."};

using RootNorm = Op<Tensor(const Tensor&, const OptTensor&, const OptTensor&, const OptTensor&,
                           const OptTensor&, bool, double, double, bool)>;
const RootNorm batch_norm_at_root{"batch_norm",
                                  root_batch_norm,
                                  kFunction,
                                  {"input",
                                   "weight",
                                   "bias",
                                   {"running_mean", kUpdated},
                                   {"running_var", kUpdated},
                                   {"training", kSwitch},
                                   "momentum",
                                   "eps",
                                   "cudnn_enabled"},
                                  "nn.functional.batch_norm; cudnn_enabled has no effect."},
    instance_norm_at_root{"instance_norm",
                          root_instance_norm,
                          kFunction,
                          {"input",
                           "weight",
                           "bias",
                           {"running_mean", kUpdated},
                           {"running_var", kUpdated},
                           {"use_input_stats", kSwitch},
                           "momentum",
                           "eps",
                           "cudnn_enabled"},
                          "nn.functional.instance_norm; cudnn_enabled has no effect."};

}  // namespace
}  // namespace warptape::ops
