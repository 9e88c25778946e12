// Operators of tensors: a + b and so on.
#pragma once

#include "ATen/core/TensorBody.h"

namespace at {

#define WARPTAPE_BINARY(op, name, reversed)                                         \
  inline Tensor operator op(const Tensor& a, const Tensor& b) { return a.name(b); } \
  inline Tensor operator op(const Tensor& a, const Scalar& b) { return a.name(b); } \
  inline Tensor operator op(const Scalar& a, const Tensor& b) { return reversed; }
#define WARPTAPE_CALL(name) wtx::call<Tensor>(name, a, b)
WARPTAPE_BINARY(+, add, b.add(a))
WARPTAPE_BINARY(-, sub, wtx::call<Tensor>("rsub", b, a, Scalar(1)))
WARPTAPE_BINARY(*, mul, b.mul(a))
WARPTAPE_BINARY(/, div, b.reciprocal().mul_(a))
WARPTAPE_BINARY(%, remainder, WARPTAPE_CALL("remainder"))
WARPTAPE_BINARY(&, bitwise_and, b.bitwise_and(a))
WARPTAPE_BINARY(|, bitwise_or, b.bitwise_or(a))
WARPTAPE_BINARY(^, bitwise_xor, b.bitwise_xor(a))
WARPTAPE_BINARY(<, lt, b.gt(a))
WARPTAPE_BINARY(<=, le, b.ge(a))
WARPTAPE_BINARY(>, gt, b.lt(a))
WARPTAPE_BINARY(>=, ge, b.le(a))
WARPTAPE_BINARY(==, eq, b.eq(a))
WARPTAPE_BINARY(!=, ne, b.ne(a))
#undef WARPTAPE_CALL
#undef WARPTAPE_BINARY
inline Tensor operator!(const Tensor& a) { return a.logical_not(); }

}  // namespace at
