// The floats of eight bits, by their conversions from and to float: to the nearest, ties to even. The formats
// are those of the OCP's 8-bit floating point specification (e4m3fn, e5m2), of Graphcore and AMD's proposal
// (fnuz: one zero, one NaN, no infinity) and of OCP's microscaling formats (e8m0fnu: a power of two).
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

WT_INLINE float float_of_bits(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
WT_INLINE uint32_t bits_of_float(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}

// kInfinity: all ones in the exponent are infinity and NaNs, as in IEEE formats; what is too large for e4m3fn
// becomes its largest number.
template <int kMantissa, int kBias, bool kInfinity, bool kFnuz>
struct Float8 {
  static constexpr int kDrop = 23 - kMantissa;
  static constexpr uint32_t kLargest = kFnuz ? 0x7f : kInfinity ? 0x7b : 0x7e;
  static constexpr double kMax =
      (1 + double(kLargest % (1 << kMantissa)) / (1 << kMantissa)) * (1 << ((kLargest >> kMantissa) - kBias));
  static constexpr uint32_t kTooLarge = kFnuz ? 0x80 : kInfinity ? 0x7c : 0x7e;

  uint8_t bits;
  Float8() = default;
  WT_INLINE explicit Float8(float f) {
    const uint32_t u = bits_of_float(f), magnitude = u & 0x7fffffffu, sign = (u >> 24) & 0x80;
    uint32_t code;
    if (magnitude > 0x7f800000u) {
      code = kFnuz ? 0x80 : 0x7f;
    } else if (magnitude >= uint32_t(128 - kBias) << 23) {
      const uint32_t rounded = magnitude + (1u << (kDrop - 1)) - 1 + ((magnitude >> kDrop) & 1);
      code = (rounded >> kDrop) - (uint32_t(127 - kBias) << kMantissa);
      if (code > kLargest) code = kTooLarge;
    } else {
      // Subnormal: added to 2^23 of its steps, the rounded result is in the low bits.
      const uint32_t base = uint32_t(128 - kBias + kDrop) << 23;
      code = bits_of_float(float_of_bits(magnitude) + float_of_bits(base)) - base;
    }
    const bool keeps_sign = !kFnuz || (code != 0 && code != 0x80);
    bits = uint8_t(keeps_sign ? code | sign : code);
  }
  WT_INLINE explicit operator float() const {
    const uint32_t sign = uint32_t(bits & 0x80) << 24, code = bits & 0x7f;
    const uint32_t exponent = code >> kMantissa, mantissa = code & ((1u << kMantissa) - 1);
    if (kFnuz ? bits == 0x80 : code > (kInfinity ? 0x7c : 0x7e)) return float_of_bits(sign | 0x7fc00000u);
    if (kInfinity && code == 0x7c) return float_of_bits(sign | 0x7f800000u);
    if (exponent == 0)
      return float_of_bits(
          sign | bits_of_float(float(mantissa) * float_of_bits(uint32_t(128 - kBias - kMantissa) << 23)));
    return float_of_bits(sign | (exponent + 127 - kBias) << 23 | mantissa << kDrop);
  }
};
using Float8E4M3FN = Float8<3, 7, false, false>;
using Float8E5M2 = Float8<2, 15, true, false>;
using Float8E4M3FNUZ = Float8<3, 8, false, true>;
using Float8E5M2FNUZ = Float8<2, 16, false, true>;

// A power of two from 2^-127, the sign is lost; ties go up, but for that below the smallest normal float.
struct Float8E8M0FNU {
  static constexpr double kMax = 0x1p127;
  uint8_t bits;
  Float8E8M0FNU() = default;
  WT_INLINE explicit Float8E8M0FNU(float f) {
    const uint32_t u = bits_of_float(f), exponent = (u >> 23) & 0xff, rest = u & 0x7fffffu;
    const bool up = exponent != 0xff && (rest > 0x400000u || (rest == 0x400000u && exponent > 0));
    bits = uint8_t(exponent + up);
  }
  WT_INLINE explicit operator float() const {
    if (bits == 0xff) return float_of_bits(0x7fc00000u);
    return float_of_bits(bits ? uint32_t(bits) << 23 : 0x400000u);
  }
};

}  // namespace warptape::kernels
