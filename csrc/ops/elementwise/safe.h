// Quotients and powers that count as 0 where their formula has no value. The operands are replaced there, not
// the result alone: the derivatives would be 0 * inf.
#pragma once

#include "ops/elementwise/elementwise.h"
#include "ops/index/masked.h"

namespace warptape::ops {

// a / b, and 0 where b is 0.
inline Tensor quotient_or_zero(const Tensor& a, const Tensor& b) {
  const Tensor none_there = eq_ts(b, 0);
  return masked_fill(a / masked_fill(b, none_there, 1), none_there, 0);
}
// sign(x) |x|^p, and 0 where x is 0.
inline Tensor signed_power(const Tensor& x, double p) {
  const Tensor none_there = eq_ts(x, 0);
  return masked_fill(sign(x) * pow_ts(abs(masked_fill(x, none_there, 1)), p), none_there, 0);
}

}  // namespace warptape::ops
