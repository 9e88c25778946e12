// Divisors, and the parts of numbers, lane by lane.

#include "kernels/cpu/elementwise.h"

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
  return by_lane(a, n, [](T x, T e) {
    return T(__builtin_ldexp(x, e > T(5000) ? 5000 : e < T(-5000) ? -5000 : int(e)));
  });
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

#include "kernels/formulas_parts.h"

namespace warptape::kernels::WARPTAPE_ISA {

template <> inline constexpr bool kNarrow<NextAfter> = true;

namespace {

WT_PART_OPS(WT_ELEMENTWISE)

}  // namespace
}  // namespace warptape::kernels::WARPTAPE_ISA
