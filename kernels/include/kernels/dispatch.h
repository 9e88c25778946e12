// From a runtime dtype to a compile-time one: dispatch calls a generic lambda with a tag, `[&](auto t) {
// using T = typename decltype(t)::type; ... }`. A dtype outside the list returns false and the caller reports
// it.
#pragma once

#include "kernels/complex.h"

namespace warptape::kernels {

template <class T>
struct Tag {
  using type = T;
};

template <class T> inline constexpr DType dtype_of = DType::Float32;
template <> inline constexpr DType dtype_of<bool> = DType::Bool;
template <> inline constexpr DType dtype_of<uint8_t> = DType::UInt8;
template <> inline constexpr DType dtype_of<int8_t> = DType::Int8;
template <> inline constexpr DType dtype_of<int16_t> = DType::Int16;
template <> inline constexpr DType dtype_of<int32_t> = DType::Int32;
template <> inline constexpr DType dtype_of<int64_t> = DType::Int64;
template <> inline constexpr DType dtype_of<Half> = DType::Float16;
template <> inline constexpr DType dtype_of<BFloat16> = DType::BFloat16;
template <> inline constexpr DType dtype_of<float> = DType::Float32;
template <> inline constexpr DType dtype_of<double> = DType::Float64;
template <> inline constexpr DType dtype_of<Complex<float>> = DType::Complex64;
template <> inline constexpr DType dtype_of<Complex<double>> = DType::Complex128;

// The type in which values of T are computed.
template <class T> struct ComputeOf {
  using type = T;
};
template <> struct ComputeOf<Half> {
  using type = float;
};
template <> struct ComputeOf<BFloat16> {
  using type = float;
};
template <class T> using Compute = typename ComputeOf<T>::type;

template <class... Ts>
struct Types {};
using FloatTypes = Types<float, double, BFloat16, Half>;
using IntTypes = Types<int64_t, int32_t, int16_t, int8_t, uint8_t>;
using AllTypes = Types<float, double, BFloat16, Half, int64_t, int32_t, int16_t, int8_t, uint8_t, bool>;
// Moving data without looking at it needs one type per size.
using SizeTypes = Types<uint8_t, uint16_t, uint32_t, uint64_t>;
using ComplexTypes = Types<Complex<float>, Complex<double>>;
using MoveTypes = Types<uint8_t, uint16_t, uint32_t, uint64_t, Complex<double>>;  // with complex numbers

template <class... Ts, class F>
WT_INLINE bool dispatch(Types<Ts...>, DType dtype, F&& f) {
  return ((dtype_of<Ts> == dtype && (f(Tag<Ts>{}), true)) || ...);
}

template <class... Ts, class F>
WT_INLINE bool dispatch_size(Types<Ts...>, size_t bytes, F&& f) {
  return ((sizeof(Ts) == bytes && (f(Tag<Ts>{}), true)) || ...);
}

}  // namespace warptape::kernels
