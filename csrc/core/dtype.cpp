#include "core/dtype.h"

#include <algorithm>
#include <ostream>

#include "core/errors.h"
#include "kernels/elementwise/elementwise.h"

namespace warptape {

#define WT_NAME(enumerator, type, bytes, text, ...) #text,
#define WT_SCALAR_TYPE(enumerator, type, bytes, text, torch_text, ...) #torch_text,
const char* name(DType t) {
  constexpr const char* names[] = {WT_DTYPES(WT_NAME)};
  return names[static_cast<int>(t)];
}
const char* scalar_type(DType t) {
  constexpr const char* names[] = {WT_DTYPES(WT_SCALAR_TYPE)};
  return names[static_cast<int>(t)];
}

std::ostream& operator<<(std::ostream& out, DType t) { return out << name(t); }

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (a > b) std::swap(a, b);
  WT_CHECK(!is_float8(b), DtypeError, "Promotion for Float8 Types is not supported, attempted to promote ", a,
           " and ", b, "; convert one with .to(dtype)");
  if (is_wide_unsigned(b)) {
    WT_CHECK(is_differentiable(a), DtypeError,
             "Promotion for uint16, uint32, uint64 types is not supported, attempted to promote ", a, " and ",
             b, "; convert one with .to(dtype)");
    return a;
  }
  if (a == DType::Float64 && is_complex(b)) return DType::Complex128;
  if (category(a) != category(b)) return b;
  if (a == DType::UInt8 && b == DType::Int8) return DType::Int16;
  if (a == DType::Float16 && b == DType::BFloat16) return DType::Float32;
  return b;
}

DType PromotionState::result() const {
  std::optional<DType> out;
  for (const auto& level : {dim_, zero_, scalar_}) {
    if (!level) continue;
    if (out && category(*level) <= category(*out)) continue;
    // Floats of a higher rank keep their width: they become the parts of complex numbers.
    out = out && is_floating(*out) && is_complex(*level) ? complex_of(*out) : *level;
  }
  return out.value_or(DType::Float32);
}

void kernels::refuse_compute_dtype(DType compute) {
  throw DtypeError(message("not implemented for ", compute, "; convert to a dtype that the op computes in"));
}

}  // namespace warptape
