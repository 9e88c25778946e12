// Formulas of divisors and of the parts of numbers, complex ones too; as kernels/elementwise/formulas.h,
// whose math set has more here: gcd of integers; ldexp, mantissa and exponent of floats.
#pragma once

#include "kernels/elementwise/formulas.h"

namespace warptape::kernels::WARPTAPE_ISA {

// Values narrower than int64_t overflow as they do in their own type: `lowest` is its smallest value, which
// is its own magnitude, and lcm's product wraps at 64 - `unused` bits.
WT_FORMULA(Gcd, Ternary<kIntegers>, (V a, V b, V lowest),
           return gcd(select(a == lowest, a, abs(a)), select(b == lowest, b, abs(b))););
WT_FORMULA(Lcm, Quaternary<kIntegers>, (V a, V b, V lowest, V unused), {
  const V divisor = Gcd::apply(a, b, lowest);
  const V product = trunc_divide(a, select(divisor == V(0), V(1), divisor)) * b;
  return abs(shift_right(shift_left(product, unused), unused));
});

WT_FORMULA(Ldexp, Binary<kFloats>, WT_V2, return ldexp(a, b););
WT_FORMULA(FrexpMantissa, Unary<kFloats>, WT_V1, return mantissa(x););
WT_FORMULA(FrexpExponent, Unary<kFloats>, WT_V1, return exponent(x););

WT_FORMULA(Conj, Unary<kComplexLanes>, WT_V1, return V(x.re, -x.im););

// Of the bits of floats, as integers of their width: `infinity` is the bits of that, `lowest` those of -0.
template <class V>
WT_FN V ordered_bits(V x, V lowest) {
  return select(x < V(0), lowest - x, x);  // by sign and magnitude, and back
}
WT_FORMULA(NextAfter, Quaternary<kIntegers | kNarrow>, (V a, V b, V infinity, V lowest), {
  const V from = ordered_bits(a, lowest), to = ordered_bits(b, lowest);
  const V next = select(from == to, b, ordered_bits(select(from < to, from + V(1), from - V(1)), lowest));
  return select(abs(from) > infinity, a, select(abs(to) > infinity, b, next));
});

}  // namespace warptape::kernels::WARPTAPE_ISA

#define WT_PART_OPS(X)              \
  X(gcd, Gcd);                      \
  X(lcm, Lcm);                      \
  X(ldexp, Ldexp);                  \
  X(frexp_mantissa, FrexpMantissa); \
  X(frexp_exponent, FrexpExponent); \
  X(nextafter, NextAfter);          \
  X(conj, Conj);
