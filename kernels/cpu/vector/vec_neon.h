// The operations of 128 bits that the kernels' narrowest path calls, under the names that they have on
// x86-64, for aarch64: by the compiler's vectors where those say it, else by NEON. One path then serves
// SSE4.2 and NEON.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#define WT_NEON [[gnu::always_inline, maybe_unused]] static inline

typedef float __m128 __attribute__((vector_size(16), may_alias));
typedef double __m128d __attribute__((vector_size(16), may_alias));
typedef long long __m128i __attribute__((vector_size(16), may_alias));

// ---- memory ----
template <class V>
WT_NEON V neon_load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
WT_NEON __m128 _mm_loadu_ps(const float* p) { return neon_load<__m128>(p); }
WT_NEON __m128i _mm_loadu_si128(const __m128i* p) { return neon_load<__m128i>(p); }
WT_NEON __m128i _mm_loadl_epi64(const __m128i* p) { return __m128i{neon_load<long long>(p), 0}; }
WT_NEON __m128i _mm_loadu_si32(const void* p) { return (__m128i)int32x4_t{neon_load<int32_t>(p), 0, 0, 0}; }
WT_NEON __m128i _mm_cvtsi64_si128(int64_t x) { return __m128i{x, 0}; }
WT_NEON __m128i _mm_setzero_si128() { return __m128i{}; }
WT_NEON __m128 _mm_setzero_ps() { return __m128{}; }
WT_NEON void _mm_storeu_ps(float* p, __m128 v) { std::memcpy(p, &v, sizeof v); }
WT_NEON void _mm_storeu_si128(__m128i* p, __m128i v) { std::memcpy(p, &v, sizeof v); }
WT_NEON void _mm_storel_epi64(__m128i* p, __m128i v) { std::memcpy(p, &v, 8); }

// ---- order of lanes ----
WT_NEON __m128i _mm_unpacklo_epi16(__m128i a, __m128i b) {
  return (__m128i)vzip1q_s16((int16x8_t)a, (int16x8_t)b);
}
WT_NEON __m128i _mm_unpacklo_epi64(__m128i a, __m128i b) { return __m128i{a[0], b[0]}; }
WT_NEON __m128i _mm_unpackhi_epi64(__m128i a, __m128i b) { return __m128i{a[1], b[1]}; }
WT_NEON void neon_transpose(__m128& a, __m128& b, __m128& c, __m128& d) {
  const float32x4_t ac0 = vzip1q_f32((float32x4_t)a, (float32x4_t)c);
  const float32x4_t ac1 = vzip2q_f32((float32x4_t)a, (float32x4_t)c);
  const float32x4_t bd0 = vzip1q_f32((float32x4_t)b, (float32x4_t)d);
  const float32x4_t bd1 = vzip2q_f32((float32x4_t)b, (float32x4_t)d);
  a = (__m128)vzip1q_f32(ac0, bd0), b = (__m128)vzip2q_f32(ac0, bd0);
  c = (__m128)vzip1q_f32(ac1, bd1), d = (__m128)vzip2q_f32(ac1, bd1);
}
#define _MM_TRANSPOSE4_PS(a, b, c, d) neon_transpose(a, b, c, d)
WT_NEON __m128i _mm_shuffle_epi8(__m128i table, __m128i index) {  // an index is below 16 here
  return (__m128i)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)index);
}

// ---- masks: the sign bits ----
WT_NEON __m128i _mm_blendv_epi8(__m128i no, __m128i yes, __m128i mask) {  // all lanes' bits are alike here
  return (mask & yes) | (~mask & no);
}
WT_NEON __m128 _mm_cmplt_ps(__m128 a, __m128 b) { return (__m128)(a < b); }
WT_NEON int _mm_movemask_ps(__m128 m) {
  const uint32x4_t place = {0, 1, 2, 3};
  return int(vaddvq_u32(vshlq_u32((uint32x4_t)m >> 31, (int32x4_t)place)));
}
WT_NEON int _mm_movemask_pd(__m128d m) {
  const uint64x2_t bits = (uint64x2_t)m >> 63;
  return int(bits[0] | bits[1] << 1);
}

// ---- widths ----
WT_NEON __m128i _mm_cvtepu8_epi32(__m128i v) {
  return (__m128i)vmovl_u16(vget_low_u16(vmovl_u8(vget_low_u8((uint8x16_t)v))));
}
WT_NEON __m128i _mm_cvtepi8_epi32(__m128i v) {
  return (__m128i)vmovl_s16(vget_low_s16(vmovl_s8(vget_low_s8((int8x16_t)v))));
}
WT_NEON __m128i _mm_cvtepu8_epi64(__m128i v) {
  return (__m128i)vmovl_u32(vget_low_u32((uint32x4_t)_mm_cvtepu8_epi32(v)));
}
WT_NEON __m128i _mm_packus_epi32(__m128i a, __m128i b) {
  return (__m128i)vcombine_u16(vqmovun_s32((int32x4_t)a), vqmovun_s32((int32x4_t)b));
}
WT_NEON __m128 _mm_cvtepi32_ps(__m128i v) { return (__m128)vcvtq_f32_s32((int32x4_t)v); }
WT_NEON __m128i _mm_cvtps_epi32(__m128 v) { return (__m128i)vcvtnq_s32_f32((float32x4_t)v); }

// ---- integers ----
WT_NEON __m128i _mm_srli_epi32(__m128i v, int n) { return (__m128i)((uint32x4_t)v >> n); }
WT_NEON __m128i _mm_mul_epu32(__m128i a, __m128i b) {
  return (__m128i)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
}
WT_NEON __m128i _mm_madd_epi16(__m128i a, __m128i b) {
  const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
  return (__m128i)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
}

// ---- floats ----
enum {
  _MM_FROUND_TO_NEAREST_INT,
  _MM_FROUND_TO_NEG_INF,
  _MM_FROUND_TO_POS_INF,
  _MM_FROUND_TO_ZERO,
  _MM_FROUND_NO_EXC = 8
};
#define WT_NEON_FLOATS(V, N, ps, f32)                                                 \
  WT_NEON V _mm_round_##ps(V v, int mode) {                                           \
    const N x = (N)v;                                                                 \
    switch (mode & 3) {                                                               \
      case _MM_FROUND_TO_NEG_INF:                                                     \
        return (V)vrndmq_##f32(x);                                                    \
      case _MM_FROUND_TO_POS_INF:                                                     \
        return (V)vrndpq_##f32(x);                                                    \
      case _MM_FROUND_TO_ZERO:                                                        \
        return (V)vrndq_##f32(x);                                                     \
      default:                                                                        \
        return (V)vrndnq_##f32(x);                                                    \
    }                                                                                 \
  }                                                                                   \
  WT_NEON V _mm_sqrt_##ps(V v) { return (V)vsqrtq_##f32((N)v); }                      \
  WT_NEON V _mm_max_##ps(V a, V b) { return a > b ? a : b; } /* b where one is NaN */ \
  WT_NEON V _mm_min_##ps(V a, V b) { return a < b ? a : b; }                          \
  WT_NEON V _mm_fmadd_##ps(V a, V b, V c) { return (V)vfmaq_##f32((N)c, (N)a, (N)b); }
WT_NEON_FLOATS(__m128, float32x4_t, ps, f32)
WT_NEON_FLOATS(__m128d, float64x2_t, pd, f64)
#undef WT_NEON_FLOATS
#undef WT_NEON
