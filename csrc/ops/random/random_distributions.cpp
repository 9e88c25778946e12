// Draws of other distributions than random.cpp's, with PyTorch's numbers on the CPU: from the same uniform
// numbers in the same order. Counts on another device are drawn on the host, by a generator that the device's
// seeds.
#include <cmath>
#include <limits>
#include <numbers>

#include "op/forms.h"
#include "ops/elementwise/elementwise.h"
#include "ops/random/random.h"
#include "ops/reduce/reduce.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

// ---- normal numbers, each with its mean and standard deviation -----------------------------------------

using OptDType = std::optional<DType>;

Tensor normal_noise(const Tensor& like, const Shape& sizes, Generator* g, OptDType dtype) {
  Tensor noise = empty(sizes, {dtype.value_or(like.dtype()), like.device()});
  if (!noise.device().is_meta()) fill_normal("normal", noise, 0, 1, g);
  return noise;
}

void check_deviation(const Tensor& std) {
  WT_CHECK(!is_complex(std.dtype()), Error, "normal expects standard deviation to be non-complex");
  if (std.device().is_meta() || std.numel() == 0) return;
  WT_CHECK(item(amin(std, std::nullopt, false)).to_double() >= 0, Error,
           "normal expects all elements of std >= 0.0");
}

Tensor normal_tensors(const Tensor& mean, const Tensor& std, Generator* g, OptDType dtype) {
  Tensor out;
  {
    NoGrad off;
    check_deviation(std);
    const Tensor noise = normal_noise(mean, broadcast_shapes(mean.sizes(), std.sizes(), "normal"), g, dtype);
    out = mul_(noise, raw_cast(std, real_of(noise.dtype())));
    out = add_(out, mean, 1);
  }
  if (needs_grad(mean, std)) set_history(out, record(kDraw, mean, std));
  return out;
}
Tensor normal_mean(const Tensor& mean, double std, Generator* g, OptDType dtype) {
  WT_CHECK(std >= 0, Error, "normal expects std >= 0.0, but found std ", std);
  Tensor out;
  {
    NoGrad off;
    out = add_(mul_ts_(normal_noise(mean, mean.sizes(), g, dtype), std), mean, 1);
  }
  if (needs_grad(mean)) set_history(out, record(kDraw, mean));
  return out;
}
Tensor normal_std(double mean, const Tensor& std, Generator* g, OptDType dtype) {
  Tensor out;
  {
    NoGrad off;
    check_deviation(std);
    out = add_ts_(mul_(normal_noise(std, std.sizes(), g, dtype), std), mean, 1);
  }
  if (needs_grad(std)) set_history(out, record(kDraw, std));
  return out;
}

// ---- counts --------------------------------------------------------------------------------------------

constexpr double kWideMean = 10;  // from here on counts are drawn by rejection, below one by one

// Hörmann's transformed rejection with a hat of table mountain shape: a and b give the hat, `quick` the share
// that is accepted at once. `accepts(k, u, v)` decides on the others, where u is the distance from the edge.
template <class F>
double rejected(Generator& g, double mean, double a, double b, double quick, F&& accepts) {
  for (;;) {
    const double u = g.uniform_double() - 0.5, v = g.uniform_double(), near = 0.5 - std::abs(u);
    const double k = std::floor((2 * a / near + b) * u + mean);
    if (near >= 0.07 && v <= quick && k >= 0) return k;
    if (k >= 0 && accepts(k, near, v)) return k;
  }
}

// By products of uniform numbers for small rates, else by algorithm PTRS of Hörmann, "The transformed
// rejection method for generating Poisson random variables", 1993. An infinite rate gives infinity.
double poisson_draw(Generator& g, double rate) {
  if (rate == 0 || std::isinf(rate)) return rate;
  if (rate < kWideMean) {
    const double limit = std::exp(-rate);
    double product = 1, count = 0;
    while ((product *= g.uniform_double()) > limit) ++count;
    return count;
  }
  const double b = 0.931 + 2.53 * std::sqrt(rate), a = -0.059 + 0.02483 * b, log_rate = std::log(rate),
               log_inverse_alpha = std::log(1.1239 + 1.1328 / (b - 3.4)), quick = 0.9277 - 3.6224 / (b - 2);
  return rejected(g, rate + 0.43, a, b, quick, [&](double k, double near, double v) {
    if (near < 0.013 && v > near) return false;
    return std::log(v) + log_inverse_alpha - std::log(a / (near * near) + b) <=
           -rate + k * log_rate - std::lgamma(k + 1);
  });
}

// log k! less Stirling's approximation of it.
double stirling_error(double k) {
  const double x = k + 1;
  if (k < 10) return std::lgamma(x) - ((k + 0.5) * std::log(x) - x + 0.5 * std::log(2 * std::numbers::pi));
  return (1.0 / 12 - (1.0 / 360 - 1.0 / 1260 / (x * x)) / (x * x)) / x;
}

// Algorithm BTRS of Hörmann, "The generation of binomial random variates", 1993.
double binomial_by_rejection(Generator& g, double n, double p) {
  const double spread = std::sqrt(n * p * (1 - p)), b = 1.15 + 2.53 * spread,
               a = -0.0873 + 0.0248 * b + 0.01 * p, quick = 0.92 - 4.2 / b, odds = p / (1 - p),
               alpha = (2.83 + 5.1 / b) * spread, mode = std::floor((n + 1) * p);
  for (;;) {
    const double count = rejected(g, n * p + 0.5, a, b, quick, [&](double k, double near, double v) {
      if (k > n) return false;
      const double log_ratio =  // of the chances of k and of the mode
          (mode + 0.5) * std::log((mode + 1) / (odds * (n - mode + 1))) +
          (n + 1) * std::log((n - mode + 1) / (n - k + 1)) +
          (k + 0.5) * std::log(odds * (n - k + 1) / (k + 1)) + stirling_error(mode) +
          stirling_error(n - mode) - stirling_error(k) - stirling_error(n - k);
      return std::log(v * alpha / (a / (near * near) + b)) <= log_ratio;
    });
    if (count <= n) return count;
  }
}

// By the trials up to the next success, while they are within n.
double binomial_by_waiting(Generator& g, double n, double p) {
  const double log_failure = std::log1p(-p);
  double used = 0, count = 0;
  while ((used += std::ceil(std::log(g.uniform_double()) / log_failure)) <= n) ++count;
  return count;
}

double binomial_draw(Generator& g, double n, double p) {
  if (std::isnan(n) || std::isnan(p) || std::isinf(n)) return std::numeric_limits<double>::quiet_NaN();
  if (n <= 0 || p <= 0) return 0;
  if (p >= 1) return n;
  const double rare = std::min(p, 1 - p);
  const double count =
      n * rare >= kWideMean ? binomial_by_rejection(g, n, rare) : binomial_by_waiting(g, n, rare);
  return p > 0.5 ? n - count : count;
}

// A number of the gamma distribution is `part` times exp(log_factor), which for small shapes underflows.
struct GammaDraw {
  double part, log_factor;
};

// Marsaglia and Tsang, "A simple method for generating gamma variables", 2000: section 4, below 1 by
// section 6. Constants are float's, and with `single` what comes of the shape is rounded to float, as in
// PyTorch.
GammaDraw gamma_draw(Generator& g, double shape, bool single) {
  const auto rounded = [&](double x) { return single ? static_cast<double>(static_cast<float>(x)) : x; };
  if (std::isnan(shape)) return {shape, 0};
  if (shape == 0) return {1, -std::numeric_limits<double>::infinity()};
  double log_factor = 0;
  if (shape < 1) {
    log_factor = std::log1p(-g.uniform_double()) * rounded(1 / shape);
    shape = rounded(shape + 1);
  }
  const double d = rounded(shape - double{1.0f / 3.0f}), c = 1 / std::sqrt(9 * d);
  for (;;) {
    double x = g.normal();
    while (1 + c * x <= 0) x = g.normal();
    const double root = 1 + c * x, v = root * root * root, u = 1 - g.uniform_double(), xx = x * x;
    if (u < 1 - double{0.0331f} * xx * xx || std::log(u) < 0.5 * xx + d * (1 - v + std::log(v)))
      return {d * v, log_factor};
  }
}

// Fills `out` by draw(generator, i) for element i, in the order of its elements.
template <class F>
void fill_counts(const char* op, const Tensor& out, Generator* given, F&& draw) {
  if (!on_device(out)) {
    int64_t i = 0;  // the pieces come in order
    return fill_host<kernels::FloatTypes>(op, out, given, [&](auto* data, int64_t n, Generator& g) {
      using T = std::remove_pointer_t<decltype(data)>;
      for (int64_t k = 0; k < n; ++k) data[k] = static_cast<T>(static_cast<Compute<T>>(draw(g, i++)));
    });
  }
  Ref<Generator> g = generator_for(op, out.device(), given);
  kernels::PhiloxKey key;
  {
    std::lock_guard lock(g->mutex);
    key = g->next_philox(PhiloxUse::Fill);
  }
  const Ref<Generator> host_generator =
      Ref<Generator>::adopt(new Generator(Device{}, key.seed ^ (key.call * 0x9e3779b97f4a7c15)));
  Tensor host = empty(out.sizes(), {out.dtype(), {}});
  fill_counts(op, host, host_generator.get(), draw);
  raw_copy(out, host);
}

// In doubles in host memory.
Tensor parameter(const Tensor& t) {
  Tensor host = empty(t.sizes(), {DType::Float64, {}});
  raw_copy(host, t);
  return host;
}

Tensor poisson_impl(const Tensor& rate, Generator* given) {
  WT_CHECK(is_floating(rate.dtype()), NotImplementedError, "poisson: not implemented for ", rate.dtype());
  Tensor out = empty(rate.sizes(), options_of(rate));
  if (!rate.device().is_meta()) {
    const Tensor rates = parameter(rate);
    const auto* p = rates.data_as<double>();
    for (int64_t i = 0; i < rates.numel(); ++i)
      WT_CHECK(p[i] >= 0, Error, "poisson: invalid Poisson rate, expected rate to be non-negative, got ",
               p[i]);
    fill_counts("poisson", out, given, [&](Generator& g, int64_t i) { return poisson_draw(g, p[i]); });
  }
  if (needs_grad(rate)) set_history(out, record(kDraw, rate));
  return out;
}

Tensor gamma_impl(const Tensor& shape) {
  WT_CHECK(is_floating(shape.dtype()), NotImplementedError, "standard_gamma: not implemented for ",
           shape.dtype());
  Shape sizes = shape.sizes();
  sizes.push_back(2);
  Tensor out = empty(sizes, {DType::Float64, shape.device()});
  if (shape.device().is_meta()) return out;
  const Tensor shapes = parameter(shape);
  const auto* p = shapes.data_as<double>();
  const bool single = shape.dtype() == DType::Float32;
  double next = 0;
  fill_counts("standard_gamma", out, nullptr, [&](Generator& g, int64_t i) {
    if (i % 2) return next;
    const GammaDraw draw = gamma_draw(g, p[i / 2], single);
    next = draw.log_factor;
    return draw.part;
  });
  return out;
}

Tensor binomial_impl(const Tensor& count, const Tensor& prob, Generator* given) {
  for (const auto* t : {&count, &prob})
    WT_CHECK(is_floating(t->dtype()), ValueError, "binomial only supports floating-point dtypes for ",
             t == &count ? "count" : "prob", ", got: ", t->dtype());
  const Shape sizes = broadcast_shapes(count.sizes(), prob.sizes(), "binomial");
  Tensor out = empty(sizes, options_of(prob));
  if (!out.device().is_meta()) {
    const Tensor counts = parameter(expand_view(count, sizes)), probs = parameter(expand_view(prob, sizes));
    const auto *n = counts.data_as<double>(), *p = probs.data_as<double>();
    fill_counts("binomial", out, given,
                [&](Generator& g, int64_t i) { return binomial_draw(g, n[i], p[i]); });
  }
  if (needs_grad(count, prob)) set_history(out, record(kDraw, count, prob));
  return out;
}

// ---- in place ------------------------------------------------------------------------------------------

// Fills `t` by f of uniform numbers inside of (0, 1); `of_tensor` is the same on a device.
template <class Types, class F, class G>
Tensor fill_by(const char* op, const Tensor& t, Generator* given, F&& f, G&& of_tensor) {
  return overwrite(t, op, [&] {
    if (!on_device(t))
      return fill_host<Types>(op, t, given, [&](auto* data, int64_t n, Generator& g) {
        using T = std::remove_pointer_t<decltype(data)>;
        for (int64_t i = 0; i < n; ++i) data[i] = static_cast<T>(static_cast<Compute<T>>(f(g)));
      });
    NoGrad off;
    Tensor uniform = empty(t.sizes(), {DType::Float64, t.device()});
    fill_uniform(op, uniform, 0, 1, given);
    raw_copy(t, of_tensor(clamp(uniform, Scalar(0x1p-53), std::nullopt)));
  });
}

double inside(double u) { return std::max(u, 0x1p-53); }

Tensor cauchy_impl(const Tensor& t, double median, double sigma, Generator* given) {
  WT_CHECK(is_floating(t.dtype()), DtypeError,
           "cauchy_: Cauchy distribution is a continuous probability distribution. dtype must be a floating "
           "point but you specified ",
           t.dtype());
  WT_CHECK(sigma > 0, Error, "cauchy_: cauchy_ expects sigma > 0.0, but found sigma=", sigma);
  return fill_by<kernels::FloatTypes>(
      "cauchy_", t, given,
      [&](Generator& g) {
        return median + sigma * std::tan(std::numbers::pi * (inside(g.uniform_double()) - 0.5));
      },
      [&](const Tensor& u) { return tan((u - 0.5) * std::numbers::pi) * sigma + median; });
}

Tensor geometric_impl(const Tensor& t, double p, Generator* given) {
  WT_CHECK(p > 0 && p < 1, Error, "geometric_: geometric_ expects p to be in (0, 1), but got p=", p);
  WT_CHECK(!is_complex(t.dtype()), DtypeError, "geometric_: not implemented for ", t.dtype());
  return fill_by<kernels::AllTypes>(
      "geometric_", t, given,
      [&](Generator& g) { return std::ceil(std::log(inside(g.uniform_double())) / std::log1p(-p)); },
      [&](const Tensor& u) { return ceil(log(u) / std::log1p(-p)); });
}

Tensor log_normal_impl(const Tensor& t, double mean, double std, Generator* given) {
  WT_CHECK(is_floating(t.dtype()), DtypeError, "log_normal_: not implemented for ", t.dtype());
  WT_CHECK(std > 0, Error, "log_normal_: log_normal_ expects std > 0.0, but found std=", std);
  return overwrite(t, "log_normal_", [&] {
    if (!on_device(t))
      return fill_host<kernels::FloatTypes>(
          "log_normal_", t, given, [&](auto* data, int64_t n, Generator& g) {
            using T = std::remove_pointer_t<decltype(data)>;
            for (int64_t i = 0; i < n; ++i)
              data[i] = static_cast<T>(static_cast<Compute<T>>(std::exp(g.normal() * std + mean)));
          });
    fill_normal("log_normal_", t, mean, std, given);
    NoGrad off;
    exp_(detach(t));
  });
}

#define WT_GENERATOR {"generator", none, kKeywordOnly}
const Arg kSelf{"input", kWritten};
const char kNormalDoc[] = "Independent normal numbers, each with its mean and standard deviation.";
const Op<Tensor(double, double, IntList, Generator*, std::optional<DType>, std::optional<Device>, bool)>
    normal_size_op{"normal",
                   normal_of_size,
                   kFunction | kOut | kComplex | kRandom,
                   {"mean",
                    "std",
                    "size",
                    {"generator", none, kKeywordOnly},
                    {"dtype", none, kKeywordOnly},
                    {"device", none, kKeywordOnly},
                    {"requires_grad", false, kKeywordOnly}},
                   "Normal numbers."};
const Op<Tensor(const Tensor&, const Tensor&, Generator*, OptDType)> normal_tensors_op{
    "normal",
    normal_tensors,
    kFunction | kOut | kComplex | kRandom,
    {"mean", "std", WT_GENERATOR, kDrawDType},
    kNormalDoc};
const auto normal_mean_op =
    overload_with(normal_tensors_op, normal_mean, {"mean", {"std", 1.0}, WT_GENERATOR, kDrawDType});
const Op<Tensor(double, const Tensor&, Generator*, OptDType)> normal_std_op{
    "normal", normal_std, kFunction | kOut | kRandom, {"mean", "std", WT_GENERATOR, kDrawDType}, kNormalDoc};
const Op<Tensor(const Tensor&, Generator*)> poisson{
    "poisson",
    poisson_impl,
    kFunction | kOut | kRandom,
    {"input", {"generator", none}},
    "Numbers of Poisson's distribution with the means `input`."};
const Op<Tensor(const Tensor&)> gamma_op{
    "standard_gamma",
    gamma_impl,
    kPrivate | kChecked | kRandom,
    {"concentration"},
    "Of concentration [*] float64 [*, 2]: a number whose product with exp of the second one is of the gamma "
    "distribution. Not recorded."};
const Op<Tensor(const Tensor&, const Tensor&, Generator*)> binomial{
    "binomial",
    binomial_impl,
    kFunction | kOut | kRandom,
    {"count", "prob", {"generator", none}},
    "The number of successes among `count` trials with probability `prob`."};
const Op<Tensor(const Tensor&, double, double, Generator*)> cauchy_{
    "cauchy_",
    cauchy_impl,
    kMethod | kRandom,
    {kSelf, {"median", 0.0}, {"sigma", 1.0}, WT_GENERATOR},
    "Fills with numbers of the Cauchy distribution."},
    log_normal_{"log_normal_",
                log_normal_impl,
                kMethod | kRandom,
                {kSelf, {"mean", 1.0}, {"std", 2.0}, WT_GENERATOR},
                "Fills with exp of normal numbers."};
const Op<Tensor(const Tensor&, double, Generator*)> geometric_{
    "geometric_",
    geometric_impl,
    kMethod | kRandom,
    {kSelf, {"p", kDraws}, WT_GENERATOR},
    "Fills with the number of trials up to the first success."};

}  // namespace
}  // namespace warptape::ops
