// One number of the kinds that Python has: bool, int, float. (Complex joins when the dtypes do.)
#pragma once

#include "core/context.h"
#include "core/dtype.h"

namespace warptape {

class Scalar {
 public:
  Scalar(bool v) : kind_(DTypeCategory::Bool), i_(v) {}
  Scalar(int v) : kind_(DTypeCategory::Integral), i_(v) {}
  Scalar(int64_t v) : kind_(DTypeCategory::Integral), i_(v) {}
  Scalar(double v) : kind_(DTypeCategory::Floating), d_(v) {}
  Scalar() : Scalar(0) {}

  DTypeCategory kind() const { return kind_; }
  bool is_floating() const { return kind_ == DTypeCategory::Floating; }
  bool is_bool() const { return kind_ == DTypeCategory::Bool; }
  double to_double() const { return is_floating() ? d_ : static_cast<double>(i_); }
  int64_t to_int() const { return is_floating() ? static_cast<int64_t>(d_) : i_; }
  bool to_bool() const { return is_floating() ? d_ != 0 : i_ != 0; }
  // The dtype of a tensor made from this number.
  DType dtype() const {
    if (is_floating()) return rank_context().default_dtype;
    return is_bool() ? DType::Bool : DType::Int64;
  }
  bool equal(double v) const { return is_floating() ? d_ == v : static_cast<double>(i_) == v; }

 private:
  DTypeCategory kind_;
  union {
    int64_t i_;
    double d_;
  };
};

}  // namespace warptape
