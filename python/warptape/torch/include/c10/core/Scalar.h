// One number of any kind.
#pragma once

#include "c10/core/ScalarType.h"

namespace c10 {

class Scalar {
 public:
  Scalar() : Scalar(int64_t{0}) {}
  Scalar(bool v) : kind_(WTX_KIND_BOOL), i_(v) {}
  Scalar(double v) : kind_(WTX_KIND_DOUBLE), d_{v, 0} {}
  Scalar(float v) : Scalar(static_cast<double>(v)) {}
  Scalar(Half v) : Scalar(static_cast<float>(v)) {}
  Scalar(BFloat16 v) : Scalar(static_cast<float>(v)) {}
  Scalar(complex<double> v) : kind_(WTX_KIND_COMPLEX), d_{v.real(), v.imag()} {}
  Scalar(complex<float> v) : Scalar(complex<double>(v)) {}
  template <class T, std::enable_if_t<std::is_integral<T>::value && !std::is_same<T, bool>::value, int> = 0>
  Scalar(T v) : kind_(WTX_KIND_INT), i_(static_cast<int64_t>(v)) {}

  bool isFloatingPoint() const { return kind_ == WTX_KIND_DOUBLE; }
  bool isIntegral(bool with_bool = false) const {
    return kind_ == WTX_KIND_INT || (with_bool && isBoolean());
  }
  bool isBoolean() const { return kind_ == WTX_KIND_BOOL; }
  bool isComplex() const { return kind_ == WTX_KIND_COMPLEX; }
  ScalarType type() const {
    return isComplex() ? kComplexDouble : isFloatingPoint() ? kDouble : isBoolean() ? kBool : kLong;
  }
  template <class T>
  T to() const {
    if constexpr (std::is_same<T, complex<float>>::value || std::is_same<T, complex<double>>::value) {
      return isComplex() ? T(d_[0], d_[1]) : T(toDouble());
    } else {
      if (isFloatingPoint() || isComplex()) return static_cast<T>(d_[0]);
      return static_cast<T>(i_);
    }
  }
  double toDouble() const { return to<double>(); }
  float toFloat() const { return to<float>(); }
  int64_t toLong() const { return to<int64_t>(); }
  int toInt() const { return to<int>(); }
  bool toBool() const { return isFloatingPoint() || isComplex() ? d_[0] != 0 || d_[1] != 0 : i_ != 0; }
  Half toHalf() const { return to<float>(); }
  Scalar operator-() const {
    if (isComplex()) return complex<double>(-d_[0], -d_[1]);
    if (isFloatingPoint()) return -d_[0];
    return -i_;
  }
  wtx_value value() const {
    wtx_value v;
    v.kind = kind_;
    v.d[0] = v.d[1] = 0;
    if (isFloatingPoint() || isComplex())
      v.d[0] = d_[0], v.d[1] = d_[1];
    else
      v.i = i_;
    return v;
  }
  friend std::ostream& operator<<(std::ostream& out, const Scalar& s) {
    if (s.isComplex()) return out << s.to<complex<double>>();
    return s.isFloatingPoint() ? out << s.d_[0] : out << s.i_;
  }

 private:
  wtx_kind kind_;
  union {
    int64_t i_;
    double d_[2];
  };
};
template <>
inline bool Scalar::to<bool>() const {
  return toBool();
}

}  // namespace c10
