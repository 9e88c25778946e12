// The math set of device code (see kernels/elementwise/formulas.h): values are float, double or int64_t,
// masks are bool.
#pragma once

#include "kernels/cuda/common/launch.cuh"
#include "kernels/dispatch.h"

#define WARPTAPE_ISA cuda
#define WT_FN WT_DEVICE
#define WT_FN_OUTLINED [[maybe_unused]] static __device__ __attribute__((noinline))

namespace warptape::kernels::cuda {

template <class V> inline constexpr bool kIsInteger = std::is_integral_v<V>;
template <class V> inline constexpr bool kIsFloat = std::is_floating_point_v<V>;

template <class V>
WT_DEVICE V select(bool mask, V a, V b) {
  return mask ? a : b;
}

// ---- one library function for each of float and double ----
#define WT_MATH1(name)                                   \
  WT_DEVICE float name(float x) { return ::name##f(x); } \
  WT_DEVICE double name(double x) { return ::name(x); }
WT_MATH1(exp);
WT_MATH1(exp2);
WT_MATH1(expm1);
WT_MATH1(log);
WT_MATH1(log2);
WT_MATH1(log10);
WT_MATH1(log1p);
WT_MATH1(sqrt);
WT_MATH1(sin);
WT_MATH1(cos);
WT_MATH1(tan);
WT_MATH1(asin);
WT_MATH1(acos);
WT_MATH1(atan);
WT_MATH1(sinh);
WT_MATH1(cosh);
WT_MATH1(tanh);
WT_MATH1(asinh);
WT_MATH1(acosh);
WT_MATH1(atanh);
WT_MATH1(erf);
WT_MATH1(erfc);
WT_MATH1(erfinv);
WT_MATH1(lgamma);
WT_MATH1(floor);
WT_MATH1(ceil);
WT_MATH1(trunc);
#undef WT_MATH1
#define WT_MATH2(name)                                               \
  WT_DEVICE float name(float a, float b) { return ::name##f(a, b); } \
  WT_DEVICE double name(double a, double b) { return ::name(a, b); }
WT_MATH2(fmod);
WT_MATH2(atan2);
WT_MATH2(hypot);
WT_MATH2(copysign);
#undef WT_MATH2

WT_DEVICE float rsqrt(float x) { return ::rsqrtf(x); }
WT_DEVICE double rsqrt(double x) { return ::rsqrt(x); }
WT_DEVICE float round(float x) { return ::rintf(x); }  // halves to even
WT_DEVICE double round(double x) { return ::rint(x); }
WT_DEVICE float abs(float x) { return ::fabsf(x); }
WT_DEVICE double abs(double x) { return ::fabs(x); }
WT_DEVICE int64_t abs(int64_t x) { return x < 0 ? int64_t(0 - uint64_t(x)) : x; }
WT_DEVICE float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
WT_DEVICE double fma(double a, double b, double c) { return ::fma(a, b, c); }
WT_DEVICE int64_t fma(int64_t a, int64_t b, int64_t c) {
  return int64_t(uint64_t(a) * uint64_t(b) + uint64_t(c));
}
template <class V>
WT_DEVICE bool isnan(V x) {
  return x != x;
}
template <class V>
WT_DEVICE bool isinf(V x) {
  return abs(x) == V(__builtin_inf());
}
template <class V>
WT_DEVICE bool isfinite(V x) {
  return abs(x) < V(__builtin_inf());
}
// b where either is a NaN.
template <class V>
WT_DEVICE V max_or_b(V a, V b) {
  return a > b ? a : b;
}
// NaN wins.
template <class V>
WT_DEVICE V maximum(V a, V b) {
  return a > b || a != a ? a : b;
}
template <class V>
WT_DEVICE V minimum(V a, V b) {
  return a < b || a != a ? a : b;
}
template <class V>
WT_DEVICE V sigmoid(V x) {
  return V(1) / (V(1) + exp(-x));
}

// ---- powers ----
WT_DEVICE float pow(float a, float b) { return ::powf(a, b); }
WT_DEVICE double pow(double a, double b) { return ::pow(a, b); }
WT_DEVICE int64_t pow(int64_t a, int64_t b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
  uint64_t result = 1, base = uint64_t(a);
  for (; b; b >>= 1, base *= base)
    if (b & 1) result *= base;
  return int64_t(result);
}

// ---- integers. A divisor of zero gives -1: there is no trap on the device, and no waiting to raise one ----
WT_DEVICE int64_t trunc_divide(int64_t a, int64_t b) {
  if (b == 0) return -1;
  return b == -1 ? int64_t(0 - uint64_t(a)) : a / b;
}
WT_DEVICE int64_t fmod(int64_t a, int64_t b) { return b == 0 ? -1 : b == -1 ? 0 : a % b; }
WT_DEVICE int64_t remainder(int64_t a, int64_t b) {
  const int64_t r = fmod(a, b);
  return b != 0 && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
WT_DEVICE int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t q = trunc_divide(a, b);
  return b != 0 && b != -1 && a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}
WT_DEVICE int64_t shift_left(int64_t a, int64_t b) { return b < 0 || b > 63 ? 0 : int64_t(uint64_t(a) << b); }
WT_DEVICE int64_t shift_right(int64_t a, int64_t b) { return b < 0 || b > 63 ? (a < 0 ? -1 : 0) : a >> b; }

// ---- gamma's relatives. The recurrence carries x to where the asymptotic series holds (Abramowitz and
// Stegun, 6.3.18 and 6.4.11) ----
WT_DEVICE double digamma(double x) {
  if (x == 0) return ::copysign(__builtin_inf(), -x);
  double sum = 0;
  if (x < 0) {  // reflection
    if (x == ::floor(x)) return __builtin_nan("");
    sum = -M_PI / ::tan(M_PI * (x - ::floor(x)));
    x = 1 - x;
  }
  for (; x < 10; x += 1) sum -= 1 / x;
  const double z = 1 / (x * x);
  const double series =
      z * (1.0 / 12 -
           z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760))))));
  return sum + ::log(x) - 0.5 / x - series;
}
WT_DEVICE float digamma(float x) { return float(digamma(double(x))); }

// Hurwitz zeta function for integer s > 1 by Euler and Maclaurin's sum.
WT_DEVICE double hurwitz_zeta(double s, double q) {
  constexpr double kBernoulli[] = {1.0 / 6, -1.0 / 30, 1.0 / 42, -1.0 / 30, 5.0 / 66, -691.0 / 2730, 7.0 / 6};
  if (q <= 0 && q == ::floor(q)) return __builtin_inf();
  double sum = 0;
  for (; q < 12; q += 1) sum += ::pow(q, -s);
  sum += ::pow(q, 1 - s) / (s - 1) + 0.5 * ::pow(q, -s);
  double factor = s * ::pow(q, -s - 1), fact = 2;
  for (int k = 0; k < 7; ++k) {
    sum += kBernoulli[k] / fact * factor;
    factor *= (s + 2 * k + 1) * (s + 2 * k + 2) / (q * q);
    fact *= (2 * k + 3) * (2 * k + 4);
  }
  return sum;
}
WT_DEVICE double lgamma_of(double x) { return ::lgamma(x); }
WT_FN_OUTLINED double polygamma_of(double x, double order) {
  if (order == 0) return digamma(x);
  const double value = ::tgamma(order + 1) * hurwitz_zeta(order + 1, x);
  return int64_t(order) % 2 ? value : -value;
}
template <class V>
WT_DEVICE V polygamma(V x, V n) {
  return V(polygamma_of(x, n));
}
}  // namespace warptape::kernels::cuda

#include "kernels/elementwise/gamma.h"

namespace warptape::kernels::cuda {

template <class V>
WT_DEVICE V igamma(V a, V x) {
  return V(incomplete_gamma(a, x, false));
}
template <class V>
WT_DEVICE V igammac(V a, V x) {
  return V(incomplete_gamma(a, x, true));
}

}  // namespace warptape::kernels::cuda
