#include "kernels/cpu/view/convert.h"

#include <utility>

#include "kernels/cpu/vector/vec.h"
#include "kernels/dispatch.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

// Half by instruction or by integer arithmetic, so that no helper of the compiler's runtime library is
// needed.
#if defined(__F16C__)
WT_FN float half_to_float(uint16_t h) { return _cvtsh_ss(h); }
WT_FN uint16_t float_to_half(float f) { return _cvtss_sh(f, 0); }
#else
WT_FN float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16;
  const uint32_t rest = uint32_t(h & 0x7fff) << 13;
  // The exponent is rebased by a product, which also makes subnormals right; all ones means infinite or NaN.
  float f;
  std::memcpy(&f, &rest, 4);
  f *= 0x1p112f;
  uint32_t u;
  std::memcpy(&u, &f, 4);
  if ((h & 0x7c00) == 0x7c00) u = rest | 0x7f800000u;
  u |= sign;
  std::memcpy(&f, &u, 4);
  return f;
}
WT_FN uint16_t float_to_half(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  const uint16_t sign = uint16_t((u >> 16) & 0x8000);
  u &= 0x7fffffff;
  if (u > 0x7f800000) return sign | 0x7e00 | uint16_t((u >> 13) & 0x3ff);
  if (u >= 0x477ff000) return sign | 0x7c00;  // rounds to infinity
  if (u < 0x38800000) {
    // Subnormal: adding 1/2 leaves the rounded result in the low bits.
    float a;
    std::memcpy(&a, &u, 4);
    a += 0.5f;
    std::memcpy(&u, &a, 4);
    return sign | uint16_t(u - 0x3f000000);
  }
  return sign | uint16_t((u + 0xfff + ((u >> 13) & 1) - 0x38000000) >> 13);
}
#endif

template <class T> inline constexpr bool kIsComplex = false;
template <class T> inline constexpr bool kIsComplex<Complex<T>> = true;

template <class To, class From>
WT_FN To cast(From x) {
  if constexpr (kIsComplex<To> && kIsComplex<From>) {
    return {static_cast<decltype(To::re)>(x.re), static_cast<decltype(To::re)>(x.im)};
  } else if constexpr (std::is_same_v<From, Bool> && !std::is_same_v<To, Bool>) {
    return cast<To>(uint8_t(bool(x)));
  } else if constexpr (kIsComplex<To>) {
    return {cast<decltype(To::re)>(x), 0};
  } else if constexpr (kIsComplex<From> && std::is_same_v<To, Bool>) {
    return x.re != 0 || x.im != 0;
  } else if constexpr (kIsComplex<From>) {
    return cast<To>(x.re);
  } else if constexpr (std::is_same_v<From, Half>) {
    return cast<To>(half_to_float(x.bits));
  } else if constexpr (std::is_same_v<From, BFloat16>) {
    return cast<To>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, Half>) {
    To r;
    r.bits = float_to_half(static_cast<float>(x));
    return r;
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return To(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, Bool>) {
    return x != From(0);
  } else if constexpr (std::is_floating_point_v<From> && std::is_unsigned_v<To> && sizeof(To) >= 4) {
    return x < From(0x1p63) ? static_cast<To>(static_cast<int64_t>(x))
                            : static_cast<To>(static_cast<uint64_t>(x));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To> && sizeof(To) < 4) {
    return static_cast<To>(
        static_cast<int32_t>(x));  // narrow integers wrap, and negative ones must not be undefined
  } else {
    return static_cast<To>(x);
  }
}

template <class From, class To>
void convert(int64_t n, void* to, const void* from) {
  To* __restrict t = static_cast<To*>(to);
  const From* __restrict f = static_cast<const From*>(from);
  for (int64_t i = 0; i < n; ++i) t[i] = cast<To>(f[i]);
}

template <size_t kSize>
void move(int64_t n, void* to, const void* from) {
  std::memcpy(to, from, size_t(n) * kSize);
}

#if defined(__F16C__)
#if defined(__AVX512F__)
constexpr int kBlock = 16;
WT_FN void widen(float* to, const uint16_t* from) {
  _mm512_storeu_ps(to, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}
WT_FN void narrow(uint16_t* to, const float* from) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(_mm512_loadu_ps(from), 0));
}
#else
constexpr int kBlock = 8;
WT_FN void widen(float* to, const uint16_t* from) {
  _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
WT_FN void narrow(uint16_t* to, const float* from) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(_mm256_loadu_ps(from), 0));
}
#endif
// The compiler does not vectorise its half type.
template <>
void convert<Half, float>(int64_t n, void* to, const void* from) {
  float* t = static_cast<float*>(to);
  const uint16_t* f = static_cast<const uint16_t*>(from);
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) widen(t + i, f + i);
  for (; i < n; ++i) t[i] = half_to_float(f[i]);
}
template <>
void convert<float, Half>(int64_t n, void* to, const void* from) {
  uint16_t* t = static_cast<uint16_t*>(to);
  const float* f = static_cast<const float*>(from);
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) narrow(t + i, f + i);
  for (; i < n; ++i) t[i] = float_to_half(f[i]);
}
#endif

// Rows: from; columns: to; in the order of DType.
template <class From>
struct Row {
  ConvertFn* to[kNumDTypes];
};
template <class From>
constexpr Row<From> row() {
  return {{&convert<From, Bool>, &convert<From, uint8_t>, &convert<From, int8_t>, &convert<From, int16_t>,
           &convert<From, int32_t>, &convert<From, int64_t>, &convert<From, Half>, &convert<From, BFloat16>,
           &convert<From, float>, &convert<From, double>, &convert<From, Complex<float>>,
           &convert<From, Complex<double>>, &convert<From, uint16_t>, &convert<From, uint32_t>,
           &convert<From, uint64_t>}};
}
template <class From> constexpr Row<From> kRow = row<From>();

constexpr ConvertFn* const* kTable[kNumDTypes] = {
    kRow<Bool>.to,     kRow<uint8_t>.to,  kRow<int8_t>.to,         kRow<int16_t>.to,
    kRow<int32_t>.to,  kRow<int64_t>.to,  kRow<Half>.to,           kRow<BFloat16>.to,
    kRow<float>.to,    kRow<double>.to,   kRow<Complex<float>>.to, kRow<Complex<double>>.to,
    kRow<uint16_t>.to, kRow<uint32_t>.to, kRow<uint64_t>.to};

// Floats of eight bits go through float, a piece at a time.
constexpr int64_t kPiece = 256;
struct Pairs {
  ConvertFn* from[kNumDTypes];
  ConvertFn* to[kNumDTypes];
};
template <class T, int kTo>
void from_float8(int64_t n, void* to, const void* from) {
  float middle[kPiece];
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t m = n - i < kPiece ? n - i : kPiece;
    for (int64_t k = 0; k < m; ++k) middle[k] = static_cast<float>(static_cast<const T*>(from)[i + k]);
    constexpr DType wanted = static_cast<DType>(kTo);
    converter(DType::Float32, wanted)(m, static_cast<char*>(to) + i * int64_t(itemsize(wanted)), middle);
  }
}
template <class T, int kFrom>
void to_float8(int64_t n, void* to, const void* from) {
  float middle[kPiece];
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t m = n - i < kPiece ? n - i : kPiece;
    constexpr DType given = static_cast<DType>(kFrom);
    converter(given, DType::Float32)(m, middle,
                                     static_cast<const char*>(from) + i * int64_t(itemsize(given)));
    for (int64_t k = 0; k < m; ++k) static_cast<T*>(to)[i + k] = T(middle[k]);
  }
}
template <class T>
ConvertFn* float8_converter(bool reads, DType other) {
  constexpr auto make = []<int... k>(std::integer_sequence<int, k...>) {
    return Pairs{{&from_float8<T, k>...}, {&to_float8<T, k>...}};
  };
  static constexpr Pairs pairs = make(std::make_integer_sequence<int, kNumDTypes>{});
  return (reads ? pairs.from : pairs.to)[static_cast<int>(other)];
}

template <class T>
WT_FN void gather_as(int64_t n, void* to, const char* from, int64_t stride) {
  T* t = static_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) std::memcpy(t + i, from + i * stride, sizeof(T));
}
template <class T>
WT_FN void scatter_as(int64_t n, char* to, int64_t stride, const void* from) {
  const T* f = static_cast<const T*>(from);
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * stride, f + i, sizeof(T));
}

}  // namespace

ConvertFn* converter(DType from, DType to) {
  if (from == to) {
    const size_t size = itemsize(from);
    return size == 1 ? move<1> : size == 2 ? move<2> : size == 4 ? move<4> : size == 8 ? move<8> : move<16>;
  }
  ConvertFn* found = nullptr;
  const bool reads = is_float8(from);
  if (reads || is_float8(to)) {
    dispatch(Float8Types{}, reads ? from : to, [&](auto tag) {
      found = float8_converter<typename decltype(tag)::type>(reads, reads ? to : from);
    });
    return found;
  }
  return kTable[static_cast<int>(from)][static_cast<int>(to)];
}

void gather(int64_t n, void* to, const char* from, int64_t stride, size_t itemsize) {
  if (stride == int64_t(itemsize)) {
    std::memcpy(to, from, size_t(n) * itemsize);
    return;
  }
  dispatch_size(MoveTypes{}, itemsize, [&](auto tag) {
    using T = typename decltype(tag)::type;
    gather_as<T>(n, to, from, stride);
  });
}

void gather_rows(int64_t rows, int64_t n, void* to, const char* from, int64_t stride, int64_t row_stride,
                 size_t itemsize) {
  dispatch_size(MoveTypes{}, itemsize, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* t = static_cast<T*>(to);
    for (int64_t r = 0; r < rows; ++r, t += n, from += row_stride) {
      if (stride == 0) {
        T value;
        std::memcpy(&value, from, sizeof(T));
        for (int64_t i = 0; i < n; ++i) t[i] = value;
      } else if (stride == int64_t(sizeof(T))) {
        std::memcpy(t, from, size_t(n) * sizeof(T));
      } else {
        gather_as<T>(n, t, from, stride);
      }
    }
  });
}

void scatter_rows(int64_t rows, int64_t n, char* to, int64_t stride, int64_t row_stride, const void* from,
                  size_t itemsize) {
  dispatch_size(MoveTypes{}, itemsize, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* f = static_cast<const T*>(from);
    for (int64_t r = 0; r < rows; ++r, f += n, to += row_stride) {
      if (stride == int64_t(sizeof(T)))
        std::memcpy(to, f, size_t(n) * sizeof(T));
      else
        scatter_as<T>(n, to, stride, f);
    }
  });
}

}  // namespace warptape::kernels::WARPTAPE_ISA
