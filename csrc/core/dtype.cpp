#include "core/dtype.h"

#include <algorithm>
#include <ostream>

namespace warptape {

const char* name(DType t) {
  constexpr const char* names[kNumDTypes] = {"bool",  "uint8",   "int8",     "int16",   "int32",
                                             "int64", "float16", "bfloat16", "float32", "float64"};
  return names[static_cast<int>(t)];
}

std::ostream& operator<<(std::ostream& out, DType t) { return out << name(t); }

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (a > b) std::swap(a, b);
  if (category(a) != category(b)) return b;
  if (a == DType::UInt8 && b == DType::Int8) return DType::Int16;
  if (a == DType::Float16 && b == DType::BFloat16) return DType::Float32;
  return b;
}

DType PromotionState::result() const {
  std::optional<DType> out;
  for (const auto& level : {dim_, zero_, scalar_}) {
    if (!level) continue;
    if (!out || category(*level) > category(*out)) out = level;
  }
  return out.value_or(DType::Float32);
}

}  // namespace warptape
