// Packing of matrix operands into panels: element (i, p) of a panel of `width` rows goes to dst[p * width +
// i], so that the product's innermost kernel reads one step of k after the other.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/vector/intrinsics.h"
#include "kernels/dispatch.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/types.h"

namespace warptape::kernels::WARPTAPE_ISA {

#if defined(__AVX512F__)
inline constexpr int kGemmVecBytes = 64;
inline constexpr int kGemmRows = 14;  // 14 x 2 sums, 2 of B, 1 or 2 of A: 32 registers
#elif defined(__AVX2__)
inline constexpr int kGemmVecBytes = 32;
inline constexpr int kGemmRows = 6;
#else
inline constexpr int kGemmVecBytes = 16;
inline constexpr int kGemmRows = 6;
#endif

template <class T>
struct GemmVecOf {
  typedef T type __attribute__((vector_size(kGemmVecBytes), may_alias));
  typedef T unaligned __attribute__((vector_size(kGemmVecBytes), aligned(1), may_alias));
};
template <class T> using GemmVec = typename GemmVecOf<T>::type;

template <class T> inline constexpr bool GemmIsPair = std::is_same_v<T, uint32_t>;

template <class T>
WT_INLINE GemmVec<T> gemm_load(const T* p) {
  return *reinterpret_cast<const typename GemmVecOf<T>::unaligned*>(p);
}
template <class T>
WT_INLINE void gemm_store(T* p, GemmVec<T> v) {
  *reinterpret_cast<typename GemmVecOf<T>::unaligned*>(p) = v;
}
template <class T>
WT_INLINE GemmVec<T> gemm_splat(T x) {
  return x - GemmVec<T>{};
}

// The first n lanes; the others are 0 (load) or kept (store).
template <class T>
WT_INLINE GemmVec<T> gemm_load_part(const T* p, int64_t n) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return (GemmVec<T>)_mm512_maskz_loadu_epi32(__mmask16((1u << n) - 1), p);
  if constexpr (sizeof(T) == 8) return (GemmVec<T>)_mm512_maskz_loadu_epi64(__mmask8((1u << n) - 1), p);
#else
  GemmVec<T> v = {};
  for (int64_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
#endif
}
template <class T>
WT_INLINE void gemm_store_part(T* p, GemmVec<T> v, int64_t n) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return _mm512_mask_storeu_epi32(p, __mmask16((1u << n) - 1), (__m512i)v);
  if constexpr (sizeof(T) == 8) return _mm512_mask_storeu_epi64(p, __mmask8((1u << n) - 1), (__m512i)v);
#else
  for (int64_t i = 0; i < n; ++i) p[i] = v[i];
#endif
}

// The same where n is mostly all lanes.
template <class T>
WT_INLINE GemmVec<T> gemm_load_n(const T* p, int64_t n) {
  if (kGemmVecBytes < 64 && n == kGemmVecBytes / int64_t(sizeof(T))) return gemm_load(p);
  return gemm_load_part(p, n);
}
template <class T>
WT_INLINE void gemm_store_n(T* p, GemmVec<T> v, int64_t n) {
  if (kGemmVecBytes < 64 && n == kGemmVecBytes / int64_t(sizeof(T))) return gemm_store(p, v);
  gemm_store_part(p, v, n);
}

// n values of 16 bits, widened to 32.
WT_INLINE GemmVec<uint32_t> gemm_widen_part(const void* p, int64_t n) {
#if defined(__AVX512F__)
  return (GemmVec<uint32_t>)_mm512_maskz_cvtepu16_epi32(
      0xffff, _mm256_maskz_loadu_epi16(__mmask16((1u << n) - 1), p));
#else
  GemmVec<uint32_t> v = {};
  for (int64_t i = 0; i < n; ++i) v[i] = static_cast<const uint16_t*>(p)[i];
  return v;
#endif
}

// n contiguous values of S as lanes of A; n is at most the lanes of a vector.
template <class A, class S>
WT_INLINE GemmVec<A> gemm_load_as(const S* p, int64_t n) {
  if constexpr (std::is_same_v<A, S>) {
    return gemm_load_part(p, n);
  } else if constexpr (std::is_integral_v<A>) {
    GemmVec<A> v = {};
    for (int64_t i = 0; i < n; ++i) v[i] = p[i];
    return v;
  } else if constexpr (std::is_same_v<S, BFloat16>) {
    return (GemmVec<float>)(gemm_widen_part(p, n) << 16);
  } else {
#if defined(__AVX512F__)
    return (GemmVec<float>)_mm512_maskz_cvtph_ps(0xffff,
                                                 _mm256_maskz_loadu_epi16(__mmask16((1u << n) - 1), p));
#else
    GemmVec<float> v = {};
    for (int64_t i = 0; i < n; ++i) v[i] = float(p[i]);
    return v;
#endif
  }
}

template <int D, bool High, class T, int... I>
WT_INLINE GemmVec<T> gemm_shuffle(GemmVec<T> a, GemmVec<T> b, std::integer_sequence<int, I...>) {
  using Index = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  constexpr int L = sizeof...(I);
  return __builtin_shuffle(a, b, GemmVec<Index>{(I & D ? L + I - (High ? 0 : D) : I + (High ? D : 0))...});
}
// Exchanges the off-diagonal blocks of D x D within all blocks of 2 D x 2 D.
template <int D, class T, int L>
WT_INLINE void gemm_transpose_blocks(GemmVec<T> (&r)[L]) {
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) {
    if (i & D) continue;
    GemmVec<T> a = r[i], b = r[i + D];
    r[i] = gemm_shuffle<D, false, T>(a, b, std::make_integer_sequence<int, L>{});
    r[i + D] = gemm_shuffle<D, true, T>(a, b, std::make_integer_sequence<int, L>{});
  }
}
template <class T, int L>
WT_INLINE void gemm_transpose(GemmVec<T> (&r)[L]) {
  gemm_transpose_blocks<1, T>(r);
  if constexpr (L > 2) gemm_transpose_blocks<2, T>(r);
  if constexpr (L > 4) gemm_transpose_blocks<4, T>(r);
  if constexpr (L > 8) gemm_transpose_blocks<8, T>(r);
}

// How values of S become elements of a panel.
template <class S, class E>
struct GemmPacker {
  static constexpr int kPack = GemmIsPair<E> ? 2 : 1;
  static constexpr int kLanes = kGemmVecBytes / sizeof(E);
  static constexpr int kAhead = 16;  // steps that are taken before the next panel, and are fetched early
  E* dst;
  int64_t width;  // rows of the panel in dst
  const S* src;
  int64_t is, ks;  // strides along the panel and along k
  int64_t rows;    // rows there are, at least 1; the others get any values
  int64_t k;       // values of k there are

  WT_INLINE void pack() const {
    if (is == 1)
      along_rows();
    else if (ks == 1)
      along_k();
    else
      one_by_one();
  }

  WT_INLINE void along_rows() const {
    for (int64_t p = 0; p * kPack < k; ++p) step_along_rows(p);
  }

  // Step p of a panel whose rows are contiguous in src.
  WT_INLINE void step_along_rows(int64_t p) const {
    for (int64_t i = 0; i < width; i += kLanes) {
      const S* s = src + p * kPack * ks + i;
      int64_t n = rows - i < 0 ? 0 : rows - i < kLanes ? rows - i : kLanes;
      GemmVec<E> v;
      for (int t = 0; t < kPack; ++t) __builtin_prefetch(s + (kAhead * kPack + t) * ks);
      if constexpr (kPack == 2) {
        v = gemm_widen_part(s, n);
        if (2 * p + 1 < k) v |= gemm_widen_part(s + ks, n) << 16;
      } else {
        v = gemm_load_as<E>(s, n);
      }
      put(p, i, v);
    }
  }

  WT_INLINE void along_k() const {
    for (int64_t i = 0; i < width; i += kLanes) {
      const S* row[kLanes];  // rows that are missing repeat the last one: nobody looks at their products
      for (int r = 0; r < kLanes; ++r) row[r] = src + (i + r < rows ? i + r : rows - 1) * is;
      int64_t p = 0;
      for (; (p + kLanes) * kPack <= k; p += kLanes) {
        GemmVec<E> block[kLanes];
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r) {
          __builtin_prefetch(row[r] + width * is + p * kPack);  // the next panel's
          block[r] = load_k(row[r] + p * kPack, kLanes * kPack);
        }
        gemm_transpose<E>(block);
#pragma GCC unroll 16
        for (int t = 0; t < kLanes; ++t) put(p + t, i, block[t]);
      }
      if (p * kPack < k) {
        GemmVec<E> block[kLanes];
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r) block[r] = load_k(row[r] + p * kPack, k - p * kPack);
        gemm_transpose<E>(block);
        for (int t = 0; (p + t) * kPack < k; ++t) put(p + t, i, block[t]);
      }
    }
  }

  WT_INLINE void one_by_one() const {
    for (int64_t p = 0; p * kPack < k; ++p)
      for (int64_t i = 0; i < width; ++i) {
        const S* s = src + i * is + p * kPack * ks;
        E v = E(0);
        if (i < rows) {
          if constexpr (kPack == 2)
            v = s[0].bits | (2 * p + 1 < k ? uint32_t(s[ks].bits) << 16 : 0u);
          else
            v = E(s[0]);
        }
        dst[p * width + i] = v;
      }
  }

 private:
  WT_INLINE void put(int64_t p, int64_t i, GemmVec<E> v) const {
    // A narrow step spills into later ones, which are written after it; but not beyond the panel.
    int64_t room = width >= kLanes ? width - i : ((k + kPack - 1) / kPack - p) * width;
    if (room >= kLanes)
      gemm_store(dst + p * width + i, v);
    else
      gemm_store_part(dst + p * width + i, v, width - i);
  }
  WT_INLINE static GemmVec<E> load_k(const S* s, int64_t left) {
#if defined(__AVX512F__)
    if constexpr (kPack == 2)
      return (GemmVec<E>)_mm512_maskz_loadu_epi16(left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1, s);
    else
#endif
      return gemm_load_as<E>(s, left < kLanes ? left : kLanes);
  }
};

// Packs `rows` of a matrix into panels of `width` rows, one after the other. They are as many elements deep
// as k takes, or `depth`, with zeros behind.
template <class S, class E>
void gemm_pack_panels(E* dst, int64_t width, bool pad, const S* src, int64_t is, int64_t ks, int64_t rows,
                      int64_t k, int64_t depth = 0) {
  constexpr int kPack = GemmPacker<S, E>::kPack;
  const int64_t steps = (k + kPack - 1) / kPack;
  if (depth == 0) depth = steps;
  for (int64_t i = 0; depth > steps && i < rows; i += width)
    std::memset(dst + i * depth + steps * width, 0, size_t((depth - steps) * width) * sizeof(E));
  if (is == 1) {  // a few steps of all panels, then the next few: src is met page by page
    for (int64_t p0 = 0; p0 < steps; p0 += 16)
      for (int64_t i = 0; i < rows; i += width) {
        int64_t there = rows - i < width ? rows - i : width;
        GemmPacker<S, E> panel{dst + i * depth, pad ? width : there, src + i, is, ks, there, k};
        for (int64_t p = p0; p < p0 + 16 && p < steps; ++p) panel.step_along_rows(p);
      }
    return;
  }
  for (int64_t i = 0; i < rows; i += width) {
    int64_t there = rows - i < width ? rows - i : width;
    GemmPacker<S, E>{dst, pad ? width : there, src + i * is, is, ks, there, k}.pack();
    dst += depth * (pad ? width : there);
  }
}

}  // namespace warptape::kernels::WARPTAPE_ISA
