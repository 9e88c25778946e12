// What the headers that kernels share use of the standard library, for NVRTC, which has none. Read as text:
// see chain_compile.cpp.
#pragma once

using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;
#define INT32_MAX 2147483647
#define __builtin_memcpy(to, from, bytes) memcpy(to, from, bytes)
#define M_PI 3.14159265358979323846
#define __builtin_inf() __builtin_bit_cast(double, 0x7ff0000000000000ull)
#define __builtin_nan(text) __builtin_bit_cast(double, 0x7ff8000000000000ull)

namespace std {

using ::memcpy;
using ::size_t;

template <class A, class B> inline constexpr bool is_same_v = false;
template <class A> inline constexpr bool is_same_v<A, A> = true;
template <class T> inline constexpr bool is_floating_point_v = is_same_v<T, float> || is_same_v<T, double>;
template <class T> inline constexpr bool is_integral_v =
    is_same_v<T, bool> || is_same_v<T, signed char> || is_same_v<T, unsigned char> || is_same_v<T, short> ||
    is_same_v<T, unsigned short> || is_same_v<T, int> || is_same_v<T, unsigned> || is_same_v<T, long> ||
    is_same_v<T, unsigned long> || is_same_v<T, long long> || is_same_v<T, unsigned long long>;

}  // namespace std
