// Divisors, and the parts of numbers.
#include "kernels/cuda/elementwise/elementwise.cuh"

namespace warptape::kernels::cuda {

WT_DEVICE int64_t gcd(int64_t a, int64_t b) {
  while (a != 0) {
    const int64_t rest = fmod(b, a);
    b = a;
    a = rest;
  }
  return b;
}
template <class V>
WT_DEVICE V ldexp(V x, V n) {
  return V(::ldexp(double(x), n > V(5000) ? 5000 : n < V(-5000) ? -5000 : int(n)));
}
template <class V>
WT_DEVICE V mantissa(V x) {
  int n;
  return V(::frexp(double(x), &n));
}
template <class V>
WT_DEVICE V exponent(V x) {
  int n = 0;
  if (isfinite(x)) ::frexp(double(x), &n);
  return V(n);
}

}  // namespace warptape::kernels::cuda

#include "kernels/elementwise/formulas_parts.h"

namespace warptape::kernels::cuda {
namespace {

WT_PART_OPS(WT_ELEMENTWISE)

}  // namespace
}  // namespace warptape::kernels::cuda
