// From a runtime dtype to a compile-time one: dispatch calls a generic lambda with a tag, `[&](auto t) {
// using T = typename decltype(t)::type; ... }`. A dtype outside of the list raises in the name of the
// function that asked; who has another way for it calls try_dispatch.
#pragma once

#include "kernels/complex.h"
#include "kernels/float8.h"

namespace warptape::kernels {

template <class T>
struct Tag {
  using type = T;
};

// How a truth value lies in memory: any byte but 0 is true, for files and views of other dtypes hold all of
// them. C++'s bool is undefined unless it is 0 or 1, so no memory of a tensor is read as that.
struct Bool {
  uint8_t byte;
  Bool() = default;
  WT_INLINE constexpr Bool(bool b) : byte(b) {}
  WT_INLINE constexpr operator bool() const { return byte != 0; }
};

template <class T> inline constexpr DType dtype_of = DType::Float32;
#define WT_DTYPE_OF(enumerator, type, ...) \
  template <> inline constexpr DType dtype_of<type> = DType::enumerator;
WT_DTYPES(WT_DTYPE_OF)
#undef WT_DTYPE_OF

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
template <> struct ComputeOf<Bool> {
  using type = bool;
};
template <class T> using Compute = typename ComputeOf<T>::type;

template <class... Ts>
struct Types {};
template <class... A, class... B>
Types<A..., B...> joined(Types<A...>, Types<B...>);
using FloatTypes = Types<float, double, BFloat16, Half>;
using IntTypes = Types<int64_t, int32_t, int16_t, int8_t, uint8_t>;
using AllTypes = Types<float, double, BFloat16, Half, int64_t, int32_t, int16_t, int8_t, uint8_t, Bool>;
// Moving data without looking at it needs one type per size.
using SizeTypes = Types<uint8_t, uint16_t, uint32_t, uint64_t>;
using WideUnsignedTypes = Types<uint16_t, uint32_t, uint64_t>;
#define WT_TAIL(enumerator, type, ...) , type
template <class None, class... Ts> using TypesBehind = Types<Ts...>;
using Float8Types = TypesBehind<void WT_FLOAT8_DTYPES(WT_TAIL)>;
#undef WT_TAIL
using ComplexTypes = Types<Complex<float>, Complex<double>>;
using MoveTypes = Types<uint8_t, uint16_t, uint32_t, uint64_t, Complex<double>>;  // with complex numbers

// Implemented in csrc/core: raises a DtypeError.
[[noreturn]] WT_API void unhandled_dtype(const char* kernel, DType dtype);
[[noreturn]] WT_API void unhandled_size(const char* kernel, size_t bytes);

// Device code cannot raise: there it ends the launch with an error.
#if defined(__CUDA_ARCH__)
#define WT_UNHANDLED(raise) __trap()
#else
#define WT_UNHANDLED(raise) raise
#endif

template <class... Ts, class F>
[[nodiscard]] WT_INLINE bool try_dispatch(Types<Ts...>, DType dtype, F&& f) {
  return ((dtype_of<Ts> == dtype && (f(Tag<Ts>{}), true)) || ...);
}

template <class... Ts, class F>
WT_INLINE void dispatch(Types<Ts...> types, DType dtype, F&& f,
                        [[maybe_unused]] const char* kernel = __builtin_FUNCTION()) {
  if (!try_dispatch(types, dtype, f)) WT_UNHANDLED(unhandled_dtype(kernel, dtype));
}

template <class... Ts, class F>
WT_INLINE void dispatch_size(Types<Ts...>, size_t bytes, F&& f,
                             [[maybe_unused]] const char* kernel = __builtin_FUNCTION()) {
  if (!((sizeof(Ts) == bytes && (f(Tag<Ts>{}), true)) || ...)) WT_UNHANDLED(unhandled_size(kernel, bytes));
}

#undef WT_UNHANDLED

}  // namespace warptape::kernels
