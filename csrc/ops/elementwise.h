// Elementwise ops. Each exists for tensors, for a tensor and a number (suffix _ts), and where it is not symmetric for a
// number and a tensor (_st); Python sees one name.
#pragma once

#include "ops/pointwise.h"

namespace warptape::ops {

using BinaryOp = Op<Tensor(const Tensor&, const Tensor&)>;
using BinaryTsOp = Op<Tensor(const Tensor&, const Scalar&)>;
using BinaryStOp = Op<Tensor(const Scalar&, const Tensor&)>;

// input + alpha * other
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const Scalar&)> add, sub, add_, sub_;
extern WT_API const Op<Tensor(const Tensor&, const Scalar&, const Scalar&)> add_ts, sub_ts, add_ts_, sub_ts_;
extern WT_API const Op<Tensor(const Scalar&, const Tensor&, const Scalar&)> add_st, sub_st;
extern WT_API const BinaryOp mul, mul_, div, div_;
extern WT_API const BinaryTsOp mul_ts, mul_ts_, div_ts, div_ts_;
extern WT_API const BinaryStOp mul_st, div_st;
extern WT_API const Op<Tensor(const Tensor&)> neg, neg_;

// For formulas in C++.
inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b, 1); }
inline Tensor operator+(const Tensor& a, const Scalar& b) { return add_ts(a, b, 1); }
inline Tensor operator+(const Scalar& a, const Tensor& b) { return add_ts(b, a, 1); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b, 1); }
inline Tensor operator-(const Tensor& a, const Scalar& b) { return sub_ts(a, b, 1); }
inline Tensor operator-(const Scalar& a, const Tensor& b) { return sub_st(a, b, 1); }
inline Tensor operator-(const Tensor& a) { return neg(a); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& a, const Scalar& b) { return mul_ts(a, b); }
inline Tensor operator*(const Scalar& a, const Tensor& b) { return mul_ts(b, a); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator/(const Tensor& a, const Scalar& b) { return div_ts(a, b); }
inline Tensor operator/(const Scalar& a, const Tensor& b) { return div_st(a, b); }

}  // namespace warptape::ops
