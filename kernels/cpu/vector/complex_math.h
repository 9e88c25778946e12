// Functions of complex numbers, which formulas find through the type of their argument. They are compiled
// once, for every processor: common/complex_math.cpp.
#pragma once

#include "kernels/complex.h"

#define WT_COMPLEX_POWERS(X) X(exp) X(exp2) X(expm1) X(log) X(log2) X(log10) X(log1p) X(sqrt) X(sigmoid)
#define WT_COMPLEX_CIRCULAR(X) X(sin) X(cos) X(tan) X(asin) X(acos) X(atan)
#define WT_COMPLEX_HYPERBOLIC(X) X(sinh) X(cosh) X(tanh) X(asinh) X(acosh) X(atanh)
#define WT_COMPLEX_FUNCTIONS(X) WT_COMPLEX_POWERS(X) WT_COMPLEX_CIRCULAR(X) WT_COMPLEX_HYPERBOLIC(X)

namespace warptape {

#define WT_DECLARE(f)               \
  Complex<float> f(Complex<float>); \
  Complex<double> f(Complex<double>);
WT_COMPLEX_FUNCTIONS(WT_DECLARE)
#undef WT_DECLARE
Complex<float> pow(Complex<float>, Complex<float>);
Complex<double> pow(Complex<double>, Complex<double>);

}  // namespace warptape
