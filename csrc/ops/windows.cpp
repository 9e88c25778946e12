// torch.signal.windows: M numbers computed in double. Symmetric windows span all M points, periodic ones (sym
// false) are those of one point more without the last.
#include <cmath>
#include <numbers>

#include "ops/copy.h"

namespace warptape::ops {
namespace {

using OptDType = std::optional<DType>;
using OptDevice = std::optional<Device>;

// `at` of each point 0, 1, .. M - 1.
template <class F>
Tensor window(const char* op, int64_t M, OptDType dtype, OptDevice device, bool needs_grad, F&& at) {
  WT_CHECK(M >= 0, ValueError, op, " requires non-negative window length, got M=", M);
  const DType t = dtype.value_or(rank_context().default_dtype);
  WT_CHECK(t == DType::Float32 || t == DType::Float64, ValueError, op,
           " expects float32 or float64 dtypes, got: ", t);
  const Tensor wide = empty(Shape{M}, {DType::Float64, {}});
  for (int64_t n = 0; n < M; ++n) wide.data_as<double>()[n] = at(static_cast<double>(n));
  Tensor out = to(wide, device ? *device : default_device(), t, false, false);
  if (needs_grad) set_requires_grad(out, true);
  return out;
}
// The distance between the first and the last of the points that a window spans.
double span_of(int64_t M, bool sym) { return static_cast<double>(sym || M < 2 ? M - 1 : M); }

Tensor cosines(const char* op, int64_t M, std::span<const double> a, bool sym, OptDType dtype,
               OptDevice device, bool grad) {
  WT_CHECK(!a.empty(), ValueError, op, ": Coefficients cannot be empty");
  const double turn = 2 * std::numbers::pi / std::max(span_of(M, sym), 1.0);
  return window(op, M, dtype, device, grad, [&](double n) {
    if (M == 1) return 1.0;
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i)
      sum += (i % 2 ? -a[i] : a[i]) * std::cos(turn * static_cast<double>(i) * n);
    return sum;
  });
}
Tensor general_cosine_impl(int64_t M, std::span<const double> a, bool sym, OptDType dtype, OptDevice device,
                           bool grad) {
  return cosines("general_cosine", M, a, sym, dtype, device, grad);
}
Tensor general_hamming_impl(int64_t M, double alpha, bool sym, OptDType dtype, OptDevice device, bool grad) {
  const double a[] = {alpha, 1 - alpha};
  return cosines("general_hamming", M, a, sym, dtype, device, grad);
}
Tensor hamming_impl(int64_t M, bool sym, OptDType dtype, OptDevice device, bool grad) {
  const double a[] = {0.54, 0.46};
  return cosines("hamming", M, a, sym, dtype, device, grad);
}
Tensor hann_impl(int64_t M, bool sym, OptDType dtype, OptDevice device, bool grad) {
  const double a[] = {0.5, 0.5};
  return cosines("hann", M, a, sym, dtype, device, grad);
}
Tensor blackman_impl(int64_t M, bool sym, OptDType dtype, OptDevice device, bool grad) {
  const double a[] = {0.42, 0.5, 0.08};
  return cosines("blackman", M, a, sym, dtype, device, grad);
}
Tensor nuttall_impl(int64_t M, bool sym, OptDType dtype, OptDevice device, bool grad) {
  const double a[] = {0.3635819, 0.4891775, 0.1365995, 0.0106411};
  return cosines("nuttall", M, a, sym, dtype, device, grad);
}

Tensor bartlett_impl(int64_t M, bool sym, OptDType dtype, OptDevice device, bool grad) {
  const double span = std::max(span_of(M, sym), 1.0);
  return window("bartlett", M, dtype, device, grad,
                [&](double n) { return M == 1 ? 1.0 : 1 - std::abs(2 * n / span - 1); });
}
Tensor cosine_impl(int64_t M, bool sym, OptDType dtype, OptDevice device, bool grad) {
  const double points = span_of(M, sym) + 1;
  return window("cosine", M, dtype, device, grad,
                [&](double n) { return std::sin(std::numbers::pi * (n + 0.5) / points); });
}
Tensor exponential_impl(int64_t M, std::optional<double> center, double tau, bool sym, OptDType dtype,
                        OptDevice device, bool grad) {
  WT_CHECK(tau > 0, ValueError, "exponential: Tau must be positive, got: ", tau, " instead.");
  WT_CHECK(!sym || !center, ValueError, "exponential: Center must be None for symmetric windows");
  const double middle = center.value_or(span_of(M, sym) / 2);
  return window("exponential", M, dtype, device, grad,
                [&](double n) { return std::exp(-std::abs(n - middle) / tau); });
}
Tensor gaussian_impl(int64_t M, double std, bool sym, OptDType dtype, OptDevice device, bool grad) {
  WT_CHECK(std > 0, ValueError, "gaussian: Standard deviation must be positive, got: ", std, " instead.");
  const double middle = span_of(M, sym) / 2;
  return window("gaussian", M, dtype, device, grad, [&](double n) {
    const double z = (n - middle) / std;
    return std::exp(-z * z / 2);
  });
}
Tensor kaiser_impl(int64_t M, double beta, bool sym, OptDType dtype, OptDevice device, bool grad) {
  WT_CHECK(beta >= 0, ValueError, "kaiser: beta must be non-negative, got: ", beta, " instead.");
  const double span = std::max(span_of(M, sym), 1.0), whole = std::cyl_bessel_i(0, beta);
  return window("kaiser", M, dtype, device, grad, [&](double n) {
    const double t = 2 * n / span - 1;
    return M == 1 ? 1.0 : std::cyl_bessel_i(0, beta * std::sqrt(std::max(0.0, 1 - t * t))) / whole;
  });
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

}  // namespace
}  // namespace warptape::ops
