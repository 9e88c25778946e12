// Data types.
#pragma once

#include <complex>
#include <cstdint>
#include <ostream>

#include "c10/util/ArrayRef.h"
#include "c10/util/Half.h"

namespace c10 {

template <class T>
using complex = std::complex<T>;

// The numbers are warptape's, not PyTorch's.
#define WARPTAPE_SCALAR_TYPE(constant, name, bytes) name = WTX_##constant,
enum class ScalarType : int8_t { Undefined = WTX_UNDEFINED, WTX_FORALL_DTYPES(WARPTAPE_SCALAR_TYPE) };
#undef WARPTAPE_SCALAR_TYPE

// X(type in C++, name): the types that have one.
#define WARPTAPE_FORALL_SCALAR_TYPES(X)    \
  X(bool, Bool)                            \
  X(uint8_t, Byte)                         \
  X(int8_t, Char)                          \
  X(int16_t, Short)                        \
  X(int, Int)                              \
  X(int64_t, Long)                         \
  X(::c10::Half, Half)                     \
  X(::c10::BFloat16, BFloat16)             \
  X(float, Float)                          \
  X(double, Double)                        \
  X(::c10::complex<float>, ComplexFloat)   \
  X(::c10::complex<double>, ComplexDouble) \
  X(uint16_t, UInt16)                      \
  X(uint32_t, UInt32)                      \
  X(uint64_t, UInt64)

template <class T>
struct CppTypeToScalarType;
template <ScalarType t>
struct ScalarTypeToCPPType;
#define WARPTAPE_TYPE(cpp, name)                          \
  template <>                                             \
  struct CppTypeToScalarType<cpp> {                       \
    static constexpr ScalarType value = ScalarType::name; \
  };                                                      \
  template <>                                             \
  struct ScalarTypeToCPPType<ScalarType::name> {          \
    using type = cpp;                                     \
  };                                                      \
  constexpr ScalarType k##name = ScalarType::name;
WARPTAPE_FORALL_SCALAR_TYPES(WARPTAPE_TYPE)
#undef WARPTAPE_TYPE
template <>
struct CppTypeToScalarType<long long> : CppTypeToScalarType<int64_t> {};
template <ScalarType t>
using ScalarTypeToCPPTypeT = typename ScalarTypeToCPPType<t>::type;

constexpr ScalarType kUInt8 = kByte, kInt8 = kChar, kInt16 = kShort, kInt32 = kInt, kInt64 = kLong,
                     kFloat16 = kHalf, kFloat32 = kFloat, kFloat64 = kDouble,
                     kComplexHalf = ScalarType::Undefined, kComplex64 = kComplexFloat,
                     kComplex128 = kComplexDouble, kI32 = kInt, kI64 = kLong, kF32 = kFloat, kF64 = kDouble,
                     kU8 = kByte, kFloat8_e4m3fn = ScalarType::Float8_e4m3fn,
                     kFloat8_e5m2 = ScalarType::Float8_e5m2;

inline const char* toString(ScalarType t) {
#define WARPTAPE_NAME(constant, name, bytes) #name,
  constexpr const char* names[] = {WTX_FORALL_DTYPES(WARPTAPE_NAME)};
#undef WARPTAPE_NAME
  return t == ScalarType::Undefined ? "Undefined" : names[static_cast<int>(t)];
}
inline std::ostream& operator<<(std::ostream& out, ScalarType t) { return out << toString(t); }

constexpr bool isFloatingType(ScalarType t) {
  return (t >= ScalarType::Half && t <= ScalarType::Double) || t >= ScalarType::Float8_e4m3fn;
}
constexpr bool isReducedFloatingType(ScalarType t) { return t == kHalf || t == kBFloat16; }
constexpr bool isComplexType(ScalarType t) { return t == kComplexFloat || t == kComplexDouble; }
constexpr bool isIntegralType(ScalarType t, bool with_bool) {
  return (t >= kByte && t <= kLong) || (t >= kUInt16 && t <= kUInt64) || (with_bool && t == kBool);
}
constexpr bool isSignedType(ScalarType t) {
  return t != kBool && t != kByte && !(t >= kUInt16 && t <= kUInt64);
}
constexpr size_t elementSize(ScalarType t) {
#define WARPTAPE_BYTES(constant, name, bytes) bytes,
  constexpr uint8_t sizes[] = {WTX_FORALL_DTYPES(WARPTAPE_BYTES)};
#undef WARPTAPE_BYTES
  return t == ScalarType::Undefined ? 0 : sizes[static_cast<int>(t)];
}

// A ScalarType with PyTorch's older name and methods: Tensor::dtype().
class TypeMeta {
 public:
  TypeMeta() = default;
  TypeMeta(ScalarType t) : type_(t) {}
  ScalarType toScalarType() const { return type_; }
  size_t itemsize() const { return elementSize(type_); }
  const char* name() const { return toString(type_); }
  operator ScalarType() const { return type_; }
  template <class T>
  bool Match() const {
    return type_ == CppTypeToScalarType<T>::value;
  }
  template <class T>
  static TypeMeta Make() {
    return CppTypeToScalarType<T>::value;
  }
  friend bool operator==(TypeMeta a, TypeMeta b) { return a.type_ == b.type_; }
  friend bool operator!=(TypeMeta a, TypeMeta b) { return a.type_ != b.type_; }
  friend bool operator==(TypeMeta a, ScalarType b) { return a.type_ == b; }
  friend bool operator!=(TypeMeta a, ScalarType b) { return a.type_ != b; }
  friend bool operator==(ScalarType a, TypeMeta b) { return a == b.type_; }
  friend bool operator!=(ScalarType a, TypeMeta b) { return a != b.type_; }
  friend std::ostream& operator<<(std::ostream& out, TypeMeta t) { return out << t.type_; }

 private:
  ScalarType type_ = ScalarType::Undefined;
};
inline ScalarType typeMetaToScalarType(TypeMeta t) { return t.toScalarType(); }

}  // namespace c10
