// The math set's functions of complex numbers, which formulas find through the type of their argument. The
// inverse ones and tanh are Kahan's ("Branch cuts for complex elementary functions", 1987), which keep the
// sign of a zero on a cut.
#pragma once

#include "kernels/cuda/common/math.cuh"

namespace warptape {

namespace device = kernels::cuda;

#define WT_COMPLEX(name) \
  template <class T>     \
  WT_DEVICE Complex<T> name(Complex<T> z)

template <class T>
WT_DEVICE Complex<T> conj(Complex<T> z) {
  return {z.re, -z.im};
}
// z times i, and times -i.
WT_COMPLEX(turn_left) { return {-z.im, z.re}; }
WT_COMPLEX(turn_right) { return {z.im, -z.re}; }

WT_COMPLEX(exp) {
  const T r = device::exp(z.re);
  return z.im == 0 ? Complex<T>{r, z.im} : Complex<T>{r * device::cos(z.im), r * device::sin(z.im)};
}
WT_COMPLEX(exp2) { return exp(Complex<T>{z.re * T(M_LN2), z.im * T(M_LN2)}); }
// cos b - 1 = -2 sin^2(b / 2), so that nothing cancels.
WT_COMPLEX(expm1) {
  const T grown = device::expm1(z.re), half = device::sin(z.im / 2);
  return {grown * device::cos(z.im) - 2 * half * half, (grown + 1) * device::sin(z.im)};
}
// Near the unit circle the logarithm of |z|^2 = 1 + (a - 1) (a + 1) + b^2 with the larger part as a.
WT_COMPLEX(log) {
  const T x = device::abs(z.re), y = device::abs(z.im), a = x < y ? y : x, b = x < y ? x : y;
  const bool near = a > T(0.5) && a < T(1.5);
  return {near ? device::log1p((a - 1) * (a + 1) + b * b) / 2 : device::log(device::hypot(x, y)),
          device::atan2(z.im, z.re)};
}
WT_COMPLEX(log2) {
  const Complex<T> l = log(z);
  return {l.re * T(M_LOG2E), l.im * T(M_LOG2E)};
}
WT_COMPLEX(log10) {
  const Complex<T> l = log(z);
  return {l.re * T(M_LOG10E), l.im * T(M_LOG10E)};
}
WT_COMPLEX(log1p) {
  const T a = z.re, b = z.im;
  if (device::abs(a) > T(0.5) || device::abs(b) > T(0.5)) return log(Complex<T>{a + 1, b});
  return {device::log1p(a * (2 + a) + b * b) / 2, device::atan2(b, 1 + a)};
}
WT_COMPLEX(sqrt) {
  const T length = device::hypot(z.re, z.im);
  if (length == 0) return {T(0), z.im};
  if (device::isinf(z.im)) return {device::abs(z.im), z.im};
  if (device::isinf(length))
    return z.re > 0 ? Complex<T>{z.re, device::copysign(T(0), z.im)}
                    : Complex<T>{T(0), device::copysign(length, z.im)};
  const T root = device::sqrt((length + device::abs(z.re)) / 2), rest = z.im / (2 * root);
  if (z.re >= 0) return {root, rest};
  return {device::abs(rest), device::copysign(root, z.im)};
}
WT_COMPLEX(sigmoid) { return Complex<T>(1) / (Complex<T>(1) + exp(-z)); }

WT_COMPLEX(sinh) { return {device::sinh(z.re) * device::cos(z.im), device::cosh(z.re) * device::sin(z.im)}; }
WT_COMPLEX(cosh) { return {device::cosh(z.re) * device::cos(z.im), device::sinh(z.re) * device::sin(z.im)}; }
WT_COMPLEX(tanh) {
  if (device::abs(z.re) > T(20)) {  // cosh^2 would overflow; to the last bit it is e^(2 |x|) / 4
    const T fades = 4 * device::sin(z.im) * device::cos(z.im) * device::exp(-2 * device::abs(z.re));
    return {device::copysign(T(1), z.re), device::isinf(z.re) ? device::copysign(T(0), fades) : fades};
  }
  const T t = device::tan(z.im), s = device::sinh(z.re), beta = 1 + t * t, d = 1 + beta * s * s;
  return {beta * device::sqrt(1 + s * s) * s / d, t / d};
}
WT_COMPLEX(sin) { return turn_right(sinh(turn_left(z))); }
WT_COMPLEX(cos) { return cosh(turn_left(z)); }
WT_COMPLEX(tan) { return turn_right(tanh(turn_left(z))); }

WT_COMPLEX(asin) {
  const Complex<T> less = sqrt(Complex<T>{1 - z.re, -z.im}), more = sqrt(Complex<T>{1 + z.re, z.im});
  return {device::atan2(z.re, (less * more).re), device::asinh((conj(less) * more).im)};
}
WT_COMPLEX(acos) {
  const Complex<T> less = sqrt(Complex<T>{1 - z.re, -z.im}), more = sqrt(Complex<T>{1 + z.re, z.im});
  return {2 * device::atan2(less.re, more.re), device::asinh((conj(more) * less).im)};
}
WT_COMPLEX(acosh) {
  const Complex<T> less = sqrt(Complex<T>{z.re - 1, z.im}), more = sqrt(Complex<T>{z.re + 1, z.im});
  return {device::asinh((conj(less) * more).re), 2 * device::atan2(less.im, more.re)};
}
WT_COMPLEX(atanh) {  // odd, and without cancellation where x is positive
  const T x = device::abs(z.re), y = z.im, d = (1 - x) * (1 - x) + y * y;
  return {device::copysign(device::log1p(4 * x / d) / 4, z.re),
          device::atan2(2 * y, (1 - x) * (1 + x) - y * y) / 2};
}
WT_COMPLEX(asinh) { return turn_right(asin(turn_left(z))); }
WT_COMPLEX(atan) { return turn_right(atanh(turn_left(z))); }
#undef WT_COMPLEX

template <class T>
WT_DEVICE Complex<T> pow(Complex<T> z, Complex<T> e) {
  if (e == Complex<T>(0)) return Complex<T>(1);
  if (z == Complex<T>(0)) return e.re > 0 ? Complex<T>(0) : exp(e * log(z));
  return exp(e * log(z));
}

}  // namespace warptape
