// Special functions of one number and of two, in float64, for host and device code.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/elementwise/special.h"

namespace warptape::kernels::special {

constexpr double kInf = std::numeric_limits<double>::infinity(),
                 kNaN = std::numeric_limits<double>::quiet_NaN(), kPi = std::numbers::pi;

// ---- of one number --------------------------------------------------------------------------------------

// exp(x^2) erfc(x).
WT_INLINE double erfcx(double x) {
  if (x < 25) return x < -26.7 ? kInf : std::exp(x * x) * std::erfc(x);
  const double s = 0.5 / (x * x);
  return (1 - s * (1 - 3 * s * (1 - 5 * s * (1 - 7 * s)))) * std::numbers::inv_sqrtpi / x;
}

// The step of the trapezoidal rule over exp(-x (cosh t - 1)), which double precision needs: the integrand is
// analytic within |Im t| < pi / 2, and nearly a Gaussian of width 1 / sqrt(x) where x is large (Trefethen and
// Weideman, "The exponentially convergent trapezoidal rule", SIAM Review 56, 2014).
WT_INLINE double trapezoid_step(double x) { return x < 5 ? 0.25 : 0.55 / std::sqrt(x); }

// The integral of exp(-x (cosh t - 1)) cosh(order t) over t > 0, which is exp(x) K(x) ("NIST Digital Library
// of Mathematical Functions", 10.32.9).
WT_INLINE double scaled_bessel_k(double order, double x) {
  const double step = trapezoid_step(x);
  double sum = 0.5;
  for (double t = step;; t += step) {
    const double half = std::sinh(t / 2), term = std::exp(-2 * x * half * half) * std::cosh(order * t);
    sum += term;
    if (!(term > sum * 1e-18)) return sum * step;
  }
}

WT_INLINE double modified_k(double order, double x, bool scaled) {
  if (!(x > 0)) return x == 0 ? kInf : kNaN;
  return std::isinf(x) ? 0.0 : scaled_bessel_k(order, x) * (scaled ? 1.0 : std::exp(-x));
}

// The mean over a circle of cosh(x cos t) or of sinh(x cos t) cos t ("NIST Digital Library of Mathematical
// Functions", 10.32.3), by halves of the argument, whose products do not overflow early.
WT_INLINE double modified_i(int order, double x) {
  if (std::isnan(x) || std::isinf(x)) return order == 0 ? std::abs(x) : x;
  const int points = 24 + static_cast<int>(5 * std::sqrt(std::min(std::abs(x), 800.0)));
  double sum = 0;
  for (int i = 0; i < points; ++i) {
    const double c = std::cos(kPi * i / points), half = x * c / 2;
    sum += 2 * std::cosh(half) / points * (order == 0 ? std::cosh(half) : std::sinh(half) * c);
  }
  return order == 0 ? sum - 1 : sum;
}

// The imaginary part of the integral of exp(i x cosh t) cosh(t / 3) over t > 0, on the path t = s + i a(s)
// with a(s) = pi/2 tanh(s), where it does not oscillate without end.
WT_INLINE double airy_integral(double x) {
  const double step = trapezoid_step(x) / 2;
  double sum = 0, size = 0;
  for (double s = 0;; s += step) {
    const double tanh = std::tanh(s), a = kPi / 2 * tanh, da = kPi / 2 * (1 - tanh * tanh);
    const double decay = std::exp(-x * std::sinh(s) * std::sin(a)), phase = x * std::cosh(s) * std::cos(a);
    const double re = std::cosh(s / 3) * std::cos(a / 3), im = std::sinh(s / 3) * std::sin(a / 3);
    const double real = re - im * da, imaginary = im + re * da;  // of cosh(t / 3) dt
    const double term = decay * (real * std::sin(phase) + imaginary * std::cos(phase));
    sum += s == 0 ? term / 2 : term;
    size = decay * (std::abs(real) + std::abs(imaginary));
    if (!(size > 1e-18)) return sum * step;
  }
}

// By Bessel functions of order 1/3 ("NIST Digital Library of Mathematical Functions", 9.6.2 and 9.6.6).
WT_INLINE double airy_ai(double x) {
  if (std::isnan(x) || std::isinf(x)) return std::isnan(x) ? x : x > 0 ? 0.0 : kNaN;
  if (x == 0) return 0.355028053887817239;
  const double size = std::abs(x), xi = 2.0 / 3 * size * std::sqrt(size);
  if (x > 0) return std::sqrt(x / 3) / kPi * modified_k(1.0 / 3, xi, false);
  if (xi > 1e8)  // 9.7.9; the argument of the sine has no digits to spare
    return std::sin(xi + kPi / 4) / (std::sqrt(kPi) * std::sqrt(std::sqrt(size)));
  return std::sqrt(size / 3) * 2 / kPi * airy_integral(xi);
}

WT_INLINE double evaluate(SpecialFunction f, double x) {
  switch (f) {
    case SpecialFunction::AiryAi:
      return airy_ai(x);
    case SpecialFunction::BesselJ0:
      return ::j0(x);
    case SpecialFunction::BesselJ1:
      return ::j1(x);
    case SpecialFunction::BesselY0:
      return x < 0 ? kNaN : ::y0(x);
    case SpecialFunction::BesselY1:
      return x < 0 ? kNaN : ::y1(x);
    case SpecialFunction::ModifiedBesselI0:
      return modified_i(0, x);
    case SpecialFunction::ModifiedBesselI1:
      return modified_i(1, x);
    case SpecialFunction::ModifiedBesselK0:
      return modified_k(0, x, false);
    case SpecialFunction::ModifiedBesselK1:
      return modified_k(1, x, false);
    case SpecialFunction::ScaledModifiedBesselK0:
      return modified_k(0, x, true);
    case SpecialFunction::ScaledModifiedBesselK1:
      return modified_k(1, x, true);
    case SpecialFunction::SphericalBesselJ0:
      return std::isinf(x) ? 0.0 : x == 0 ? 1.0 : std::sin(x) / x;
    case SpecialFunction::Entr:
      return x > 0 ? -x * std::log(x) : x == 0 ? 0.0 : x < 0 ? -kInf : x;
    case SpecialFunction::Erfcx:
      return erfcx(x);
    case SpecialFunction::LogNdtr: {
      const double z = x / std::numbers::sqrt2;
      return x < -1 ? std::log(erfcx(-z) / 2) - z * z : std::log1p(-std::erfc(z) / 2);
    }
    case SpecialFunction::Ndtr:
      return std::erfc(-x / std::numbers::sqrt2) / 2;
  }
  return kNaN;
}

// ---- of two numbers --------------------------------------------------------------------------------------

// p[k + 1] = (a(k) x + b(k)) p[k] - c(k) p[k - 1], from 1 and `first`.
template <class F>
WT_INLINE double recur(int64_t n, double first, F&& next) {
  if (n < 0) return 0;
  double before = 1, now = first;
  if (n == 0) return before;
  for (int64_t k = 1; k < n && !std::isnan(now); ++k) {
    const double after = next(static_cast<double>(k), now, before);
    before = now, now = after;
  }
  return now;
}
WT_INLINE double chebyshev(int64_t n, double x, double first) {
  return recur(n, first, [x](double, double p, double q) { return 2 * x * p - q; });
}
WT_INLINE bool odd(int64_t n) { return n % 2 != 0; }

// Euler and Maclaurin's sum of (q + k)^-x ("Cephes Mathematical Library", zeta.c).
WT_INLINE double zeta(double x, double q) {
  constexpr double kTerms[] = {12.0,
                               -720.0,
                               30240.0,
                               -1209600.0,
                               47900160.0,
                               -1.8924375803183791606e9,
                               7.47242496e10,
                               -2.950130727918164224e12,
                               1.1646782814350067249e14,
                               -4.5979787224074726105e15,
                               1.8152105401943546773e17,
                               -7.1661652561756670113e18};
  if (x == 1) return kInf;
  if (!(x >= 1)) return kNaN;
  if (q <= 0) {
    if (q == std::floor(q)) return kInf;
    if (x != std::floor(x)) return kNaN;
  }
  double s = std::pow(q, -x), a = q, b = 0;
  for (int i = 0; i < 9 || a <= 9; ++i) {
    a += 1;
    b = std::pow(a, -x);
    s += b;
    if (std::abs(b) < std::abs(s) * 1e-17) return s;
  }
  s += b * a / (x - 1) - 0.5 * b;
  double factor = 1, k = 0;
  for (double term : kTerms) {
    factor *= x + k;
    b /= a;
    const double t = factor * b / term;
    s += t;
    if (std::abs(t) < std::abs(s) * 1e-17) return s;
    k += 1;
    factor *= x + k;
    b /= a;
    k += 1;
  }
  return s;
}

// Degrees above 6 or 8 within [-1, 1] by their trigonometric form, as PyTorch has them.
WT_INLINE double of_degree(SpecialPairFunction f, double x, int64_t n) {
  const auto m = static_cast<double>(n);
  const double one_end = x == -1 && odd(n) ? -1.0 : 1.0;  // of those that are 1 or -1 at the ends
  switch (f) {
    case SpecialPairFunction::ChebyshevT:
      if (n >= 0 && std::abs(x) == 1) return one_end;
      return n > 6 && std::abs(x) < 1 ? std::cos(m * std::acos(x)) : chebyshev(n, x, x);
    case SpecialPairFunction::ChebyshevU:
      if (n >= 0 && std::abs(x) == 1) return one_end * (m + 1);
      if (n > 8 && std::abs(x) < 1) return std::sin((m + 1) * std::acos(x)) / std::sin(std::acos(x));
      return chebyshev(n, x, 2 * x);
    case SpecialPairFunction::ChebyshevV:
      if (n >= 0 && std::abs(x) == 1) return x > 0 ? 1.0 : odd(n) ? -(2 * m + 1) : 2 * m + 1;
      if (n > 8 && std::abs(x) < 1) return std::cos((m + 0.5) * std::acos(x)) / std::cos(std::acos(x) / 2);
      return chebyshev(n, x, 2 * x - 1);
    case SpecialPairFunction::ChebyshevW:
      if (n >= 0 && std::abs(x) == 1) return x > 0 ? 2 * m + 1 : odd(n) ? -1.0 : 1.0;
      if (n > 8 && std::abs(x) < 1) return std::sin((m + 0.5) * std::acos(x)) / std::sin(std::acos(x) / 2);
      return chebyshev(n, x, 2 * x + 1);
    case SpecialPairFunction::HermiteH:
      return recur(n, 2 * x, [x](double k, double p, double q) { return 2 * x * p - 2 * k * q; });
    case SpecialPairFunction::HermiteHe:
      return recur(n, x, [x](double k, double p, double q) { return x * p - k * q; });
    case SpecialPairFunction::LaguerreL:
      return recur(n, 1 - x,
                   [x](double k, double p, double q) { return ((2 * k + 1 - x) * p - k * q) / (k + 1); });
    case SpecialPairFunction::LegendreP:
      if (n >= 0 && std::abs(x) == 1) return one_end;
      return recur(n, x,
                   [x](double k, double p, double q) { return ((2 * k + 1) * x * p - k * q) / (k + 1); });
    case SpecialPairFunction::Zeta:
      break;
  }
  return kNaN;
}
WT_INLINE double evaluate(SpecialPairFunction f, double a, double b) {
  if (f == SpecialPairFunction::Zeta) return zeta(a, b);
  return std::isnan(b) ? kNaN : of_degree(f, a, static_cast<int64_t>(b));
}

}  // namespace warptape::kernels::special
