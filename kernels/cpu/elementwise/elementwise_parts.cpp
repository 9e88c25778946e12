// Divisors, and the parts of numbers, lane by lane.

#include "kernels/cpu/elementwise/elementwise.h"

namespace warptape::kernels::WARPTAPE_ISA {

WT_FN VInt gcd(VInt a, VInt b) {
  return by_lane(a, b, [](int64_t x, int64_t y) {
    while (x != 0) {
      const int64_t rest = fmod(y, x);
      y = x;
      x = rest;
    }
    return y;
  });
}
template <class T>
WT_FN Vec<T> ldexp(Vec<T> a, Vec<T> n) {
  const Vec<T> bounded = trunc(minimum(maximum(n, Vec<T>(-5000)), Vec<T>(5000)));
#if defined(__AVX512F__)
  return scale(a, bounded);  // rounds once, whatever the exponent
#else
  return by_lane(a, bounded, [](T x, T e) { return e == e ? T(__builtin_ldexp(x, int(e))) : e; });
#endif
}
template <class T>
WT_FN Vec<T> mantissa(Vec<T> a) {
  return by_lane(a, [](T x) {
    int n;
    return T(__builtin_frexp(x, &n));
  });
}
template <class T>
WT_FN Vec<T> exponent(Vec<T> a) {
  return by_lane(a, [](T x) {
    int n = 0;
    __builtin_frexp(x, &n);
    return T(n);
  });
}

}  // namespace warptape::kernels::WARPTAPE_ISA

#include "kernels/elementwise/formulas_parts.h"

namespace warptape::kernels::WARPTAPE_ISA {

namespace {

WT_PART_OPS(WT_ELEMENTWISE)

}  // namespace
}  // namespace warptape::kernels::WARPTAPE_ISA
