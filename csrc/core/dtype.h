// Data types: names, categories, limits and promotion.
#pragma once

#include <iosfwd>
#include <optional>

#include "core/export.h"

namespace warptape {

WT_API const char* name(DType t);         // "float32"; PyTorch's names
WT_API const char* scalar_type(DType t);  // "Float"; PyTorch's names in errors about two dtypes that differ
WT_API std::ostream& operator<<(std::ostream& out, DType t);

// Bool < integers < floats < complex: the category decides before the width does.
enum class DTypeCategory : uint8_t { Bool, Integral, Floating, Complex };
constexpr DTypeCategory category(DType t) {
  return t == DType::Bool ? DTypeCategory::Bool
         : is_complex(t)  ? DTypeCategory::Complex
         : is_floating(t) ? DTypeCategory::Floating
                          : DTypeCategory::Integral;
}

// The smallest dtype that both convert to (PyTorch's table: uint8 with int8 gives int16, float16 with
// bfloat16 float32, float64 with complex64 complex128).
WT_API DType promote(DType a, DType b);

// PyTorch's three ranks of operands: a dimensioned tensor outranks a 0-dim tensor, which outranks a Python
// scalar; a lower rank changes the result's dtype only when its category is higher.
class WT_API PromotionState {
 public:
  void add_dimensioned(DType t) { join(dim_, t); }
  void add_zero_dim(DType t) { join(zero_, t); }
  void add_scalar(DType t) { join(scalar_, t); }  // Int64, Bool, or the default floating or complex dtype
  DType result() const;

 private:
  static void join(std::optional<DType>& into, DType t) { into = into ? promote(*into, t) : t; }
  std::optional<DType> dim_, zero_, scalar_;
};

// Whether a result of type `from` may be stored in a tensor of type `to` by an in-place op or out=.
constexpr bool can_cast(DType from, DType to) { return category(from) <= category(to); }

// Whether the type has negative numbers.
constexpr bool has_sign(DType t) {
  return t != DType::Bool && t != DType::UInt8 && t != DType::Float8E8M0FNU && !is_wide_unsigned(t);
}

// Whether values of this type have gradients.
constexpr bool is_differentiable(DType t) { return is_floating(t) || is_complex(t); }

// The type of a complex number's parts, and of the complex number that has such parts.
constexpr DType real_of(DType t) {
  return t == DType::Complex128 ? DType::Float64 : t == DType::Complex64 ? DType::Float32 : t;
}
constexpr DType complex_of(DType t) {
  return t == DType::Float64 || t == DType::Complex128 ? DType::Complex128 : DType::Complex64;
}

// The type in which elementwise kernels compute values of `t`.
constexpr DType compute_dtype(DType t) {
  if (t == DType::Float64 || is_complex(t)) return t;
  return is_floating(t) ? DType::Float32 : DType::Int64;
}

}  // namespace warptape
