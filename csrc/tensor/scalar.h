// One number of the kinds that Python has: bool, int, float, complex.
#pragma once

#include "core/context.h"
#include "core/dtype.h"
#include "kernels/complex.h"

namespace warptape {

class Scalar {
 public:
  Scalar(bool v) : kind_(DTypeCategory::Bool), i_(v) {}
  Scalar(int v) : kind_(DTypeCategory::Integral), i_(v) {}
  Scalar(int64_t v) : kind_(DTypeCategory::Integral), i_(v) {}
  Scalar(double v) : kind_(DTypeCategory::Floating), d_(v) {}
  Scalar(Complex<double> v) : kind_(DTypeCategory::Complex), d_(v.re), imag_(v.im) {}
  Scalar() : Scalar(0) {}
  // An integer of [2^63, 2^64), which is one modulo 2^64: to_int() gives its bits.
  static Scalar of_unsigned(uint64_t v) {
    Scalar s(static_cast<int64_t>(v));
    s.exceeds_int64_ = v > INT64_MAX;
    return s;
  }
  bool exceeds_int64() const { return exceeds_int64_; }

  DTypeCategory kind() const { return kind_; }
  bool is_floating() const { return kind_ == DTypeCategory::Floating; }
  bool is_complex() const { return kind_ == DTypeCategory::Complex; }
  bool is_bool() const { return kind_ == DTypeCategory::Bool; }
  // Of a complex number these take the real part.
  double to_double() const {
    return in_double()      ? d_
           : exceeds_int64_ ? static_cast<double>(static_cast<uint64_t>(i_))
                            : static_cast<double>(i_);
  }
  int64_t to_int() const { return in_double() ? static_cast<int64_t>(d_) : i_; }
  bool to_bool() const { return in_double() ? d_ != 0 || imag_ != 0 : i_ != 0; }
  Complex<double> to_complex() const { return {to_double(), imag_}; }
  // The dtype of a tensor made from this number.
  DType dtype() const {
    if (is_floating()) return rank_context().default_dtype;
    if (is_complex()) return complex_of(rank_context().default_dtype);
    return is_bool() ? DType::Bool : DType::Int64;
  }
  // The same kind of number and the same value.
  bool operator==(const Scalar& o) const {
    if (kind_ != o.kind_ || exceeds_int64_ != o.exceeds_int64_) return false;
    return in_double() ? d_ == o.d_ && imag_ == o.imag_ : i_ == o.i_;
  }
  bool equal(double v) const { return to_double() == v && imag_ == 0; }

 private:
  bool in_double() const { return kind_ >= DTypeCategory::Floating; }
  DTypeCategory kind_;
  bool exceeds_int64_ = false;
  union {
    int64_t i_;
    double d_;
  };
  double imag_ = 0;
};

}  // namespace warptape
