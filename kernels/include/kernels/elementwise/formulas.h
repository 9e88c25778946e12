// The formulas of the elementwise ops, forward and fused backward: templates on the value type V over a math
// set that each backend supplies and includes first. A math set lives in the namespace
// warptape::kernels::WARPTAPE_ISA (cuda defines WARPTAPE_ISA as cuda) and has, for its V: arithmetic,
// comparisons that give a mask (bool for scalars), & | ! on masks, select(mask, a, b), kIsInteger<V>, WT_FN,
// WT_FN_OUTLINED (for what is long: not inlined) and the functions called below.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels::WARPTAPE_ISA {

// In which types an op is computed and how, as bits.
inline constexpr unsigned kFloats = 1;    // float and double
inline constexpr unsigned kIntegers = 2;  // int64_t
inline constexpr unsigned kAny = 3;
inline constexpr unsigned kComplex = 4;
inline constexpr unsigned kComplexLanes = 12;  // with sums and products alone, so on the CPU in lanes
// Integers are computed in their own width, too: where wrapping at 8 or 32 bits gives what int64's result
// gives when it is stored.
inline constexpr unsigned kNarrow = 16;
// Of few instructions, so that loads, stores and calls would be much of its time: in chains on the CPU float
// values stay in registers.
inline constexpr unsigned kSimple = 32;

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

// WT_FORMULA(Name, Base, (parameters), result). The formula of an op is a line
// WT_OP(slot, Name, Base, (parameters), result) of a list in ops/; WT_OP(slot, Name) is a slot with the
// formula of another. A list is included with a meaning of WT_OP wherever something is done for each of its
// ops: below each becomes a formula, and on every device a kernel.
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

WT_FORMULA(Pow, Binary<kAny | kComplex>, WT_V2, return pow(a, b););

struct WhereBase : Ternary<kAny | kComplex | kNarrow | kSimple> {
  static constexpr bool kMaskFirst = true;
};
struct Where : WhereBase {
  template <class M, class V>
  WT_FN static V apply(M m, V a, V b) {
    return select(m, a, b);
  }
};

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

// tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2); it is 1 to the last bit from 20 on.
template <class V>
WT_FN V mish_n(V x) {
  V e = exp(minimum(x, V(20)));
  return e * (e + V(2));
}

inline constexpr double kSeluAlpha = 1.6732632423543772848170429916717;
inline constexpr double kSeluScale = 1.0507009873554804934193349852946;

// ---- the ops: a list for each file of loops ----
#define WT_OP(slot, Name, ...) __VA_OPT__(WT_FORMULA(Name, __VA_ARGS__))
#include "kernels/elementwise/ops/activation.h"
#include "kernels/elementwise/ops/arithmetic.h"
#include "kernels/elementwise/ops/loss.h"
#include "kernels/elementwise/ops/loss_backward.h"
#include "kernels/elementwise/ops/math.h"
#undef WT_OP

}  // namespace warptape::kernels::WARPTAPE_ISA
