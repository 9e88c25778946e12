// Negative log-likelihoods under Poisson, normal and Bernoulli distributions, element by element.
#include <cmath>
#include <numbers>

#include "op/forms.h"
#include "ops/elementwise/activation.h"
#include "ops/index/masked.h"
#include "ops/kernel_inputs.h"
#include "ops/nn/loss.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

using Flag = std::optional<bool>;

Tensor poisson(const Tensor& x, const Tensor& target, bool log_input, bool full, double eps, Reduction how) {
  Tensor loss = log_input ? exp(x) - target * x : x - target * log(x + eps);
  if (full) {
    Tensor stirling = target * log(target) - target + log(target * (2 * std::numbers::pi)) * 0.5;
    loss = loss + cast(masked_fill(stirling, le_ts(target, 1), 0), loss.dtype());
  }
  return reduced(loss, how);
}
Tensor poisson_nn(const Tensor& x, const Tensor& target, bool log_input, bool full, Flag size_average,
                  double eps, Flag reduce, std::string_view reduction) {
  return poisson(x, target, log_input, full, eps,
                 reduction_of("poisson_nll_loss", size_average, reduce, reduction));
}
Tensor poisson_root(const Tensor& x, const Tensor& target, bool log_input, bool full, double eps,
                    int64_t reduction) {
  return poisson(x, target, log_input, full, eps, reduction_of("poisson_nll_loss", reduction));
}

// var as one that broadcasts to x: of x's shape, or without its last dim, or with 1 for one of the dims.
Tensor fitted_variance(const Tensor& x, const Tensor& var) {
  if (var.sizes() == x.sizes()) return var;
  const IntList sizes = x.sizes(), have = var.sizes();
  const bool lacks_last = x.ndim() > 0 && std::ranges::equal(have, sizes.first(sizes.size() - 1));
  if (lacks_last) return unsqueeze(var, -1);
  int64_t missing = have.size() == sizes.size() ? 0 : 2;  // what var has in the dims in which they differ
  for (size_t i = 0; missing < 2 && i < sizes.size(); ++i) missing += have[i] != sizes[i] ? have[i] : 0;
  WT_CHECK(missing == 1, ValueError, "gaussian_nll_loss: var is of incorrect size: expected ", x.sizes(),
           ", or without its last dimension, or 1 for one dimension, got ", var.sizes());
  return var;
}

Tensor gaussian_impl(const Tensor& x, const Tensor& target, const Tensor& given, bool full, double eps,
                     std::string_view reduction) {
  const char* op = "gaussian_nll_loss";
  Tensor var = fitted_variance(x, given);
  const Reduction how = reduction_of(op, std::nullopt, std::nullopt, reduction);
  {
    NoGrad no_grad;
    WT_CHECK(var.device().is_meta() || !item(any(lt_ts(var, 0), std::nullopt, false)).to_bool(), ValueError,
             op, ": var has negative entry/entries");
  }
  // The gradient of var passes as if it had not been raised to eps.
  var = clone(var);
  {
    NoGrad no_grad;
    clamp_(var, Scalar(eps), std::nullopt);
  }
  Tensor loss = (log(var) + square(x - target) / var) * 0.5;
  return reduced(full ? loss + 0.5 * std::log(2 * std::numbers::pi) : loss, how);
}
Tensor gaussian_number(const Tensor& x, const Tensor& target, double var, bool full, double eps,
                       std::string_view reduction) {
  return gaussian_impl(x, target, warptape::full(x.sizes(), var, options_of(x)), full, eps, reduction);
}

Tensor multilabel_soft_margin(const Tensor& x, const Tensor& target, const OptTensor& weight,
                              Flag size_average, Flag reduce, std::string_view reduction) {
  const Reduction how = reduction_of("multilabel_soft_margin_loss", size_average, reduce, reduction);
  Tensor loss = -(target * logsigmoid(x) + (1 - target) * logsigmoid(-x));
  if (weight) loss = loss * *weight;
  const int64_t classes = x.ndim() ? x.sizes().back() : 1, last = -1;
  return reduced(sum(loss, IntList{&last, 1}, false, std::nullopt) / static_cast<double>(classes), how);
}

const Arg kSizeAverage{"size_average", none}, kReduce{"reduce", none}, kReduction{"reduction", "mean"};
const char kPoissonDoc[] =
    "Negative log-likelihood of counts under Poisson rates, given as logarithms if log_input; full adds "
    "Stirling's approximation of log(target!) where target is above 1.";
const Op<Tensor(const Tensor&, const Tensor&, bool, bool, Flag, double, Flag, std::string_view)>
    nn_poisson_nll_loss{"poisson_nll_loss",
                        poisson_nn,
                        kNN | kFloat32,
                        {"input",
                         "target",
                         {"log_input", true},
                         {"full", false},
                         kSizeAverage,
                         {"eps", 1e-8},
                         kReduce,
                         kReduction},
                        kPoissonDoc};
const auto poisson_nll_loss =
    overload_with(nn_poisson_nll_loss, poisson_root,
                  {"input", "target", "log_input", "full", "eps", "reduction"}, kFunction);
const char kGaussianDoc[] =
    "Negative log-likelihood under normal distributions of mean input and variance var, at least eps; full "
    "adds log(2 pi) / 2. var has input's shape, or lacks its last dim, or has 1 there.";
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, bool, double, std::string_view)>
    gaussian_nll_loss{"gaussian_nll_loss",
                      gaussian_impl,
                      kNN,
                      {"input", "target", "var", {"full", false}, {"eps", 1e-6}, kReduction},
                      kGaussianDoc};
const Op<Tensor(const Tensor&, const Tensor&, double, bool, double, std::string_view)>
    gaussian_nll_loss_number = overload_of(gaussian_nll_loss, gaussian_number);
const Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, Flag, Flag, std::string_view)>
    multilabel_soft_margin_loss{
        "multilabel_soft_margin_loss",
        multilabel_soft_margin,
        kNN,
        {"input", "target", {"weight", none}, kSizeAverage, kReduce, kReduction},
        "[*, C] and target 0 or 1 of its shape: the mean over classes of the binary cross entropy of each."};

}  // namespace
}  // namespace warptape::ops
