// Vectors of float, double and int64_t as wide as the instruction set has them, their masks, and loads and
// stores of full and partial vectors. The same code computes full vectors and tails, so a value does not
// depend on its position.
#pragma once

#include <type_traits>

#include "kernels/cpu/vector/intrinsics.h"
#include "kernels/types.h"

#define WT_FN WT_INLINE  // how a formula is declared; the CUDA math set defines its own
#define WT_FN_OUTLINED [[gnu::noinline, maybe_unused]] static

namespace warptape::kernels::WARPTAPE_ISA {

#if defined(__AVX512F__)
inline constexpr int kVecBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVecBytes = 32;
#else
inline constexpr int kVecBytes = 16;
#endif

template <class T> struct IntOf {
  using type = T;
};
template <> struct IntOf<float> {
  using type = int32_t;
};
template <> struct IntOf<double> {
  using type = int64_t;
};

// The compiler's vector types, aligned and not.
template <class T> struct RawOf {
  typedef T type __attribute__((vector_size(kVecBytes), may_alias));
  typedef T unaligned __attribute__((vector_size(kVecBytes), aligned(1), may_alias));
};
template <class T> using Raw = typename RawOf<T>::type;
template <class T> using IntRaw = Raw<typename IntOf<T>::type>;

template <class T>
struct Vec {
  using Scalar = T;
  static constexpr int kLanes = kVecBytes / sizeof(T);
  Raw<T> v;

  Vec() = default;
  WT_FN Vec(Raw<T> r) : v(r) {}
  // x - 0 keeps the sign of a zero, which 0 + x would not.
  template <class S>
    requires std::is_arithmetic_v<S>
  WT_FN explicit Vec(S s) : v(static_cast<T>(s) - Raw<T>{}) {}

  WT_FN static Vec load(const void* p) {
    return Vec(Raw<T>(*static_cast<const typename RawOf<T>::unaligned*>(p)));
  }
  WT_FN void store(void* p) const { *static_cast<typename RawOf<T>::unaligned*>(p) = v; }
};

using VFloat = Vec<float>;
using VDouble = Vec<double>;
using VInt = Vec<int64_t>;

template <class T> WT_FN Vec<T> operator+(Vec<T> a, Vec<T> b) { return {a.v + b.v}; }
template <class T> WT_FN Vec<T> operator-(Vec<T> a, Vec<T> b) { return {a.v - b.v}; }
template <class T> WT_FN Vec<T> operator*(Vec<T> a, Vec<T> b) { return {a.v * b.v}; }
template <class T>
  requires(T(0.5) != 0)
WT_FN Vec<T> operator/(Vec<T> a, Vec<T> b) {
  return {a.v / b.v};
}
template <class T> WT_FN Vec<T> operator-(Vec<T> a) { return {-a.v}; }
template <class T> WT_FN Vec<T>& operator+=(Vec<T>& a, Vec<T> b) { return a = a + b; }
template <class T> WT_FN Vec<T>& operator*=(Vec<T>& a, Vec<T> b) { return a = a * b; }
WT_FN VInt operator&(VInt a, VInt b) { return {a.v & b.v}; }
WT_FN VInt operator|(VInt a, VInt b) { return {a.v | b.v}; }
WT_FN VInt operator^(VInt a, VInt b) { return {a.v ^ b.v}; }
WT_FN VInt operator~(VInt a) { return {~a.v}; }
WT_FN VInt operator<<(VInt a, VInt b) { return {a.v << b.v}; }
WT_FN VInt operator>>(VInt a, VInt b) { return {a.v >> b.v}; }

template <class T> inline constexpr typename IntOf<T>::type kSignBit =
    typename IntOf<T>::type(uint64_t{1} << (sizeof(T) * 8 - 1));
template <class T> WT_FN IntRaw<T> as_int(Vec<T> a) { return (IntRaw<T>)a.v; }
template <class T> WT_FN Vec<T> from_int(IntRaw<T> i) { return {(Raw<T>)i}; }

// f applied lane by lane: for what has no vector instruction or polynomial here.
template <class T, class F>
WT_FN Vec<T> by_lane(Vec<T> a, F f) {
  for (int i = 0; i < Vec<T>::kLanes; ++i) a.v[i] = f(a.v[i]);
  return a;
}
template <class T, class F>
WT_FN Vec<T> by_lane(Vec<T> a, Vec<T> b, F f) {
  for (int i = 0; i < Vec<T>::kLanes; ++i) a.v[i] = f(a.v[i], b.v[i]);
  return a;
}

// ---- masks: bits on AVX-512, all-ones lanes below it ----
#if defined(__AVX512F__)
template <class T> struct Mask {
  static constexpr unsigned kAll = (1u << Vec<T>::kLanes) - 1;
  unsigned bits;
};
template <class T> WT_FN Mask<T> operator&(Mask<T> a, Mask<T> b) { return {a.bits & b.bits}; }
template <class T> WT_FN Mask<T> operator|(Mask<T> a, Mask<T> b) { return {a.bits | b.bits}; }
template <class T> WT_FN Mask<T> operator^(Mask<T> a, Mask<T> b) { return {a.bits ^ b.bits}; }
template <class T> WT_FN Mask<T> operator!(Mask<T> a) { return {~a.bits & Mask<T>::kAll}; }
template <class T> WT_FN unsigned to_bits(Mask<T> m) { return m.bits; }

#define WT_COMPARE(op, fp, in)                                                                        \
  WT_FN Mask<float> operator op(VFloat a, VFloat b) { return {_mm512_cmp_ps_mask(a.v, b.v, fp)}; }    \
  WT_FN Mask<double> operator op(VDouble a, VDouble b) { return {_mm512_cmp_pd_mask(a.v, b.v, fp)}; } \
  WT_FN Mask<int64_t> operator op(VInt a, VInt b) {                                                   \
    return {_mm512_cmp_epi64_mask((__m512i)a.v, (__m512i)b.v, in)};                                   \
  }
WT_COMPARE(==, _CMP_EQ_OQ, _MM_CMPINT_EQ)
WT_COMPARE(!=, _CMP_NEQ_UQ, _MM_CMPINT_NE)
WT_COMPARE(<, _CMP_LT_OQ, _MM_CMPINT_LT)
WT_COMPARE(<=, _CMP_LE_OQ, _MM_CMPINT_LE)
WT_COMPARE(>, _CMP_GT_OQ, _MM_CMPINT_NLE)
WT_COMPARE(>=, _CMP_GE_OQ, _MM_CMPINT_NLT)
#undef WT_COMPARE

WT_FN VFloat select(Mask<float> m, VFloat a, VFloat b) { return {_mm512_mask_blend_ps(m.bits, b.v, a.v)}; }
WT_FN VDouble select(Mask<double> m, VDouble a, VDouble b) {
  return {_mm512_mask_blend_pd(m.bits, b.v, a.v)};
}
WT_FN VInt select(Mask<int64_t> m, VInt a, VInt b) {
  return {(Raw<int64_t>)_mm512_mask_blend_epi64(m.bits, (__m512i)b.v, (__m512i)a.v)};
}
#else
template <class T> struct Mask {
  IntRaw<T> lanes;
};
template <class T> WT_FN Mask<T> operator&(Mask<T> a, Mask<T> b) { return {a.lanes & b.lanes}; }
template <class T> WT_FN Mask<T> operator|(Mask<T> a, Mask<T> b) { return {a.lanes | b.lanes}; }
template <class T> WT_FN Mask<T> operator^(Mask<T> a, Mask<T> b) { return {a.lanes ^ b.lanes}; }
template <class T> WT_FN Mask<T> operator!(Mask<T> a) { return {~a.lanes}; }
template <class T> WT_FN Mask<T> operator==(Vec<T> a, Vec<T> b) { return {(IntRaw<T>)(a.v == b.v)}; }
template <class T> WT_FN Mask<T> operator!=(Vec<T> a, Vec<T> b) { return {(IntRaw<T>)(a.v != b.v)}; }
template <class T> WT_FN Mask<T> operator<(Vec<T> a, Vec<T> b) { return {(IntRaw<T>)(a.v < b.v)}; }
template <class T> WT_FN Mask<T> operator<=(Vec<T> a, Vec<T> b) { return {(IntRaw<T>)(a.v <= b.v)}; }
template <class T> WT_FN Mask<T> operator>(Vec<T> a, Vec<T> b) { return {(IntRaw<T>)(a.v > b.v)}; }
template <class T> WT_FN Mask<T> operator>=(Vec<T> a, Vec<T> b) { return {(IntRaw<T>)(a.v >= b.v)}; }
#if defined(__AVX2__)
template <class T>
WT_FN Vec<T> select(Mask<T> m, Vec<T> a, Vec<T> b) {
  return {(Raw<T>)_mm256_blendv_epi8((__m256i)b.v, (__m256i)a.v, (__m256i)m.lanes)};
}
WT_FN unsigned to_bits(Mask<float> m) { return unsigned(_mm256_movemask_ps((__m256)m.lanes)); }
WT_FN unsigned to_bits(Mask<double> m) { return unsigned(_mm256_movemask_pd((__m256d)m.lanes)); }
WT_FN unsigned to_bits(Mask<int64_t> m) { return unsigned(_mm256_movemask_pd((__m256d)m.lanes)); }
#else
template <class T>
WT_FN Vec<T> select(Mask<T> m, Vec<T> a, Vec<T> b) {
  return {(Raw<T>)_mm_blendv_epi8((__m128i)b.v, (__m128i)a.v, (__m128i)m.lanes)};
}
WT_FN unsigned to_bits(Mask<float> m) { return unsigned(_mm_movemask_ps((__m128)m.lanes)); }
WT_FN unsigned to_bits(Mask<double> m) { return unsigned(_mm_movemask_pd((__m128d)m.lanes)); }
WT_FN unsigned to_bits(Mask<int64_t> m) { return unsigned(_mm_movemask_pd((__m128d)m.lanes)); }
#endif
#endif

template <class T> WT_FN bool any(Mask<T> m) { return to_bits(m) != 0; }
template <class T> WT_FN Mask<T> isnan(Vec<T> a) { return a != a; }

// The mask as bytes 0 and 1, the memory form of bool: one byte a lane.
template <class T>
WT_FN uint64_t spread_bits(unsigned bits) {
#if defined(__AVX2__)
  return _pdep_u64(bits, 0x0101010101010101ull);
#else
  return (bits * 0x00204081u) & 0x01010101u;
#endif
}

template <class T>
WT_FN void store(void* p, Mask<T> m) {
#if defined(__AVX512F__)
  if constexpr (Vec<T>::kLanes == 16)
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm_maskz_set1_epi8(__mmask16(m.bits), 1));
  else
#endif
  {
    uint64_t bytes = spread_bits<T>(to_bits(m));
    std::memcpy(p, &bytes, Vec<T>::kLanes);
  }
}
template <class T>
WT_FN void store_partial(void* p, Mask<T> m, int n) {
  unsigned bits = to_bits(m);
  for (int i = 0; i < n; ++i) static_cast<uint8_t*>(p)[i] = (bits >> i) & 1;
}

// From bytes: every value but zero is true.
template <class T>
WT_FN Mask<T> load_mask(const void* p) {
#if defined(__AVX512F__)
  if constexpr (Vec<T>::kLanes == 16) {
    __m128i b = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return {_mm_test_epi8_mask(b, b)};
  } else {
    __m128i b = _mm_loadl_epi64(static_cast<const __m128i*>(p));
    return {unsigned(_mm_test_epi8_mask(b, b)) & 0xffu};
  }
#else
  uint64_t bytes = 0;
  std::memcpy(&bytes, p, Vec<T>::kLanes);
  __m128i b = _mm_cvtsi64_si128(int64_t(bytes));
#if defined(__AVX2__)
  __m256i wide = Vec<T>::kLanes == 8 ? _mm256_cvtepu8_epi32(b) : _mm256_cvtepu8_epi64(b);
#else
  __m128i wide = Vec<T>::kLanes == 4 ? _mm_cvtepu8_epi32(b) : _mm_cvtepu8_epi64(b);
#endif
  return {(IntRaw<T>)wide != 0};
#endif
}
template <class T>
WT_FN Mask<T> load_mask_partial(const void* p, int n) {
  alignas(16) uint8_t bytes[16] = {};
  for (int i = 0; i < n; ++i) bytes[i] = static_cast<const uint8_t*>(p)[i];
  return load_mask<T>(bytes);
}

// ---- the first n lanes, 0 < n < kLanes; the other lanes are loaded as zero and not stored ----
#if defined(__AVX512F__)
WT_FN unsigned first_lanes(int n) { return (1u << n) - 1; }
template <class T>
WT_FN Vec<T> load_partial(const void* p, int n) {
  if constexpr (sizeof(T) == 4)
    return {(Raw<T>)_mm512_maskz_loadu_ps(__mmask16(first_lanes(n)), p)};
  else
    return {(Raw<T>)_mm512_maskz_loadu_pd(__mmask8(first_lanes(n)), p)};
}
template <class T>
WT_FN void store_partial(void* p, Vec<T> a, int n) {
  if constexpr (sizeof(T) == 4)
    _mm512_mask_storeu_ps(p, __mmask16(first_lanes(n)), (__m512)a.v);
  else
    _mm512_mask_storeu_pd(p, __mmask8(first_lanes(n)), (__m512d)a.v);
}
#elif defined(__AVX2__)
template <class T>
WT_FN __m256i first_lanes(int n) {
  if constexpr (sizeof(T) == 4)
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  else
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
template <class T>
WT_FN Vec<T> load_partial(const void* p, int n) {
  if constexpr (sizeof(T) == 4)
    return {(Raw<T>)_mm256_maskload_ps(static_cast<const float*>(p), first_lanes<T>(n))};
  else
    return {(Raw<T>)_mm256_maskload_pd(static_cast<const double*>(p), first_lanes<T>(n))};
}
template <class T>
WT_FN void store_partial(void* p, Vec<T> a, int n) {
  if constexpr (sizeof(T) == 4)
    _mm256_maskstore_ps(static_cast<float*>(p), first_lanes<T>(n), (__m256)a.v);
  else
    _mm256_maskstore_pd(static_cast<double*>(p), first_lanes<T>(n), (__m256d)a.v);
}
#else
template <class T>
WT_FN Vec<T> load_partial(const void* p, int n) {
  Vec<T> r(T(0));
  for (int i = 0; i < n; ++i) r.v[i] = static_cast<const T*>(p)[i];
  return r;
}
template <class T>
WT_FN void store_partial(void* p, Vec<T> a, int n) {
  for (int i = 0; i < n; ++i) static_cast<T*>(p)[i] = a.v[i];
}
#endif

// ---- pairs, as complex numbers lie in memory ----
// Lane j of what is made: lane f(j) of a, or lane f(j) - kLanes of b.
template <class T, class F>
WT_FN Vec<T> pick(Vec<T> a, Vec<T> b, F f) {
  IntRaw<T> index;
  for (int j = 0; j < Vec<T>::kLanes; ++j) index[j] = f(j);
  return {__builtin_shuffle(a.v, b.v, index)};
}

// The first n of kLanes values, 0 .. kLanes and more.
template <class T>
WT_FN Vec<T> load_some(const T* p, int n) {
  return n >= Vec<T>::kLanes ? Vec<T>::load(p) : n > 0 ? load_partial<T>(p, n) : Vec<T>(0);
}
template <class T>
WT_FN void store_some(T* p, Vec<T> v, int n) {
  if (n >= Vec<T>::kLanes)
    v.store(p);
  else if (n > 0)
    store_partial(p, v, n);
}

// n pairs.
template <class T>
WT_FN void load_pairs(const T* p, Vec<T>& re, Vec<T>& im, int n) {
  const Vec<T> a = load_some(p, 2 * n), b = load_some(p + Vec<T>::kLanes, 2 * n - Vec<T>::kLanes);
  re = pick(a, b, [](int j) { return 2 * j; });
  im = pick(a, b, [](int j) { return 2 * j + 1; });
}
template <class T>
WT_FN void store_pairs(T* p, Vec<T> re, Vec<T> im, int n) {
  constexpr int L = Vec<T>::kLanes;
  store_some(p, pick(re, im, [](int j) { return j / 2 + j % 2 * L; }), 2 * n);
  store_some(p + L, pick(re, im, [](int j) { return L / 2 + j / 2 + j % 2 * L; }), 2 * n - L);
}

// True in the first n lanes, 0 <= n <= kLanes.
template <class T> WT_FN Mask<T> mask_first(int n) {
#if defined(__AVX512F__)
  return {(1u << n) - 1};
#else
  IntRaw<T> index;
  for (int i = 0; i < Vec<T>::kLanes; ++i) index[i] = i;
  return {(IntRaw<T>)(index < typename IntOf<T>::type(n))};
#endif
}

// ---- kLanes narrow floats as a vector of float ----
WT_FN VFloat load_as_float(const float* p) { return VFloat::load(p); }
WT_FN VFloat load_as_float(const BFloat16* p) {
#if defined(__AVX512F__)
  return {(Raw<float>)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16)};
#elif defined(__AVX2__)
  return {(Raw<float>)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16)};
#else
  return {(Raw<float>)_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i*)p))};
#endif
}
#if defined(__F16C__)
WT_FN VFloat load_as_float(const Half* p) {
#if defined(__AVX512F__)
  return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))};
#else
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p))};
#endif
}
#endif
WT_FN void store_narrow(float* p, VFloat a) { a.store(p); }
// The upper half of each lane is a as BFloat16.
WT_FN Raw<int32_t> bfloat16_bits(VFloat a) {
  // To nearest even by adding just below half of the last kept bit, or exactly half if that bit is odd.
  Raw<int32_t> i = as_int(a);
  Raw<int32_t> rounded = i + 0x7fff + ((i >> 16) & 1);
  Raw<int32_t> quiet = i | 0x400000;
  return as_int(select(isnan(a), from_int<float>(quiet), from_int<float>(rounded)));
}
WT_FN void store_narrow(BFloat16* p, VFloat a) {
  const Raw<int32_t> i = bfloat16_bits(a);
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)i, 16)));
#elif defined(__AVX2__)
  __m256i w = _mm256_srli_epi32((__m256i)i, 16);
  w = _mm256_permute4x64_epi64(_mm256_packus_epi32(w, w), 0x88);
  _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(w));
#else
  __m128i w = _mm_srli_epi32((__m128i)i, 16);
  _mm_storel_epi64((__m128i*)p, _mm_packus_epi32(w, w));
#endif
}
#if defined(__F16C__)
WT_FN void store_narrow(Half* p, VFloat a) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, 0));
#else
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.v, 0));
#endif
}
#endif

// As if stored as T and loaded again.
template <class T> WT_FN VFloat rounded_to(VFloat a);
template <> WT_FN VFloat rounded_to<BFloat16>(VFloat a) {
  return from_int<float>(bfloat16_bits(a) & int32_t(0xffff0000));
}
#if defined(__AVX512F__)
template <> WT_FN VFloat rounded_to<Half>(VFloat a) { return {_mm512_cvtph_ps(_mm512_cvtps_ph(a.v, 0))}; }
#elif defined(__F16C__)
template <> WT_FN VFloat rounded_to<Half>(VFloat a) { return {_mm256_cvtph_ps(_mm256_cvtps_ph(a.v, 0))}; }
#endif

// ---- one instruction each ----
#if defined(__AVX512F__)
#define WT_PS(name, ...) _mm512_##name##_ps(__VA_ARGS__)
#define WT_PD(name, ...) _mm512_##name##_pd(__VA_ARGS__)
#define WT_ROUND_PS(a, mode) _mm512_roundscale_ps(a, mode)
#define WT_ROUND_PD(a, mode) _mm512_roundscale_pd(a, mode)
#elif defined(__AVX2__)
#define WT_PS(name, ...) _mm256_##name##_ps(__VA_ARGS__)
#define WT_PD(name, ...) _mm256_##name##_pd(__VA_ARGS__)
#define WT_ROUND_PS(a, mode) _mm256_round_ps(a, mode)
#define WT_ROUND_PD(a, mode) _mm256_round_pd(a, mode)
#else
#define WT_PS(name, ...) _mm_##name##_ps(__VA_ARGS__)
#define WT_PD(name, ...) _mm_##name##_pd(__VA_ARGS__)
#define WT_ROUND_PS(a, mode) _mm_round_ps(a, mode)
#define WT_ROUND_PD(a, mode) _mm_round_pd(a, mode)
#endif
#define WT_ROUNDING(name, mode)                                                        \
  WT_FN VFloat name(VFloat a) { return {WT_ROUND_PS(a.v, mode | _MM_FROUND_NO_EXC)}; } \
  WT_FN VDouble name(VDouble a) { return {WT_ROUND_PD(a.v, mode | _MM_FROUND_NO_EXC)}; }
WT_ROUNDING(floor, _MM_FROUND_TO_NEG_INF)
WT_ROUNDING(ceil, _MM_FROUND_TO_POS_INF)
WT_ROUNDING(trunc, _MM_FROUND_TO_ZERO)
WT_ROUNDING(round, _MM_FROUND_TO_NEAREST_INT)  // halves to even
#undef WT_ROUNDING

WT_FN VFloat sqrt(VFloat a) { return {WT_PS(sqrt, a.v)}; }
WT_FN VDouble sqrt(VDouble a) { return {WT_PD(sqrt, a.v)}; }

// a * b + c, rounded once where the machine can.
#if defined(WT_HAS_FMA)
WT_FN VFloat fma(VFloat a, VFloat b, VFloat c) { return {WT_PS(fmadd, a.v, b.v, c.v)}; }
WT_FN VDouble fma(VDouble a, VDouble b, VDouble c) { return {WT_PD(fmadd, a.v, b.v, c.v)}; }
#else
template <class T> WT_FN Vec<T> fma(Vec<T> a, Vec<T> b, Vec<T> c) { return {a.v * b.v + c.v}; }
#endif
WT_FN VInt fma(VInt a, VInt b, VInt c) { return {a.v * b.v + c.v}; }

// The instructions give b when either is a NaN; maximum and minimum give the NaN, as PyTorch does.
WT_FN VFloat max_or_b(VFloat a, VFloat b) { return {WT_PS(max, a.v, b.v)}; }
WT_FN VFloat min_or_b(VFloat a, VFloat b) { return {WT_PS(min, a.v, b.v)}; }
WT_FN VDouble max_or_b(VDouble a, VDouble b) { return {WT_PD(max, a.v, b.v)}; }
WT_FN VDouble min_or_b(VDouble a, VDouble b) { return {WT_PD(min, a.v, b.v)}; }
WT_FN VInt max_or_b(VInt a, VInt b) { return select(a > b, a, b); }
WT_FN VInt min_or_b(VInt a, VInt b) { return select(a < b, a, b); }
template <class T> WT_FN Vec<T> maximum(Vec<T> a, Vec<T> b) { return select(isnan(a), a, max_or_b(a, b)); }
template <class T> WT_FN Vec<T> minimum(Vec<T> a, Vec<T> b) { return select(isnan(a), a, min_or_b(a, b)); }
WT_FN VInt maximum(VInt a, VInt b) { return max_or_b(a, b); }
WT_FN VInt minimum(VInt a, VInt b) { return min_or_b(a, b); }

template <class T> WT_FN Vec<T> abs(Vec<T> a) { return from_int<T>(as_int(a) & ~kSignBit<T>); }
WT_FN VInt abs(VInt a) { return maximum(a, -a); }
template <class T>
WT_FN Vec<T> copysign(Vec<T> a, Vec<T> sign) {
  return from_int<T>((as_int(a) & ~kSignBit<T>) | (as_int(sign) & kSignBit<T>));
}

// ---- what the math sets share ----
inline constexpr float kInf = __builtin_inff();

// c[0] + c[1] x + ... by Horner's rule.
template <class V, class... C>
WT_FN V polynomial(V x, V last) {
  (void)x;
  return last;
}
template <class V, class... C>
WT_FN V polynomial(V x, V c0, C... rest) {
  return fma(polynomial(x, rest...), x, c0);
}

template <class T> WT_FN Mask<T> is_negative_bit(Vec<T> a) {
  return from_int<T>((as_int(a) & kSignBit<T>) | 1) < Vec<T>(0);
}
template <class T> WT_FN Mask<T> isinf(Vec<T> a) { return abs(a) == Vec<T>(kInf); }
template <class T> WT_FN Mask<T> isfinite(Vec<T> a) { return abs(a) < Vec<T>(kInf); }

}  // namespace warptape::kernels::WARPTAPE_ISA
