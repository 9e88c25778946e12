// The math sets of kernels/cpu on vectors against libm in long double, in units in the last place (ulp) of
// the exact result, over random magnitudes, the range where the function does most, and special values; at
// the instruction set it is compiled for. Prints what is wrong, and with an argument every worst error;
// test_vector_layer.py runs it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/vector/vecmath.h"

using namespace warptape;
using namespace warptape::kernels;
namespace isa = warptape::kernels::WARPTAPE_ISA;

constexpr int kRandom = 1 << 15;
int failures = 0;
bool print_all = false;

template <class T>
double ulps(T got, long double exact) {
  const T rounded = T(exact);
  if (std::isnan(rounded) || std::isnan(got)) return std::isnan(rounded) && std::isnan(got) ? 0 : 1e30;
  if (got == rounded) return got != 0 || std::signbit(got) == std::signbit(rounded) ? double(0) : 1e30;
  if (std::isinf(got) != std::isinf(rounded)) {  // one step from the largest is still a step
    const T most = std::numeric_limits<T>::max();
    return std::abs(std::isinf(got) ? rounded : got) == most ? 1 : 1e30;
  }
  const int digits = std::numeric_limits<T>::digits, lowest = std::numeric_limits<T>::min_exponent - 1;
  const int e = std::max(exact == 0 ? lowest : std::ilogb(exact), lowest) - digits + 1;
  return double(std::abs(std::ldexp((long double)(got)-exact, -e)));
}

template <class T>
std::vector<T> arguments(double range) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> v = {0,
                      -T(0),
                      1,
                      -1,
                      Limits::infinity(),
                      -Limits::infinity(),
                      Limits::quiet_NaN(),
                      Limits::denorm_min(),
                      -Limits::denorm_min(),
                      Limits::min(),
                      Limits::max(),
                      -Limits::max(),
                      Limits::epsilon(),
                      T(0.5),
                      T(-0.5),
                      T(2),
                      T(-2),
                      T(-3),
                      T(710),
                      T(88.9),
                      T(1e5),
                      T(-30000.5),
                      T(1) - Limits::epsilon() / 2,
                      T(-1) + Limits::epsilon() / 2,
                      T(1) + Limits::epsilon(),
                      T(1e-3),
                      T(29999.9)};
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform(-range, range), sign(-1, 1);
  std::uniform_real_distribution<double> power(Limits::min_exponent - Limits::digits, Limits::max_exponent);
  for (int i = 0; i < kRandom; ++i) {
    v.push_back(T(uniform(random)));
    v.push_back(T(std::copysign(std::exp2(power(random)), sign(random))));
    v.push_back(T(sign(random) * (1 + uniform(random) * 1e-3)));
    v.push_back(T(T(i) * T(1.57079632679489661923L)));  // where sine and cosine vanish
  }
  return v;
}

void report(const char* name, int bits, double worst, double limit, double x, double y) {
  const bool wrong = !(worst <= limit);
  if (wrong || print_all)
    std::printf("%s of float%d: %.3g ulp at (%a, %a)%s\n", name, bits, worst, x, y, wrong ? " is wrong" : "");
  failures += wrong;
}

template <class T, class F, class G>
void unary(const char* name, double limit, double range, F f, G exact) {
  using V = isa::Vec<T>;
  std::vector<T> v = arguments<T>(range);
  double worst = 0, at = 0;
  for (size_t i = 0; i < v.size(); i += V::kLanes) {
    const int n = int(std::min<size_t>(V::kLanes, v.size() - i));
    T got[V::kLanes];
    f(isa::load_some<T>(&v[i], n)).store(got);
    for (int k = 0; k < n; ++k)
      if (const double e = ulps(got[k], exact((long double)(v[i + k]))); e > worst) worst = e, at = v[i + k];
  }
  report(name, sizeof(T) * 8, worst, limit, at, 0);
}

template <class T, class F, class G>
void binary(const char* name, double limit, F f, G exact) {
  using V = isa::Vec<T>;
  std::vector<T> a = arguments<T>(3), b = a;
  std::shuffle(b.begin(), b.end(), std::mt19937_64(3));
  constexpr int kSpecial = 27;
  for (int i = 0; i < kSpecial; ++i)
    for (int k = 0; k < kSpecial; ++k) a.push_back(a[i]), b.push_back(a[k]);
  double worst = 0, at = 0, and_at = 0;
  for (size_t i = 0; i < a.size(); i += V::kLanes) {
    const int n = int(std::min<size_t>(V::kLanes, a.size() - i));
    T got[V::kLanes];
    f(isa::load_some<T>(&a[i], n), isa::load_some<T>(&b[i], n)).store(got);
    for (int k = 0; k < n; ++k)
      if (const double e = ulps(got[k], exact((long double)(a[i + k]), (long double)(b[i + k]))); e > worst)
        worst = e, at = a[i + k], and_at = b[i + k];
  }
  report(name, sizeof(T) * 8, worst, limit, at, and_at);
}

// By Newton's method on erf, and on erfc where that has the digits.
long double exact_erfinv(long double y) {
  const long double a = std::abs(y);
  if (!(a < 1)) return a == 1 ? std::copysign(std::numeric_limits<long double>::infinity(), y) : NAN;
  if (a < 1e-10L) return y * 0.886226925452758013649L;
  long double low = 0, high = 10;
  for (int i = 0; i < 40; ++i) {
    const long double x = (low + high) / 2;
    (std::erfc(x) > 1 - a ? low : high) = x;
  }
  for (int i = 0; i < 3; ++i) {
    const long double error = a < 0.5L ? std::erf(low) - a : (1 - a) - std::erfc(low);
    low -= error / (1.12837916709551257390L * std::exp(-low * low));
  }
  return std::copysign(low, y);
}

#define UNARY(T, name, limit, range)                            \
  unary<T>(                                                     \
      #name, limit, range, [](auto x) { return isa::name(x); }, \
      [](long double x) -> long double { return std::name(x); })
#define BINARY(T, name, limit)                                      \
  binary<T>(                                                        \
      #name, limit, [](auto x, auto y) { return isa::name(x, y); }, \
      [](long double x, long double y) -> long double { return std::name(x, y); })

int main(int argc, char**) {
  print_all = argc > 1;
  UNARY(double, exp, 1.25, 700);
  UNARY(double, exp2, 1, 1070);
  UNARY(double, expm1, 2, 2);
  UNARY(double, log, 1, 3);
  UNARY(double, log2, 1, 3);
  UNARY(double, log10, 1, 3);
  UNARY(double, log1p, 1.5, 2);
  UNARY(double, sin, 1, 100);
  UNARY(double, cos, 1, 100);
  UNARY(double, tan, 1, 100);
  UNARY(double, tanh, 1.5, 3);
  UNARY(double, sinh, 2, 3);
  UNARY(double, cosh, 2, 3);
  UNARY(double, erf, 2, 5);
  UNARY(double, erfc, 7, 27);
  UNARY(double, asin, 1, 1);
  UNARY(double, acos, 1, 1);
  UNARY(double, atan, 2, 3);
  UNARY(double, atanh, 1, 1);
  BINARY(double, atan2, 2);
  BINARY(double, hypot, 1.5);
  BINARY(double, pow, 1);
  unary<double>("erfinv", 3, 1, [](auto x) { return isa::erfinv(x); }, exact_erfinv);
  UNARY(float, tan, 2, 100);
  UNARY(float, asin, 2, 1);
  UNARY(float, acos, 2, 1);
  UNARY(float, atan, 2, 3);
  UNARY(float, atanh, 1, 1);
  UNARY(float, erfc, 1, 9);
  UNARY(float, lgamma, 2, 6);
  BINARY(float, atan2, 2);
  BINARY(float, hypot, 1);
  unary<float>("erfinv", 1, 1, [](auto x) { return isa::erfinv(x); }, exact_erfinv);
  return failures != 0;
}
