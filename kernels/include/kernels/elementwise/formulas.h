// The formulas of the elementwise ops, forward and fused backward: templates on the value type V over a math
// set that each backend supplies and includes first. A math set lives in the namespace
// warptape::kernels::WARPTAPE_ISA (cuda defines WARPTAPE_ISA as cuda) and has, for its V: arithmetic,
// comparisons that give a mask (bool for scalars), & | ! on masks, select(mask, a, b), kIsInteger<V>, WT_FN,
// WT_FN_OUTLINED (for what is long: not inlined) and the functions called below.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels::WARPTAPE_ISA {

// In which types an op is computed, as bits.
inline constexpr unsigned kFloats = 1;    // float and double
inline constexpr unsigned kIntegers = 2;  // int64_t
inline constexpr unsigned kAny = 3;
inline constexpr unsigned kComplex = 4;
inline constexpr unsigned kComplexLanes = 12;  // with sums and products alone, so on the CPU in lanes

template <int Inputs, unsigned Types>
struct Formula {
  static constexpr int kInputs = Inputs;
  static constexpr unsigned kTypes = Types;
  static constexpr bool kMaskFirst = false;        // the first input is a truth value
  static constexpr bool kDividesIntegers = false;  // a zero in the second input is an error for integers
};
template <unsigned Types> using Unary = Formula<1, Types>;
template <unsigned Types> using Binary = Formula<2, Types>;
template <unsigned Types> using Ternary = Formula<3, Types>;
template <unsigned Types> using Quaternary = Formula<4, Types>;
template <unsigned Types> using Quinary = Formula<5, Types>;
template <unsigned Types> using Senary = Formula<6, Types>;
struct IntegerDivision : Binary<kAny> {
  static constexpr bool kDividesIntegers = true;
};

// One op: WT_FORMULA(Name, Base, (parameters), result)
#define WT_UNPACK(...) __VA_ARGS__
#define WT_FORMULA(Name, Base, params, ...)     \
  struct Name : Base {                          \
    template <class V>                          \
    WT_FN static auto apply(WT_UNPACK params) { \
      __VA_ARGS__                               \
    }                                           \
  }
#define WT_V1 (V x)
#define WT_V2 (V a, V b)
#define WT_V3 (V a, V b, V c)
#define WT_GX (V g, V x)

// ---- arithmetic ----
WT_FORMULA(Add, Binary<kAny | kComplexLanes>, WT_V2, return a + b;);
WT_FORMULA(Sub, Binary<kAny | kComplexLanes>, WT_V2, return a - b;);
WT_FORMULA(Mul, Binary<kAny | kComplexLanes>, WT_V2, return a * b;);
WT_FORMULA(Div, Binary<kFloats | kComplex>, WT_V2, return a / b;);
WT_FORMULA(AddScaled, Ternary<kAny | kComplexLanes>, (V a, V b, V alpha), return fma(alpha, b, a););
WT_FORMULA(Addcmul, Quaternary<kAny | kComplexLanes>, (V a, V b, V c, V value), return a + value * b * c;);
WT_FORMULA(Addcdiv, Quaternary<kFloats | kComplex>, (V a, V b, V c, V value), return a + value * (b / c););
WT_FORMULA(Lerp, Ternary<kFloats>, (V a, V b, V w), {
  V d = b - a;
  // From the nearer end, so that weights 0 and 1 give a and b to the bit.
  return select(abs(w) < V(0.5), fma(w, d, a), b - d * (V(1) - w));
});
WT_FORMULA(Neg, Unary<kAny | kComplexLanes>, WT_V1, return -x;);
WT_FORMULA(Abs, Unary<kAny>, WT_V1, return abs(x););
WT_FORMULA(Sign, Unary<kAny>, WT_V1, return select(x > V(0), V(1), select(x < V(0), V(-1), V(0))););
WT_FORMULA(Square, Unary<kAny | kComplexLanes>, WT_V1, return x * x;);
WT_FORMULA(Reciprocal, Unary<kFloats | kComplex>, WT_V1, return V(1) / x;);
WT_FORMULA(Sqrt, Unary<kFloats | kComplex>, WT_V1, return sqrt(x););
WT_FORMULA(Rsqrt, Unary<kFloats | kComplex>, WT_V1, return V(1) / sqrt(x););

WT_FORMULA(Fmod, IntegerDivision, WT_V2, return fmod(a, b););
WT_FORMULA(Remainder, IntegerDivision, WT_V2, {
  if constexpr (kIsInteger<V>) {
    return remainder(a, b);
  } else {
    V r = fmod(a, b);
    return select((r != V(0)) & ((r < V(0)) ^ (b < V(0))), r + b, r);
  }
});
WT_FORMULA(TruncDivide, IntegerDivision, WT_V2, {
  if constexpr (kIsInteger<V>)
    return trunc_divide(a, b);
  else
    return trunc(a / b);
});
// Floats as Python divides: the quotient that belongs to the remainder, not floor of a rounded quotient.
WT_FORMULA(FloorDivide, IntegerDivision, WT_V2, {
  if constexpr (kIsInteger<V>) {
    return floor_divide(a, b);
  } else {
    V r = fmod(a, b);
    V q = (a - r) / b;
    q = select((r != V(0)) & ((r < V(0)) ^ (b < V(0))), q - V(1), q);
    V f = floor(q);
    f = select(q - f > V(0.5), f + V(1), f);
    f = select(q == V(0), copysign(V(0), a / b), f);
    return select(b == V(0), a / b, f);
  }
});
WT_FORMULA(Pow, Binary<kAny | kComplex>, WT_V2, return pow(a, b););
WT_FORMULA(Atan2, Binary<kFloats>, WT_V2, return atan2(a, b););
WT_FORMULA(Hypot, Binary<kFloats>, WT_V2, return hypot(a, b););
WT_FORMULA(Copysign, Binary<kFloats>, WT_V2, return copysign(a, b););
WT_FORMULA(Heaviside, Binary<kAny>, WT_V2, return select(a == V(0), b, select(a > V(0), V(1), V(0))););
WT_FORMULA(Xlogy, Binary<kFloats>, WT_V2, return select((a == V(0)) & !isnan(b), V(0), a* log(b)););
WT_FORMULA(Xlog1py, Binary<kFloats>, WT_V2, return select((a == V(0)) & !isnan(b), V(0), a* log1p(b)););
WT_FORMULA(Logaddexp, Binary<kFloats>, WT_V2,
           return select(a == b, a + V(0.69314718055994530942), maximum(a, b) + log1p(exp(-abs(a - b)))););
WT_FORMULA(Logaddexp2, Binary<kFloats>, WT_V2,
           return select(a == b, a + V(1),
                         maximum(a, b) + log1p(exp2(-abs(a - b))) * V(1.44269504088896340736)););

// ---- order ----
WT_FORMULA(Maximum, Binary<kAny>, WT_V2, return maximum(a, b););
WT_FORMULA(Minimum, Binary<kAny>, WT_V2, return minimum(a, b););
WT_FORMULA(Fmax, Binary<kAny>, WT_V2, return select(isnan(a), b, select(isnan(b), a, maximum(a, b))););
WT_FORMULA(Fmin, Binary<kAny>, WT_V2, return select(isnan(a), b, select(isnan(b), a, minimum(a, b))););
WT_FORMULA(Clamp, Ternary<kAny>, (V x, V lo, V hi), return minimum(maximum(x, lo), hi););
WT_FORMULA(Eq, Binary<kAny | kComplex>, WT_V2, return a == b;);
WT_FORMULA(Ne, Binary<kAny | kComplex>, WT_V2, return a != b;);
WT_FORMULA(Lt, Binary<kAny>, WT_V2, return a < b;);
WT_FORMULA(Le, Binary<kAny>, WT_V2, return a <= b;);
WT_FORMULA(Gt, Binary<kAny>, WT_V2, return a > b;);
WT_FORMULA(Ge, Binary<kAny>, WT_V2, return a >= b;);
WT_FORMULA(LogicalNot, Unary<kAny | kComplex>, WT_V1, return x == V(0););
WT_FORMULA(LogicalAnd, Binary<kAny | kComplex>, WT_V2, return (a != V(0)) & (b != V(0)););
WT_FORMULA(LogicalOr, Binary<kAny | kComplex>, WT_V2, return (a != V(0)) | (b != V(0)););
WT_FORMULA(LogicalXor, Binary<kAny | kComplex>, WT_V2, return (a != V(0)) ^ (b != V(0)););
WT_FORMULA(IsNan, Unary<kAny | kComplex>, WT_V1, return x != x;);
// Integers are finite.
#define WT_FLOAT_TEST(Name, of_integer, of_float) \
  WT_FORMULA(Name, Unary<kAny>, WT_V1, {          \
    if constexpr (kIsInteger<V>)                  \
      return of_integer;                          \
    else                                          \
      return of_float;                            \
  })
WT_FLOAT_TEST(IsInf, x != x, isinf(x));
WT_FLOAT_TEST(IsFinite, x == x, isfinite(x));
WT_FLOAT_TEST(IsPosInf, x != x, isinf(x) & (x > V(0)));
WT_FLOAT_TEST(IsNegInf, x != x, isinf(x) & (x < V(0)));
#undef WT_FLOAT_TEST
WT_FORMULA(Signbit, Unary<kAny>, WT_V1, {
  if constexpr (kIsInteger<V>)
    return x < V(0);
  else
    return copysign(V(1), x) < V(0);
});
WT_FORMULA(IsClose, Quaternary<kAny>, (V a, V b, V rtol, V atol),
           return (a == b) | ((abs(a - b) <= atol + abs(rtol * b)) & (b - b == V(0))););  // b is finite

struct WhereBase : Ternary<kAny | kComplex> {
  static constexpr bool kMaskFirst = true;
};
struct Where : WhereBase {
  template <class M, class V>
  WT_FN static V apply(M m, V a, V b) {
    return select(m, a, b);
  }
};

// ---- bits ----
WT_FORMULA(BitwiseAnd, Binary<kIntegers>, WT_V2, return a & b;);
WT_FORMULA(BitwiseOr, Binary<kIntegers>, WT_V2, return a | b;);
WT_FORMULA(BitwiseXor, Binary<kIntegers>, WT_V2, return a ^ b;);
WT_FORMULA(BitwiseNot, Unary<kIntegers>, WT_V1, return ~x;);
WT_FORMULA(ShiftLeft, Binary<kIntegers>, WT_V2, return shift_left(a, b););
WT_FORMULA(ShiftRight, Binary<kIntegers>, WT_V2, return shift_right(a, b););

// ---- rounding ----
#define WT_ROUNDING(Name, f)             \
  WT_FORMULA(Name, Unary<kAny>, WT_V1, { \
    if constexpr (kIsInteger<V>)         \
      return x;                          \
    else                                 \
      return f(x);                       \
  })
WT_ROUNDING(Floor, floor);
WT_ROUNDING(Ceil, ceil);
WT_ROUNDING(Round, round);
WT_ROUNDING(Trunc, trunc);
#undef WT_ROUNDING
WT_FORMULA(Frac, Unary<kFloats>, WT_V1, return x - trunc(x););
WT_FORMULA(NanToNum, Quaternary<kFloats>, (V x, V nan, V high, V low),
           return select(isnan(x), nan, select(isinf(x), select(x > V(0), high, low), x)););

// ---- transcendental: one function of the math set each ----
#define WT_SAME_OF(Types, Name, f) WT_FORMULA(Name, Unary<Types>, WT_V1, return f(x);)
#define WT_SAME(Name, f) WT_SAME_OF(kFloats, Name, f)
#define WT_ANALYTIC(Name, f) WT_SAME_OF(kFloats | kComplex, Name, f)
WT_ANALYTIC(Exp, exp);
WT_ANALYTIC(Exp2, exp2);
WT_ANALYTIC(Expm1, expm1);
WT_ANALYTIC(Log, log);
WT_ANALYTIC(Log2, log2);
WT_ANALYTIC(Log10, log10);
WT_ANALYTIC(Log1p, log1p);
WT_ANALYTIC(Sin, sin);
WT_ANALYTIC(Cos, cos);
WT_ANALYTIC(Tan, tan);
WT_ANALYTIC(Asin, asin);
WT_ANALYTIC(Acos, acos);
WT_ANALYTIC(Atan, atan);
WT_ANALYTIC(Sinh, sinh);
WT_ANALYTIC(Cosh, cosh);
WT_ANALYTIC(Tanh, tanh);
WT_ANALYTIC(Asinh, asinh);
WT_ANALYTIC(Acosh, acosh);
WT_ANALYTIC(Atanh, atanh);
WT_SAME(Erf, erf);
WT_SAME(Erfc, erfc);
WT_SAME(Erfinv, erfinv);
WT_SAME(Lgamma, lgamma);
WT_SAME(Digamma, digamma);
WT_ANALYTIC(Sigmoid, sigmoid);
#undef WT_SAME
#undef WT_ANALYTIC
#undef WT_SAME_OF
WT_FORMULA(Polygamma, Binary<kFloats>, (V x, V n), return polygamma(x, n););
WT_FORMULA(Igamma, Binary<kFloats>, WT_V2, return igamma(a, b););
WT_FORMULA(Igammac, Binary<kFloats>, WT_V2, return igammac(a, b););
WT_FORMULA(Logit, Unary<kFloats>, WT_V1, return log(x / (V(1) - x)););
WT_FORMULA(Sinc, Unary<kFloats | kComplex>, WT_V1, {
  V t = V(3.14159265358979323846) * x;
  return select(x == V(0), V(1), sin(t) / t);
});
WT_FORMULA(Rad2deg, Unary<kFloats>, WT_V1, return x * V(57.29577951308232087680););
WT_FORMULA(Deg2rad, Unary<kFloats>, WT_V1, return x * V(0.01745329251994329577););

// ---- modified Bessel functions of order 0 and 1, times exp(-|x|): the power series up to 20, then the
// asymptotic one (Abramowitz and Stegun 9.6.10 and 9.7.1) ----
template <int Order, class V>
WT_FN V bessel_scaled(V x) {
  const V a = abs(x), t = V(0.25) * a * a, u = V(0.125) / a;
  V series(1), tail(1);
  for (int k = 40; k > 0; --k) series = fma(series, t * V(1.0 / (k * (k + Order))), V(1));
  for (int k = 28; k > 0; --k) tail = fma(tail, u * V(((2 * k - 1) * (2 * k - 1) - 4.0 * Order) / k), V(1));
  if constexpr (Order == 1) series = series * (V(0.5) * a);
  const V found = select(a < V(20), series * exp(-a), tail * V(0.39894228040143267794) / sqrt(a));
  return Order == 1 ? select(x < V(0), -found, found) : found;
}
// e^a by halves, for I(x) may be finite where that is not.
template <int Order, class V>
WT_FN V bessel(V x) {
  const V half = exp(V(0.5) * abs(x));
  return bessel_scaled<Order>(x) * half * half;
}
WT_FORMULA(BesselI0e, Unary<kFloats>, WT_V1, return bessel_scaled<0>(x););
WT_FORMULA(BesselI1e, Unary<kFloats>, WT_V1, return bessel_scaled<1>(x););
WT_FORMULA(BesselI0, Unary<kFloats>, WT_V1, return bessel<0>(x););
WT_FORMULA(BesselI1, Unary<kFloats>, WT_V1, return bessel<1>(x););
// In the tails, Newton's method on the logarithm of the share q of the normal distribution beyond z, which is
// the density times a continued fraction (Abramowitz and Stegun 26.2.14).
template <class V>
WT_FN_OUTLINED V ndtri(V x) {
  const V q = minimum(x, V(1) - x), log_q = log(q);
  V z = sqrt(V(-2) * log_q - V(1.83787706640934548356) - log(V(-2) * log_q));
  for (int step = 0; step < 4; ++step) {
    V f = z;
    for (int k = 60; k > 0; --k) f = z + V(double(k)) / f;
    z = z + (V(-0.5) * z * z - V(0.91893853320467274178) - log(f) - log_q) / f;
  }
  z = select(q == V(0), V(__builtin_inf()), z);
  z = select(x < V(0.5), -z, z);
  return select(q < V(0.02), z, V(1.41421356237309504880) * erfinv(V(2) * x - V(1)));
}
WT_FORMULA(Ndtri, Unary<kFloats>, WT_V1, return ndtri(x););

// ---- activations and their gradients; g is the gradient of the result, y the result, x the input ----
// A NaN and a zero of either sign pass, as in PyTorch.
WT_FORMULA(Relu, Unary<kAny>, WT_V1, return max_or_b(V(0), x););
WT_FORMULA(Threshold, Ternary<kAny>, (V x, V limit, V value), return select(x <= limit, value, x););
WT_FORMULA(ThresholdBackward, Ternary<kAny>, (V g, V x, V limit), return select(x <= limit, V(0), g););
WT_FORMULA(HardtanhBackward, Quaternary<kAny>, (V g, V x, V lo, V hi),
           return select((x > lo) & (x < hi), g, V(0)););
WT_FORMULA(ClampBackward, Quaternary<kAny>, (V g, V x, V lo, V hi),
           return select((x >= lo) & (x <= hi), g, V(0)););
WT_FORMULA(LeakyRelu, Binary<kFloats>, (V x, V slope), return select(x > V(0), x, x* slope););
WT_FORMULA(LeakyReluBackward, Ternary<kFloats>, (V g, V x, V slope), return select(x > V(0), g, g* slope););
WT_FORMULA(SigmoidBackward, Binary<kFloats>, (V g, V y), return g * ((V(1) - y) * y););
WT_FORMULA(TanhBackward, Binary<kFloats>, (V g, V y), return g * (V(1) - y * y););
WT_FORMULA(SqrtBackward, Binary<kFloats>, (V g, V y), return g / (y + y););
WT_FORMULA(RsqrtBackward, Binary<kFloats>, (V g, V y), return V(-0.5) * g * (y * y * y););
WT_FORMULA(ReciprocalBackward, Binary<kFloats>, (V g, V y), return -(g * (y * y)););
WT_FORMULA(AbsBackward, Binary<kAny>, WT_GX, return select(x > V(0), g, select(x < V(0), -g, V(0) * g)););
WT_FORMULA(SinBackward, Binary<kFloats>, WT_GX, return g * cos(x););
WT_FORMULA(CosBackward, Binary<kFloats>, WT_GX, return -(g * sin(x)););
WT_FORMULA(ErfBackward, Binary<kFloats>, WT_GX, return g * V(1.12837916709551257390) * exp(-(x * x)););
WT_FORMULA(DivOtherBackward, Ternary<kFloats>, (V g, V a, V b), return -(g * (a / b) / b););
WT_FORMULA(PowBaseBackward, Ternary<kFloats>, (V g, V x, V e),
           return select(e == V(0), V(0), g*(e* pow(x, e - V(1)))););
// Half of the gradient to each where they are equal.
WT_FORMULA(MaximumBackward, Ternary<kFloats>, (V g, V a, V b),
           return select(a == b, g* V(0.5), select(a < b, V(0), g)););
WT_FORMULA(MinimumBackward, Ternary<kFloats>, (V g, V a, V b),
           return select(a == b, g* V(0.5), select(a > b, V(0), g)););

WT_FORMULA(Silu, Unary<kFloats>, WT_V1, return x / (V(1) + exp(-x)););
WT_FORMULA(SiluBackward, Binary<kFloats>, WT_GX, {
  V s = sigmoid(x);
  return g * (s * (V(1) + x * (V(1) - s)));
});
WT_FORMULA(Gelu, Unary<kFloats>, WT_V1, return V(0.5) * x * (V(1) + erf(x * V(0.70710678118654752440))););
WT_FORMULA(GeluBackward, Binary<kFloats>, WT_GX, {
  V cdf = V(0.5) * (V(1) + erf(x * V(0.70710678118654752440)));
  V pdf = V(0.39894228040143267794) * exp(V(-0.5) * (x * x));
  return g * fma(x, pdf, cdf);
});
// x (1 + tanh(u)) / 2 = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
WT_FORMULA(GeluTanh, Unary<kFloats>, WT_V1, {
  V u2 = V(1.59576912160573071176) * x * fma(x * x, V(0.044715), V(1));
  return x / (V(1) + exp(-u2));
});
WT_FORMULA(GeluTanhBackward, Binary<kFloats>, WT_GX, {
  V z = x * x;
  V s = sigmoid(V(1.59576912160573071176) * x * fma(z, V(0.044715), V(1)));
  V slope = V(1.59576912160573071176) * fma(z, V(0.134145), V(1));
  return g * fma(x * slope, s * (V(1) - s), s);
});
// tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2); it is 1 to the last bit from 20 on.
template <class V>
WT_FN V mish_n(V x) {
  V e = exp(minimum(x, V(20)));
  return e * (e + V(2));
}
WT_FORMULA(Mish, Unary<kFloats>, WT_V1, {
  V n = mish_n(x);
  return x * (n / (n + V(2)));
});
WT_FORMULA(MishBackward, Binary<kFloats>, WT_GX, {
  V n = mish_n(x);
  V t = n / (n + V(2));
  return g * fma(x * sigmoid(x), V(1) - t * t, t);
});
WT_FORMULA(Softplus, Ternary<kFloats>, (V x, V beta, V limit), {
  V t = x * beta;
  return select(t > limit, x, log1p(exp(t)) / beta);
});
WT_FORMULA(SoftplusBackward, Quaternary<kFloats>, (V g, V x, V beta, V limit), {
  V t = x * beta;
  return select(t > limit, g, g * sigmoid(t));
});
WT_FORMULA(LogSigmoid, Unary<kFloats>, WT_V1, return minimum(x, V(0)) - log1p(exp(-abs(x))););
WT_FORMULA(LogSigmoidBackward, Binary<kFloats>, WT_GX, return g * sigmoid(-x););
WT_FORMULA(Elu, Binary<kFloats>, (V x, V alpha), return select(x > V(0), x, alpha* expm1(x)););
WT_FORMULA(EluBackward, Ternary<kFloats>, (V g, V x, V alpha),
           return select(x > V(0), g, g * alpha * exp(x)););
WT_FORMULA(Celu, Binary<kFloats>, (V x, V alpha), return select(x > V(0), x, alpha* expm1(x / alpha)););
WT_FORMULA(CeluBackward, Ternary<kFloats>, (V g, V x, V alpha),
           return select(x > V(0), g, g* exp(x / alpha)););
inline constexpr double kSeluAlpha = 1.6732632423543772848170429916717;
inline constexpr double kSeluScale = 1.0507009873554804934193349852946;
WT_FORMULA(Selu, Unary<kFloats>, WT_V1,
           return V(kSeluScale) * select(x > V(0), x, V(kSeluAlpha) * expm1(x)););
WT_FORMULA(SeluBackward, Binary<kFloats>, WT_GX,
           return g * V(kSeluScale) * select(x > V(0), V(1), V(kSeluAlpha) * exp(x)););
WT_FORMULA(Hardsigmoid, Unary<kFloats>, WT_V1, return minimum(maximum(x + V(3), V(0)), V(6)) * V(1.0 / 6););
WT_FORMULA(HardsigmoidBackward, Binary<kFloats>, WT_GX,
           return select((x > V(-3)) & (x < V(3)), g* V(1.0 / 6), V(0)););
WT_FORMULA(Hardswish, Unary<kFloats>, WT_V1, return x * minimum(maximum(x + V(3), V(0)), V(6)) * V(1.0 / 6););
WT_FORMULA(HardswishBackward, Binary<kFloats>, WT_GX,
           return select(x <= V(-3), V(0), select(x >= V(3), g, g* fma(x, V(1.0 / 3), V(0.5)))););
WT_FORMULA(Hardshrink, Binary<kFloats>, (V x, V lambd), return select(abs(x) <= lambd, V(0), x););
WT_FORMULA(Softshrink, Binary<kFloats>, (V x, V lambd), return x - minimum(maximum(x, -lambd), lambd););
WT_FORMULA(ShrinkBackward, Ternary<kFloats>, (V g, V x, V lambd), return select(abs(x) <= lambd, V(0), g););
WT_FORMULA(Softsign, Unary<kFloats>, WT_V1, return x / (V(1) + abs(x)););
// The last term is 0, or NaN at an infinity, where x / (1 + |x|) is NaN itself.
WT_FORMULA(SoftsignBackward, Binary<kFloats>, WT_GX, {
  V d = V(1) + abs(x);
  return g / (d * d) + (x - x);
});

// ---- losses of an input x against a target y. In the gradients with respect to x, g is the gradient of the
// loss and k a factor: 1 over the number of elements for a mean ----
WT_FORMULA(MseLoss, Binary<kFloats>, (V x, V y), {
  V d = x - y;
  return d * d;
});
WT_FORMULA(MseLossBackward, Quaternary<kFloats>, (V g, V x, V y, V k), return g * (V(2) * k * (x - y)););
WT_FORMULA(L1Loss, Binary<kFloats>, (V x, V y), return abs(x - y););
WT_FORMULA(L1LossBackward, Quaternary<kFloats>, (V g, V x, V y, V k), {
  V d = x - y;
  return g * select(d > V(0), k, select(d < V(0), -k, V(0)));
});
WT_FORMULA(SmoothL1Loss, Ternary<kFloats>, (V x, V y, V beta), {
  V d = abs(x - y);
  return select(d < beta, V(0.5) * d * d / beta, d - V(0.5) * beta);
});
WT_FORMULA(SmoothL1LossBackward, Quinary<kFloats>, (V g, V x, V y, V beta, V k), {
  V d = x - y;
  return g * select(abs(d) < beta, k * d / beta, select(d > V(0), k, select(d < V(0), -k, d)));
});
WT_FORMULA(HuberLoss, Ternary<kFloats>, (V x, V y, V delta), {
  V d = abs(x - y);
  return select(d < delta, V(0.5) * d * d, delta * (d - V(0.5) * delta));
});
WT_FORMULA(HuberLossBackward, Quinary<kFloats>, (V g, V x, V y, V delta, V k),
           { return g * (k * minimum(maximum(x - y, -delta), delta)); });
// x and y are probabilities; what is not gives NaN, by which the op finds it.
WT_FORMULA(BinaryCrossEntropy, Ternary<kFloats>, (V x, V y, V w), {
  V loss = (y - V(1)) * maximum(log1p(-x), V(-100)) - y * maximum(log(x), V(-100));
  return select((y >= V(0)) & (y <= V(1)), w * loss, V(__builtin_nan("")));
});
WT_FORMULA(BinaryCrossEntropyBackward, Quinary<kFloats>, (V g, V x, V y, V w, V k),
           return g * (w * k) * (x - y) / maximum((V(1) - x) * x, V(1e-12f)););
// x holds logits; p weighs the positive part.
WT_FORMULA(BinaryCrossEntropyWithLogits, Quaternary<kFloats>, (V x, V y, V w, V p), {
  V log_sigmoid = minimum(x, V(0)) - log1p(exp(-abs(x)));
  return w * ((V(1) - y) * x - fma(p - V(1), y, V(1)) * log_sigmoid);
});
WT_FORMULA(BinaryCrossEntropyWithLogitsBackward, Senary<kFloats>, (V g, V x, V y, V w, V p, V k), {
  V t = p * y;
  return g * (w * k) * ((t + V(1) - y) * sigmoid(x) - t);
});
// x is a log-probability, y a probability or its logarithm.
WT_FORMULA(KlDiv, Binary<kFloats>, (V x, V y), return select(y == V(0), V(0), y* log(y)) - y * x;);
WT_FORMULA(KlDivLog, Binary<kFloats>, (V x, V y), return exp(y) * (y - x););

}  // namespace warptape::kernels::WARPTAPE_ISA
