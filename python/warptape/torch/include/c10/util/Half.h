// 16-bit floats. Arithmetic is done in float, to which they convert.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "c10/macros/Macros.h"
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace c10 {
namespace detail {

C10_HOST_DEVICE inline uint32_t bits_of(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}
C10_HOST_DEVICE inline float float_of(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}

// IEEE binary16, round to nearest even.
C10_HOST_DEVICE inline uint16_t half_bits(float value) {
#if defined(__CUDA_ARCH__)
  return __half_as_ushort(__float2half_rn(value));
#else
  const uint32_t u = bits_of(value), sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 2^16 and more
  if (magnitude < 0x38800000u) {  // below 2^-14: the sum has the ulp of a subnormal half
    const float shifted = float_of(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
#endif
}
C10_HOST_DEVICE inline float half_value(uint16_t bits) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(bits));
#else
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest >= 0x400u) return float_of(sign | ((rest << 13) + 0x38000000u));
  const float magnitude = float_of(rest + 0x3f000000u) - 0.5f;
  return float_of(sign | bits_of(magnitude));
#endif
}

C10_HOST_DEVICE inline uint16_t bfloat16_bits(float value) {
  const uint32_t u = bits_of(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
C10_HOST_DEVICE inline float bfloat16_value(uint16_t bits) {
  return float_of(static_cast<uint32_t>(bits) << 16);
}

// A float of 16 bits; `Self` has the conversions.
template <class Self>
struct alignas(2) Float16 {
  uint16_t x;
  struct from_bits_t {};
  static constexpr C10_HOST_DEVICE from_bits_t from_bits() { return {}; }
  Float16() = default;
  constexpr C10_HOST_DEVICE Float16(uint16_t bits, from_bits_t) : x(bits) {}

#define WARPTAPE_COMPOUND(op)                                                  \
  template <class T>                                                           \
  C10_HOST_DEVICE Self& operator op## = (const T& other) {                     \
    Self& self = static_cast<Self&>(*this);                                    \
    return self = Self(static_cast<float>(self) op static_cast<float>(other)); \
  }
  WARPTAPE_COMPOUND(+)
  WARPTAPE_COMPOUND(-)
  WARPTAPE_COMPOUND(*)
  WARPTAPE_COMPOUND(/)
#undef WARPTAPE_COMPOUND
};

}  // namespace detail

struct Half : detail::Float16<Half> {
  using Float16::Float16;
  Half() = default;
  C10_HOST_DEVICE Half(float value) { x = detail::half_bits(value); }
  C10_HOST_DEVICE operator float() const { return detail::half_value(x); }
#if defined(__CUDACC__)
  C10_HOST_DEVICE Half(const __half& value) { memcpy(&x, &value, 2); }
  C10_HOST_DEVICE operator __half() const {
    __half value;
    memcpy(&value, &x, 2);
    return value;
  }
#endif
};

struct BFloat16 : detail::Float16<BFloat16> {
  using Float16::Float16;
  BFloat16() = default;
  C10_HOST_DEVICE BFloat16(float value) { x = detail::bfloat16_bits(value); }
  C10_HOST_DEVICE operator float() const { return detail::bfloat16_value(x); }
#if defined(__CUDACC__)
  C10_HOST_DEVICE BFloat16(const __nv_bfloat16& value) { memcpy(&x, &value, 2); }
  C10_HOST_DEVICE operator __nv_bfloat16() const {
    __nv_bfloat16 value;
    memcpy(&value, &x, 2);
    return value;
  }
#endif
};

// The operators of two such floats, and of one with other numbers: the result is the wider of the types.
#define WARPTAPE_OPERATOR(Type, op)                                               \
  C10_HOST_DEVICE inline Type operator op(const Type& a, const Type& b) {         \
    return Type(static_cast<float>(a) op static_cast<float>(b));                  \
  }                                                                               \
  template <class T, std::enable_if_t<std::is_floating_point<T>::value, int> = 0> \
  C10_HOST_DEVICE T operator op(const Type& a, T b) {                             \
    return static_cast<float>(a) op b;                                            \
  }                                                                               \
  template <class T, std::enable_if_t<std::is_floating_point<T>::value, int> = 0> \
  C10_HOST_DEVICE T operator op(T a, const Type& b) {                             \
    return a op static_cast<float>(b);                                            \
  }                                                                               \
  template <class T, std::enable_if_t<std::is_integral<T>::value, int> = 0>       \
  C10_HOST_DEVICE Type operator op(const Type& a, T b) {                          \
    return Type(static_cast<float>(a) op static_cast<float>(b));                  \
  }                                                                               \
  template <class T, std::enable_if_t<std::is_integral<T>::value, int> = 0>       \
  C10_HOST_DEVICE Type operator op(T a, const Type& b) {                          \
    return Type(static_cast<float>(a) op static_cast<float>(b));                  \
  }
#define WARPTAPE_OPERATORS(Type) \
  WARPTAPE_OPERATOR(Type, +)     \
  WARPTAPE_OPERATOR(Type, -)     \
  WARPTAPE_OPERATOR(Type, *)     \
  WARPTAPE_OPERATOR(Type, /)     \
  C10_HOST_DEVICE inline Type operator-(const Type& a) { return Type(-static_cast<float>(a)); }
WARPTAPE_OPERATORS(Half)
WARPTAPE_OPERATORS(BFloat16)
#undef WARPTAPE_OPERATORS
#undef WARPTAPE_OPERATOR

}  // namespace c10

#if defined(__CUDACC__)
__device__ inline c10::Half __ldg(const c10::Half* p) {
  return c10::Half(__ldg(reinterpret_cast<const uint16_t*>(p)), c10::Half::from_bits());
}
__device__ inline c10::BFloat16 __ldg(const c10::BFloat16* p) {
  return c10::BFloat16(__ldg(reinterpret_cast<const uint16_t*>(p)), c10::BFloat16::from_bits());
}
#endif

namespace c10 {
namespace detail {

template <class T, uint16_t kLowest, uint16_t kMax, uint16_t kMin, uint16_t kEpsilon, uint16_t kInfinity,
          uint16_t kNan, int kDigits>
struct Limits {
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;
  static constexpr bool has_infinity = true, has_quiet_NaN = true, is_iec559 = true, is_bounded = true;
  static constexpr int digits = kDigits, radix = 2;
  static constexpr T of(uint16_t bits) { return T(bits, T::from_bits()); }
  static constexpr T lowest() { return of(kLowest); }
  static constexpr T max() { return of(kMax); }
  static constexpr T min() { return of(kMin); }
  static constexpr T epsilon() { return of(kEpsilon); }
  static constexpr T infinity() { return of(kInfinity); }
  static constexpr T quiet_NaN() { return of(kNan); }
};

}  // namespace detail
}  // namespace c10

template <>
class std::numeric_limits<c10::Half>
    : public c10::detail::Limits<c10::Half, 0xfbff, 0x7bff, 0x0400, 0x1400, 0x7c00, 0x7e00, 11> {};
template <>
class std::numeric_limits<c10::BFloat16>
    : public c10::detail::Limits<c10::BFloat16, 0xff7f, 0x7f7f, 0x0080, 0x3c00, 0x7f80, 0x7fc0, 8> {};
