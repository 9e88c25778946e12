// Windows: M numbers computed in double. Symmetric ones span all M points, periodic ones are those of one
// point more without the last. torch.signal.windows has them all, the top level some under longer names.
#include <cmath>
#include <numbers>

#include "ops/view/copy.h"

namespace warptape::ops {
namespace {

using OptDType = std::optional<DType>;
using OptDevice = std::optional<Device>;

struct Window {
  int64_t M;
  bool sym;
  DType dtype;
  OptDevice device;
  bool needs_grad;
};
// The checks of torch.signal.windows, and those of the top level.
Window signal(const char* op, int64_t M, bool sym, OptDType dtype, OptDevice device, bool grad) {
  WT_CHECK(M >= 0, ValueError, op, " requires non-negative window length, got M=", M);
  const DType t = dtype.value_or(rank_context().default_dtype);
  WT_CHECK(t == DType::Float32 || t == DType::Float64, ValueError, op,
           " expects float32 or float64 dtypes, got: ", t);
  return {M, sym, t, device, grad};
}
Window root(const char* op, int64_t length, bool periodic, OptDType dtype, OptDevice device, bool grad) {
  WT_CHECK(length >= 0, Error, op,
           ": window requires non-negative window_length, got window_length=", length);
  const DType t = dtype.value_or(rank_context().default_dtype);
  WT_CHECK(is_floating(t), DtypeError, op, ": window expects floating point dtypes, got: ", t);
  return {length, !periodic, t, device, grad};
}

// `at` of each point 0, 1, .. M - 1 and of the distance between the first and the last point that it spans.
template <class F>
Tensor made(const Window& w, F&& at) {
  const Tensor wide = empty(Shape{w.M}, {DType::Float64, {}});
  const auto span = static_cast<double>(w.sym ? w.M - 1 : w.M);
  for (int64_t n = 0; n < w.M; ++n)
    wide.data_as<double>()[n] = w.M == 1 ? 1.0 : at(static_cast<double>(n), span);
  Tensor out = to(wide, w.device ? *w.device : default_device(), w.dtype, false, false);
  if (w.needs_grad) set_requires_grad(out, true);
  return out;
}

Tensor cosines(const Window& w, std::span<const double> a) {
  return made(w, [&](double n, double span) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i)
      sum += (i % 2 ? -a[i] : a[i]) * std::cos(2 * std::numbers::pi * static_cast<double>(i) * n / span);
    return sum;
  });
}
Tensor triangle(const Window& w) {
  return made(w, [](double n, double span) { return 1 - std::abs(2 * n / span - 1); });
}
Tensor kaiser_of(const Window& w, double beta) {
  return made(w, [&](double n, double span) {
    const double t = 2 * n / span - 1;
    return std::cyl_bessel_i(0.0, beta * std::sqrt(std::max(0.0, 1 - t * t))) / std::cyl_bessel_i(0.0, beta);
  });
}
constexpr double kHann[] = {0.5, 0.5}, kHamming[] = {0.54, 0.46}, kBlackman[] = {0.42, 0.5, 0.08},
                 kNuttall[] = {0.3635819, 0.4891775, 0.1365995, 0.0106411};

// ---- torch.signal.windows ------------------------------------------------------------------------------

#define WT_WINDOW_IMPL(NAME, ...)                                                        \
  Tensor NAME##_impl(int64_t M, bool sym, OptDType dtype, OptDevice device, bool grad) { \
    const Window w = signal(#NAME, M, sym, dtype, device, grad);                         \
    return __VA_ARGS__;                                                                  \
  }
WT_WINDOW_IMPL(bartlett, triangle(w))
WT_WINDOW_IMPL(blackman, cosines(w, kBlackman))
WT_WINDOW_IMPL(hamming, cosines(w, kHamming))
WT_WINDOW_IMPL(hann, cosines(w, kHann))
WT_WINDOW_IMPL(nuttall, cosines(w, kNuttall))
WT_WINDOW_IMPL(cosine, made(w, [](double n, double span) {
                 return std::sin(std::numbers::pi * (n + 0.5) / (span + 1));
               }))

Tensor general_cosine_impl(int64_t M, std::span<const double> a, bool sym, OptDType dtype, OptDevice device,
                           bool grad) {
  WT_CHECK(!a.empty(), ValueError, "general_cosine: Coefficients cannot be empty");
  return cosines(signal("general_cosine", M, sym, dtype, device, grad), a);
}
Tensor general_hamming_impl(int64_t M, double alpha, bool sym, OptDType dtype, OptDevice device, bool grad) {
  const double a[] = {alpha, 1 - alpha};
  return cosines(signal("general_hamming", M, sym, dtype, device, grad), a);
}
Tensor exponential_impl(int64_t M, std::optional<double> center, double tau, bool sym, OptDType dtype,
                        OptDevice device, bool grad) {
  WT_CHECK(tau > 0, ValueError, "exponential: Tau must be positive, got: ", tau, " instead.");
  WT_CHECK(!sym || !center, ValueError, "exponential: Center must be None for symmetric windows");
  return made(signal("exponential", M, sym, dtype, device, grad), [&](double n, double span) {
    return std::exp(-std::abs(n - center.value_or(span / 2)) / tau);
  });
}
Tensor gaussian_impl(int64_t M, double std, bool sym, OptDType dtype, OptDevice device, bool grad) {
  WT_CHECK(std > 0, ValueError, "gaussian: Standard deviation must be positive, got: ", std, " instead.");
  return made(signal("gaussian", M, sym, dtype, device, grad), [&](double n, double span) {
    const double z = (n - span / 2) / std;
    return std::exp(-z * z / 2);
  });
}
Tensor kaiser_impl(int64_t M, double beta, bool sym, OptDType dtype, OptDevice device, bool grad) {
  WT_CHECK(beta >= 0, ValueError, "kaiser: beta must be non-negative, got: ", beta, " instead.");
  return kaiser_of(signal("kaiser", M, sym, dtype, device, grad), beta);
}

const Arg kSym{"sym", true, kKeywordOnly}, kDtype{"dtype", none, kKeywordOnly},
    kDevice{"device", none, kKeywordOnly}, kGrad{"requires_grad", false, kKeywordOnly};

using Plain = Op<Tensor(int64_t, bool, OptDType, OptDevice, bool)>;
#define WT_WINDOW(NAME, DOC) \
  const Plain NAME { #NAME, NAME##_impl, kSignal, {"M", kSym, kDtype, kDevice, kGrad}, DOC }
WT_WINDOW(bartlett, "A triangle from 0 to 1 to 0.");
WT_WINDOW(blackman, "general_cosine with a = (0.42, 0.5, 0.08).");
WT_WINDOW(cosine, "The first half of a sine's period.");
WT_WINDOW(hamming, "general_hamming with alpha = 0.54.");
WT_WINDOW(hann, "general_hamming with alpha = 0.5.");
WT_WINDOW(nuttall, "Nuttall's window: general_cosine of four terms.");

using WithNumber = Op<Tensor(int64_t, double, bool, OptDType, OptDevice, bool)>;
const WithNumber gaussian{"gaussian",
                          gaussian_impl,
                          kSignal,
                          {"M", {"std", 1.0, kKeywordOnly}, kSym, kDtype, kDevice, kGrad},
                          "The density of a normal distribution, 1 at the middle."},
    general_hamming{"general_hamming",
                    general_hamming_impl,
                    kSignal,
                    {"M", {"alpha", 0.54, kKeywordOnly}, kSym, kDtype, kDevice, kGrad},
                    "alpha - (1 - alpha) cos(2 pi n / (M - 1))."},
    kaiser{"kaiser",
           kaiser_impl,
           kSignal,
           {"M", {"beta", 12.0, kKeywordOnly}, kSym, kDtype, kDevice, kGrad},
           "Kaiser's window: I0(beta sqrt(1 - t^2)) / I0(beta) for t from -1 to 1."};
const Op<Tensor(int64_t, std::span<const double>, bool, OptDType, OptDevice, bool)> general_cosine{
    "general_cosine",
    general_cosine_impl,
    kSignal,
    {"M", {"a", kKeywordOnly}, kSym, kDtype, kDevice, kGrad},
    "The sum of (-1)^i a[i] cos(2 pi i n / (M - 1))."};
const Op<Tensor(int64_t, std::optional<double>, double, bool, OptDType, OptDevice, bool)> exponential{
    "exponential",
    exponential_impl,
    kSignal,
    {"M", {"center", none, kKeywordOnly}, {"tau", 1.0, kKeywordOnly}, kSym, kDtype, kDevice, kGrad},
    "exp(-|n - center| / tau); the center is the middle unless given."};

// ---- the top level's -------------------------------------------------------------------------------------

Tensor hann_window_impl(int64_t n, bool periodic, OptDType dtype, OptDevice device, bool grad) {
  return cosines(root("hann_window", n, periodic, dtype, device, grad), kHann);
}
Tensor blackman_window_impl(int64_t n, bool periodic, OptDType dtype, OptDevice device, bool grad) {
  return cosines(root("blackman_window", n, periodic, dtype, device, grad), kBlackman);
}
Tensor bartlett_window_impl(int64_t n, bool periodic, OptDType dtype, OptDevice device, bool grad) {
  return triangle(root("bartlett_window", n, periodic, dtype, device, grad));
}
Tensor hamming_window_impl(int64_t n, bool periodic, double alpha, double beta, OptDType dtype,
                           OptDevice device, bool grad) {
  const double a[] = {alpha, beta};
  return cosines(root("hamming_window", n, periodic, dtype, device, grad), a);
}
Tensor kaiser_window_impl(int64_t n, bool periodic, double beta, OptDType dtype, OptDevice device,
                          bool grad) {
  return kaiser_of(root("kaiser_window", n, periodic, dtype, device, grad), beta);
}

#define WT_MADE \
  {"dtype", none, kKeywordOnly}, {"device", none, kKeywordOnly}, { "requires_grad", false, kKeywordOnly }
const Arg kLength{"window_length"}, kPeriodic{"periodic", true};
using WindowOp = Op<Tensor(int64_t, bool, OptDType, OptDevice, bool)>;
const WindowOp hann_window{
    "hann_window", hann_window_impl, kFunction, {kLength, kPeriodic, WT_MADE}, "(1 - cos(2 pi t)) / 2."},
    blackman_window{"blackman_window",
                    blackman_window_impl,
                    kFunction,
                    {kLength, kPeriodic, WT_MADE},
                    "0.42 - 0.5 cos(2 pi t) + 0.08 cos(4 pi t)."},
    bartlett_window{
        "bartlett_window", bartlett_window_impl, kFunction, {kLength, kPeriodic, WT_MADE}, "A triangle."};
const Op<Tensor(int64_t, bool, double, double, OptDType, OptDevice, bool)> hamming_window{
    "hamming_window",
    hamming_window_impl,
    kFunction,
    {kLength, kPeriodic, {"alpha", 0.54}, {"beta", 0.46}, WT_MADE},
    "alpha - beta cos(2 pi t)."};
const Op<Tensor(int64_t, bool, double, OptDType, OptDevice, bool)> kaiser_window{
    "kaiser_window",
    kaiser_window_impl,
    kFunction,
    {kLength, kPeriodic, {"beta", 12.0}, WT_MADE},
    "I0(beta sqrt(1 - (2 t - 1)^2)) / I0(beta), I0 being the modified Bessel function of order 0."};

}  // namespace
}  // namespace warptape::ops
