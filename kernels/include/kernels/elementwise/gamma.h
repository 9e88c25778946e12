// The incomplete gamma functions of one pair of numbers, in double, for the math sets of all backends: P(a,
// x) from its power series, Q(a, x) from a continued fraction (Abramowitz and Stegun 6.5.29 and 6.5.31). The
// including file has WT_FN_OUTLINED (a function that is not inlined: these are long), and lgamma_of(double)
// before.
#pragma once

#include <math.h>

namespace warptape::kernels::WARPTAPE_ISA {

// x^a e^-x / Gamma(a + 1). For large a by Stirling's series, as the exponents cancel.
WT_FN_OUTLINED double gamma_weight(double a, double x) {
  if (a < 20) return ::exp(a * ::log(x) - x - lgamma_of(a + 1));
  const double mu = (x - a) / a, r = 1 / (a * a);
  const double stirling = (1.0 / 12 - r * (1.0 / 360 - r * (1.0 / 1260 - r / 1680))) / a;
  const double apart = ::fabs(mu) < 0.5 ? ::log1p(mu) - mu : ::log(x / a) - mu;
  return ::exp(a * apart - stirling) / ::sqrt(6.28318530717958647693 * a);
}

// log Gamma(1 + a), also where it is next to 0.
WT_FN_OUTLINED double lgamma_one_plus(double a) {
  constexpr double kTaylor[] = {-0.57721566490153286061, 0.82246703342411321824,  -0.40068563438653142847,
                                0.27058080842778454788,  -0.20738555102867398527, 0.16955717699740818995};
  if (a > 0.01) return lgamma_of(1 + a);
  double sum = 0;
  for (int k = 5; k >= 0; --k) sum = kTaylor[k] + a * sum;
  return a * sum;
}

// Q for small a and x, where 1 - P has no bits left.
WT_FN_OUTLINED double gamma_small_upper(double a, double x) {
  double term = 1, sum = 0;
  for (int n = 1; n < 60; ++n) {
    term *= -x / n;
    sum += term / (a + n);
  }
  const double log_power = a * ::log(x) - lgamma_one_plus(a);
  return -::expm1(log_power) - ::exp(log_power) * a * sum;
}

WT_FN_OUTLINED double incomplete_gamma(double a, double x, bool upper) {
  if (!(a >= 0) || !(x >= 0) || (a == 0 && x == 0)) return __builtin_nan("");
  const double infinity = __builtin_inf();
  if (a == infinity && x == infinity) return __builtin_nan("");
  if (a == 0 || x == infinity) return upper ? 0 : 1;
  if (x == 0 || a == infinity) return upper ? 1 : 0;
  if (a < 1 && x < 1.1 && upper) return gamma_small_upper(a, x);
  const double weight = gamma_weight(a, x), steps = 500 + 20 * ::sqrt(a);
  constexpr double kEnough = 1.1e-16;
  if (x < a + 1) {
    double term = 1, sum = 1;
    for (double n = 1; n < steps && term > sum * kEnough; ++n) sum += term *= x / (a + n);
    return upper ? 1 - weight * sum : weight * sum;
  }
  // Lentz's method.
  double b = x + 1 - a, c = 1e300, d = 1 / b, fraction = d;
  for (double n = 1; n < steps; ++n) {
    const double k = n * (a - n);
    b += 2;
    d = 1 / (k * d + b);
    c = b + k / c;
    fraction *= c * d;
    if (::fabs(c * d - 1) < kEnough) break;
  }
  const double q = weight * a * fraction;
  return upper ? q : 1 - q;
}

}  // namespace warptape::kernels::WARPTAPE_ISA
