// Special functions by the C and C++ libraries' own, orthogonal polynomials by their recurrences.
#include "kernels/special.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/cpu/parallel.h"
#include "kernels/dispatch.h"
#include "kernels/slot.h"

namespace warptape::kernels::cpu {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(),
                 kNaN = std::numeric_limits<double>::quiet_NaN(), kPi = std::numbers::pi;

// ---- of one number --------------------------------------------------------------------------------------

// By Bessel functions of order 1/3; "NIST Handbook of Mathematical Functions", 9.6.
double airy_ai(double x) {
  if (std::isnan(x) || std::isinf(x)) return std::isnan(x) ? x : x > 0 ? 0.0 : kNaN;
  if (x == 0) return 0.355028053887817239;
  const double z = std::sqrt(std::abs(x)), xi = 2.0 / 3 * z * z * z;
  if (x > 0) return xi > 700 ? 0.0 : std::sqrt(x / 3) / kPi * std::cyl_bessel_k(1.0 / 3, xi);
  if (xi > 1000)  // 9.7.9
    return std::cos(xi - kPi / 4) / (std::sqrt(kPi) * std::sqrt(z));
  const double j = std::cyl_bessel_j(1.0 / 3, xi), y = std::cyl_neumann(1.0 / 3, xi);
  const double negative = j * std::cos(kPi / 3) - y * std::sin(kPi / 3);  // of order -1/3
  return z / 3 * (j + negative);
}

// exp(x^2) erfc(x).
double erfcx(double x) {
  if (x < 25) return x < -26.7 ? kInf : std::exp(x * x) * std::erfc(x);
  const double s = 0.5 / (x * x);
  return (1 - s * (1 - 3 * s * (1 - 5 * s * (1 - 7 * s)))) * std::numbers::inv_sqrtpi / x;
}

double modified_k(double order, double x, bool scaled) {
  if (!(x > 0)) return x == 0 ? kInf : kNaN;
  if (x > 600) {  // K(x) ~ sqrt(pi / 2x) exp(-x) (1 + (4 v^2 - 1) / 8x + ...)
    const double m = 4 * order * order, e = 8 * x;
    const double series = 1 + (m - 1) / e * (1 + (m - 9) / (2 * e) * (1 + (m - 25) / (3 * e)));
    return std::sqrt(kPi / (2 * x)) * series * (scaled ? 1.0 : std::exp(-x));
  }
  return std::cyl_bessel_k(order, x) * (scaled ? std::exp(x) : 1.0);
}

double modified_i(double order, double x) {
  if (std::isnan(x)) return x;
  const double sign = order == 1 && x < 0 ? -1 : 1;
  return sign * (std::abs(x) > 720 ? kInf : std::cyl_bessel_i(order, std::abs(x)));
}

double special(SpecialFunction f, double x) {
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
double recur(int64_t n, double first, F&& next) {
  if (n < 0) return 0;
  double before = 1, now = first;
  if (n == 0) return before;
  for (int64_t k = 1; k < n && !std::isnan(now); ++k) {
    const double after = next(static_cast<double>(k), now, before);
    before = now, now = after;
  }
  return now;
}
double chebyshev(int64_t n, double x, double first) {
  return recur(n, first, [x](double, double p, double q) { return 2 * x * p - q; });
}
bool odd(int64_t n) { return n % 2 != 0; }

// Euler and Maclaurin's sum of (q + k)^-x ("Cephes Mathematical Library", zeta.c).
double zeta(double x, double q) {
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
double of_degree(SpecialPairFunction f, double x, int64_t n) {
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
double special(SpecialPairFunction f, double a, double b) {
  if (f == SpecialPairFunction::Zeta) return zeta(a, b);
  return std::isnan(b) ? kNaN : of_degree(f, a, static_cast<int64_t>(b));
}

// ---- slots ----------------------------------------------------------------------------------------------

void special_unary(const LaunchContext&, SpecialFunction f, DType dtype, int64_t n, void* out,
                   const void* x) {
  dispatch(Types<float, double>{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    parallel_for(n, 512, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        static_cast<T*>(out)[i] = T(special(f, double(static_cast<const T*>(x)[i])));
    });
  });
}

void special_pair(const LaunchContext&, SpecialPairFunction f, DType dtype, int64_t n, void* out,
                  const void* a, const void* b) {
  dispatch(Types<float, double>{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    parallel_for(n, 512, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        static_cast<T*>(out)[i] =
            T(special(f, double(static_cast<const T*>(a)[i]), double(static_cast<const T*>(b)[i])));
    });
  });
}

}  // namespace

WT_KERNEL(special_unary, special_unary);
WT_KERNEL(special_pair, special_pair);

}  // namespace warptape::kernels::cpu
