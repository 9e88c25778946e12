// How kernels touch memory: values of any dtype as the type they are computed in, and 16 bytes at once.
#pragma once

#include "kernels/cuda/common/math.cuh"

namespace warptape::kernels::cuda {

template <class T> inline constexpr bool kIsComplex = false;
template <class T> inline constexpr bool kIsComplex<Complex<T>> = true;

// From the stored type to the computed one and back. Floats become integers by way of int64, as on the CPU;
// of a complex number that becomes a real one the real part stays.
template <class C, class T>
WT_DEVICE C widen(T x) {
  if constexpr (kIsComplex<T> && kIsComplex<C>)
    return C(decltype(C::re)(x.re), decltype(C::re)(x.im));
  else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
    return C(float(x));
  else
    return C(x);
}
// As x86 has it, so that devices agree: what no int64 is near to, and NaN, becomes the smallest. A GPU's own
// conversion saturates.
template <class C>
WT_DEVICE int64_t to_int64(C x) {
  if constexpr (std::is_floating_point_v<C>) {
    constexpr C kEnd = C(9223372036854775808.0);
    constexpr int64_t kSmallest = -9223372036854775807ll - 1;
    return x >= -kEnd && x < kEnd ? int64_t(x) : kSmallest;
  } else {
    return int64_t(x);
  }
}
template <class T, class C>
WT_DEVICE T narrow(C x) {
  if constexpr (kIsComplex<T> && kIsComplex<C>)
    return widen<T>(x);
  else if constexpr (kIsComplex<C> && std::is_same_v<T, Bool>)
    return x != C(0);
  else if constexpr (kIsComplex<C>)
    return narrow<T>(x.re);
  else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
    return T(float(x));
  else if constexpr (std::is_same_v<T, Bool>)
    return x != C(0);
  else if constexpr (std::is_integral_v<T>)
    return T(to_int64(x));
  else
    return T(x);
}

// False of complex numbers, which have no order: no op asks for it.
template <class C>
WT_DEVICE bool less(C a, C b) {
  if constexpr (kIsComplex<C>)
    return false;
  else
    return a < b;
}

// What a kernel that computes in C reads and writes.
template <class C> struct StoredOf {
  using type = AllTypes;
};
template <class T> struct StoredOf<Complex<T>> {
  using type = Types<Complex<float>, Complex<double>, float, double, BFloat16, Half, int64_t, int32_t,
                     int16_t, int8_t, uint8_t, Bool>;
};
template <class C> using Stored = typename StoredOf<C>::type;

// One value of a dtype known only at run time. The branch is the same for the whole grid.
template <class C>
WT_DEVICE C load_as(const void* p, DType dtype) {
  C value{};
  dispatch(Stored<C>{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    value = widen<C>(*static_cast<const T*>(p));
  });
  return value;
}
template <class C>
WT_DEVICE void store_as(void* p, DType dtype, C value) {
  dispatch(Stored<C>{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    *static_cast<T*>(p) = narrow<T>(value);
  });
}
// The same on the host, for scalars that travel as kernel arguments.
template <class C>
C host_value(const void* p, DType dtype) {
  C value{};
  dispatch(Stored<C>{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if constexpr (kIsComplex<T>)
      value = widen<C>(*static_cast<const T*>(p));
    else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
      value = C(float(*static_cast<const T*>(p)));
    else
      value = C(*static_cast<const T*>(p));
  });
  return value;
}

// The same as the bytes that filling memory of `dtype` writes.
inline void pack_value(void* to, DType dtype, const void* from, DType from_dtype) {
  if (is_complex(dtype) || is_complex(from_dtype)) {
    const auto value = host_value<Complex<double>>(from, from_dtype);
    if (!is_complex(dtype)) return pack_value(to, dtype, &value.re, DType::Float64);
    dispatch(ComplexTypes{}, dtype, [&](auto t) {
      const auto packed = widen<typename decltype(t)::type>(value);
      std::memcpy(to, &packed, sizeof packed);
    });
    return;
  }
  const bool floating = is_floating(from_dtype);
  const double d = floating ? host_value<double>(from, from_dtype) : 0;
  const int64_t i = floating ? int64_t(d) : host_value<int64_t>(from, from_dtype);
  dispatch(AllTypes{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    T value;
    if constexpr (std::is_same_v<T, Bool>)
      value = floating ? d != 0 : i != 0;
    else if constexpr (std::is_integral_v<T>)
      value = T(i);
    else if constexpr (sizeof(T) == 2)
      value = T(floating ? float(d) : float(i));
    else
      value = floating ? T(d) : T(i);
    std::memcpy(to, &value, sizeof value);
  });
}

// N values that move as one access of up to 16 bytes.
template <class T, int N>
struct alignas(sizeof(T) * N <= 16 ? sizeof(T) * N : 16) Packed {
  T values[N];
  WT_DEVICE T& operator[](int i) { return values[i]; }
  WT_DEVICE const T& operator[](int i) const { return values[i]; }
};
template <class T> inline constexpr int kPackedWidth = 16 / sizeof(T);

// The host would take an address that the device faults on.
template <class P>
WT_DEVICE void check_alignment([[maybe_unused]] const void* p) {
#if defined(WARPTAPE_CUDA_EMULATED)
  if (reinterpret_cast<uintptr_t>(p) % alignof(P)) emulator::die("%p is not aligned to %zu", p, alignof(P));
#endif
}
template <int N, class T>
WT_DEVICE Packed<T, N> load_packed(const T* p) {
  check_alignment<Packed<T, N>>(p);
  return *reinterpret_cast<const Packed<T, N>*>(p);
}
// The compiler splits a store of a struct into one for each member, and one through a vector type again; only
// the instruction itself is certain. Global memory alone.
template <int N, class T>
WT_DEVICE void store_packed(T* p, const Packed<T, N>& v) {
  check_alignment<Packed<T, N>>(p);
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof v % 8 == 0) {
    uint32_t w[sizeof v / 4];
    memcpy(w, &v, sizeof v);
    const uint64_t at = __cvta_generic_to_global(p);
    if constexpr (sizeof v == 8)
      asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(w[0]), "r"(w[1]) : "memory");
    else
#pragma unroll
      for (unsigned i = 0; i < sizeof v / 16; ++i)
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at + 16 * i), "r"(w[4 * i]),
                     "r"(w[4 * i + 1]), "r"(w[4 * i + 2]), "r"(w[4 * i + 3])
                     : "memory");
    return;
  }
#endif
  *reinterpret_cast<Packed<T, N>*>(p) = v;
}
inline bool is_aligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace warptape::kernels::cuda
