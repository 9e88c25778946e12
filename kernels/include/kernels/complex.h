// A complex number as kernels compute with it: the real part, then the imaginary one.
#pragma once

#include "kernels/types.h"

namespace warptape {

template <class T>
struct Complex {
  T re, im;
  Complex() = default;
  template <class R>
  WT_INLINE constexpr explicit Complex(R real) : re(T(real)), im(0) {}
  WT_INLINE constexpr Complex(T real, T imag) : re(real), im(imag) {}

  WT_INLINE friend Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
  WT_INLINE friend Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
  WT_INLINE friend Complex operator-(Complex a) { return {-a.re, -a.im}; }
  WT_INLINE friend Complex operator*(Complex a, Complex b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  }
  // Scaled by the larger part of the divisor, so that squares do not overflow (Smith, CACM 5 (8), 1962).
  WT_INLINE friend Complex operator/(Complex a, Complex b) {
    const T re = b.re < 0 ? -b.re : b.re, im = b.im < 0 ? -b.im : b.im;
    if (re == 0 && im == 0) return {a.re / re, a.im / re};
    if (re >= im) {
      const T ratio = b.im / b.re, scale = T(1) / (b.re + b.im * ratio);
      return {(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
    }
    const T ratio = b.re / b.im, scale = T(1) / (b.re * ratio + b.im);
    return {(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
  }
  WT_INLINE friend bool operator==(Complex a, Complex b) { return a.re == b.re && a.im == b.im; }
  WT_INLINE friend bool operator!=(Complex a, Complex b) { return !(a == b); }
  WT_INLINE friend Complex fma(Complex a, Complex b, Complex c) { return a * b + c; }
  WT_INLINE friend Complex select(bool first, Complex a, Complex b) { return first ? a : b; }
};

}  // namespace warptape
