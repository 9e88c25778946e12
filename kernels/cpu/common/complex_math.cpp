#include "kernels/cpu/vector/complex_math.h"

#include <complex>
#include <numbers>

namespace warptape {
namespace {

template <class T>
std::complex<T> exp2(std::complex<T> x) {
  return std::exp(x * std::numbers::ln2_v<T>);
}
template <class T>
std::complex<T> log2(std::complex<T> x) {
  return std::log(x) / std::numbers::ln2_v<T>;
}
// e^(a + ib) - 1 without cancellation: cos b - 1 = -2 sin^2(b / 2).
template <class T>
std::complex<T> expm1(std::complex<T> x) {
  const T grown = std::expm1(x.real()), half = std::sin(x.imag() / 2);
  return {grown * std::cos(x.imag()) - 2 * half * half, (grown + 1) * std::sin(x.imag())};
}
// |1 + x|^2 - 1 = a (2 + a) + b^2 keeps what 1 + a loses near 0.
template <class T>
std::complex<T> log1p(std::complex<T> x) {
  const T a = x.real(), b = x.imag();
  if (std::abs(a) > T(0.5) || std::abs(b) > T(0.5)) return std::log(x + T(1));
  return {std::log1p(a * (2 + a) + b * b) / 2, std::atan2(b, 1 + a)};
}
template <class T>
std::complex<T> sigmoid(std::complex<T> x) {
  return T(1) / (T(1) + std::exp(-x));
}

template <class T>
std::complex<T> in(Complex<T> x) {
  return {x.re, x.im};
}
template <class T>
Complex<T> out(std::complex<T> x) {
  return {x.real(), x.imag()};
}

}  // namespace

#define WT_DEFINE(f)                                           \
  Complex<float> f(Complex<float> x) { return out(f(in(x))); } \
  Complex<double> f(Complex<double> x) { return out(f(in(x))); }
WT_COMPLEX_FUNCTIONS(WT_DEFINE)
#undef WT_DEFINE
// std::pow takes the logarithm of x, which 0 does not have.
Complex<float> pow(Complex<float> x, Complex<float> e) {
  return e == Complex<float>(0) ? Complex<float>(1) : out(std::pow(in(x), in(e)));
}
Complex<double> pow(Complex<double> x, Complex<double> e) {
  return e == Complex<double>(0) ? Complex<double>(1) : out(std::pow(in(x), in(e)));
}

}  // namespace warptape
