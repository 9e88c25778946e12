// Elementwise ops. Each exists for tensors, for a tensor and a number (suffix _ts), and where it is not
// symmetric for a number and a tensor (_st); Python sees one name.
#pragma once

#include "op/pointwise.h"

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
using UnaryOp = Op<Tensor(const Tensor&)>;
extern WT_API const UnaryOp neg, neg_;

// elementwise_math.cpp
extern WT_API const UnaryOp exp, exp_, exp2, exp2_, expm1, expm1_, log, log_, log2, log2_, log10, log10_,
    log1p, log1p_, sin, sin_, cos, cos_, tan, tan_, asin, asin_, acos, acos_, atan, atan_, sinh, sinh_, cosh,
    cosh_, tanh, tanh_, asinh, asinh_, acosh, acosh_, atanh, atanh_, erf, erf_, erfc, erfc_, erfinv, erfinv_,
    lgamma, lgamma_, digamma, digamma_, sinc, sinc_, sqrt, sqrt_, rsqrt, rsqrt_, reciprocal, reciprocal_,
    sigmoid, sigmoid_, rad2deg, rad2deg_, deg2rad, deg2rad_;
extern WT_API const Op<Tensor(const Tensor&, std::optional<double>)> logit, logit_;
extern WT_API const Op<Tensor(int64_t, const Tensor&)> polygamma;

// elementwise_simple.cpp
extern WT_API const UnaryOp abs, abs_, sign, sign_, sgn, sgn_, square, square_, floor, floor_, ceil, ceil_,
    trunc, trunc_, frac, frac_, positive, isnan, isinf, isfinite, isposinf, isneginf, signbit, logical_not,
    logical_not_, bitwise_not, bitwise_not_;
extern WT_API const Op<Tensor(const Tensor&, int64_t)> round, round_;
extern WT_API const
    Op<Tensor(const Tensor&, std::optional<double>, std::optional<double>, std::optional<double>)>
        nan_to_num, nan_to_num_;

// elementwise_binary.cpp
extern WT_API const BinaryOp pow, pow_, fmod, fmod_, remainder, remainder_, floor_divide, floor_divide_,
    atan2, atan2_, hypot, hypot_, logaddexp, logaddexp2, copysign, copysign_, xlogy, xlogy_, maximum, minimum,
    fmax, fmin, heaviside;
extern WT_API const BinaryTsOp pow_ts, pow_ts_, fmod_ts, fmod_ts_, remainder_ts, remainder_ts_,
    floor_divide_ts, floor_divide_ts_, copysign_ts, copysign_ts_, xlogy_ts, xlogy_ts_;
extern WT_API const BinaryStOp pow_st, remainder_st, xlogy_st;
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, std::optional<std::string_view>)> div_mode,
    div_mode_;
extern WT_API const Op<Tensor(const Tensor&, const Scalar&, std::optional<std::string_view>)> div_mode_ts,
    div_mode_ts_;

// comparison.cpp
extern WT_API const BinaryOp eq, ne, lt, le, gt, ge, logical_and, logical_or, logical_xor, bitwise_and,
    bitwise_or, bitwise_xor, bitwise_left_shift, bitwise_right_shift;
extern WT_API const BinaryTsOp eq_ts, ne_ts, lt_ts, le_ts, gt_ts, ge_ts;

// elementwise_parts.cpp
extern WT_API const BinaryOp ldexp;

// elementwise_select.cpp
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const Tensor&)> where, lerp, lerp_;
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const Scalar&)> where_ts, lerp_s, lerp_s_;
extern WT_API const Op<Tensor(const Tensor&, const Scalar&, const Tensor&)> where_st;
extern WT_API const Op<Tensor(const Tensor&, const Scalar&, const Scalar&)> where_ss;
extern WT_API const Op<Tensor(const Tensor&, std::optional<Scalar>, std::optional<Scalar>)> clamp, clamp_;
extern WT_API const Op<Tensor(const Tensor&, const OptTensor&, const OptTensor&)> clamp_t, clamp_t_;
extern WT_API const BinaryOp clamp_min, clamp_min_, clamp_max, clamp_max_;
extern WT_API const BinaryTsOp clamp_min_ts, clamp_min_ts_, clamp_max_ts, clamp_max_ts_;
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&)> addcmul, addcmul_,
    addcdiv, addcdiv_;

// complex.cpp
extern WT_API const UnaryOp conj, view_as_real, view_as_complex, real, imag, complex_abs, complex_sgn, angle;
extern WT_API const BinaryOp complex, polar;
// The conjugate of a complex tensor; a real one is its own.
inline Tensor conjugate(const Tensor& x) { return x.defined() && is_complex(x.dtype()) ? conj(x) : x; }
inline Scalar conjugate(const Scalar& x) {
  return x.is_complex() ? Scalar(Complex<double>(x.to_complex().re, -x.to_complex().im)) : x;
}

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
