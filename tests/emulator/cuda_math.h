// CUDA's mathematical functions that the C library lacks, and its conversions. Part of cuda_runtime.h.
#pragma once

#include <math.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace emulator {
template <class T>
concept Number = std::is_arithmetic_v<T>;

// Newton's method on erfc in the tail and erf elsewhere, from Winitzki's closed form; good to the last
// digits.
inline double inverse_erf(double y) {
  if (!(fabs(y) < 1)) return fabs(y) == 1 ? copysign(HUGE_VAL, y) : NAN;
  constexpr double kA = 0.147, kSlope = 1.1283791670955126;  // 2 / sqrt(pi)
  double a = fabs(y), log_term = log1p(-a * a), t = 2 / (M_PI * kA) + log_term / 2;
  double x = sqrt(sqrt(t * t - log_term / kA) - t);
  for (int i = 0; i < 4; ++i) {
    double error = a < 0.5 ? erf(x) - a : (1 - a) - erfc(x);
    double step = error / (kSlope * exp(-x * x));
    x -= step / (1 + x * step);
  }
  return copysign(x, y);
}
// Keeps the compiler from fusing what CUDA promises to round.
template <class T>
T rounded(T x) {
  asm volatile("" : "+x"(x));
  return x;
}
}  // namespace emulator

template <emulator::Number A, emulator::Number B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return T(a) < T(b) || T(b) != T(b) ? T(a) : T(b);
  return T(a) < T(b) ? T(a) : T(b);
}
template <emulator::Number A, emulator::Number B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return T(a) > T(b) || T(b) != T(b) ? T(a) : T(b);
  return T(a) > T(b) ? T(a) : T(b);
}

#if !(defined(__GLIBC__) && __GLIBC_PREREQ(2, 42))  // which has rsqrt
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float rsqrtf(float x) { return static_cast<float>(1 / sqrt(static_cast<double>(x))); }
#endif
inline float rsqrt(float x) { return static_cast<float>(1 / sqrt(static_cast<double>(x))); }
#if !(defined(__GLIBC__) && __GLIBC_PREREQ(2, 41))  // which has the functions of pi x
inline double sinpi(double x) {
  double r = remainder(x, 2);
  return fabs(r) == 1 ? copysign(0.0, x) : sin(M_PI * r);
}
inline double cospi(double x) { return sinpi(fabs(remainder(x, 2)) + 0.5); }
inline float sinpif(float x) { return static_cast<float>(sinpi(static_cast<double>(x))); }
inline float cospif(float x) { return static_cast<float>(cospi(static_cast<double>(x))); }
#endif
inline void sincospi(double x, double* s, double* c) {
  *s = sinpi(x);
  *c = cospi(x);
}
inline void sincospif(float x, float* s, float* c) {
  *s = sinpif(x);
  *c = cospif(x);
}
inline double erfinv(double x) { return emulator::inverse_erf(x); }
inline float erfinvf(float x) { return static_cast<float>(emulator::inverse_erf(x)); }
inline float erfinv(float x) { return erfinvf(x); }
inline double erfcx(double x) { return exp(x * x) * erfc(x); }
inline double normcdf(double x) { return erfc(-x * M_SQRT1_2) / 2; }
inline float normcdff(float x) { return static_cast<float>(normcdf(static_cast<double>(x))); }

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline void __sincosf(float x, float* s, float* c) { sincosf(x, s, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }

inline float __fadd_rn(float a, float b) { return emulator::rounded(a + b); }
inline float __fsub_rn(float a, float b) { return emulator::rounded(a - b); }
inline float __fmul_rn(float a, float b) { return emulator::rounded(a * b); }
inline float __fdiv_rn(float a, float b) { return emulator::rounded(a / b); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __frcp_rn(float x) { return emulator::rounded(1 / x); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline double __dadd_rn(double a, double b) { return emulator::rounded(a + b); }
inline double __dsub_rn(double a, double b) { return emulator::rounded(a - b); }
inline double __dmul_rn(double a, double b) { return emulator::rounded(a * b); }
inline double __ddiv_rn(double a, double b) { return emulator::rounded(a / b); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline double __drcp_rn(double x) { return emulator::rounded(1 / x); }
inline double __dsqrt_rn(double x) { return sqrt(x); }

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline int __double2loint(double x) { return static_cast<int>(std::bit_cast<long long>(x)); }
inline int __double2hiint(double x) { return static_cast<int>(std::bit_cast<long long>(x) >> 32); }
inline double __hiloint2double(int high, int low) {
  return std::bit_cast<double>(uint64_t(static_cast<unsigned>(high)) << 32 | static_cast<unsigned>(low));
}

// To integers as PTX's cvt does it: what is out of range saturates. NaN is 0 where neither the source is
// double nor the integer of 64 bits, else the integer's highest bit alone.
namespace emulator {
template <class I, class F>
I saturated(F x) {
  using Limits = std::numeric_limits<I>;
  constexpr F kEnd = F(2) * F(I(1) << (Limits::digits - 1));  // the first that is too large
  if (x != x)
    return sizeof(F) == 4 && sizeof(I) == 4 ? I(0) : static_cast<I>(uint64_t(1) << (8 * sizeof(I) - 1));
  if (x >= kEnd) return Limits::max();
  return x <= F(Limits::lowest()) ? Limits::lowest() : static_cast<I>(x);
}
}  // namespace emulator
#define EMULATOR_CONVERT(from, T, to, I)                                                         \
  inline I __##from##2##to##_rn(T x) { return emulator::saturated<I>(T(nearbyint(double(x)))); } \
  inline I __##from##2##to##_rz(T x) { return emulator::saturated<I>(T(trunc(double(x)))); }     \
  inline I __##from##2##to##_rd(T x) { return emulator::saturated<I>(T(floor(double(x)))); }     \
  inline I __##from##2##to##_ru(T x) { return emulator::saturated<I>(T(ceil(double(x)))); }
EMULATOR_CONVERT(float, float, int, int)
EMULATOR_CONVERT(float, float, uint, unsigned)
EMULATOR_CONVERT(float, float, ll, long long)
EMULATOR_CONVERT(float, float, ull, unsigned long long)
EMULATOR_CONVERT(double, double, int, int)
EMULATOR_CONVERT(double, double, uint, unsigned)
EMULATOR_CONVERT(double, double, ll, long long)
EMULATOR_CONVERT(double, double, ull, unsigned long long)
#undef EMULATOR_CONVERT
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
