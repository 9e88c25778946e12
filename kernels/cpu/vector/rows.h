// Loops over contiguous rows of any floating dtype as vectors of the compute type: loads that widen, stores
// that narrow, sums and maxima with a fixed order of additions. The last, partial vector runs through the
// same code as the full ones.
#pragma once

#include "kernels/cpu/vector/vecmath.h"
#include "kernels/dispatch.h"
#include "kernels/runtime/parallel.h"

namespace warptape::kernels::WARPTAPE_ISA {

inline constexpr int64_t kRowGrain = 16384;  // elements a task should have

// How many rows of n elements make a task.
WT_FN int64_t row_grain(int64_t n) { return n >= kRowGrain ? 1 : kRowGrain / (n + 1) + 1; }

// Which lanes of a vector are real: all, or the first n.
struct AllLanes {};
struct FirstLanes {
  int n;
};

template <class C>
WT_FN Mask<C> lanes_below(int n) {
  Vec<C> lane;
  for (int i = 0; i < Vec<C>::kLanes; ++i) lane.v[i] = C(i);
  return lane < Vec<C>(n);
}

// ---- conversion between 16-bit memory and vectors of float ----
typedef uint16_t Raw16 __attribute__((vector_size(kVecBytes / 2)));
typedef uint16_t Raw16Unaligned __attribute__((vector_size(kVecBytes / 2), aligned(1), may_alias));

WT_FN VFloat widen(BFloat16, Raw16 bits) {
  return {(Raw<float>)(__builtin_convertvector(bits, Raw<uint32_t>) << 16)};
}
WT_FN Raw16 narrow(BFloat16, VFloat a) {
  const Raw<uint32_t> u = (Raw<uint32_t>)a.v;
  const Raw<uint32_t> rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
  // A NaN may not be rounded to infinity.
  const Raw<uint32_t> result =
      (Raw<uint32_t>)select(isnan(a), VFloat((Raw<float>)((u >> 16) | 0x40)), VFloat((Raw<float>)rounded)).v;
  return __builtin_convertvector(result, Raw16);
}
#if defined(__AVX512F__)
WT_FN VFloat widen(Half, Raw16 bits) { return {_mm512_cvtph_ps((__m256i)bits)}; }
WT_FN Raw16 narrow(Half, VFloat a) { return (Raw16)_mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT); }
#elif defined(__F16C__)
WT_FN VFloat widen(Half, Raw16 bits) { return {_mm256_cvtph_ps((__m128i)bits)}; }
WT_FN Raw16 narrow(Half, VFloat a) { return (Raw16)_mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT); }
#else
WT_FN VFloat widen(Half, Raw16 bits) {
  VFloat r;
  for (int i = 0; i < VFloat::kLanes; ++i) {
    Half h;
    h.bits = bits[i];
    r.v[i] = float(h);
  }
  return r;
}
WT_FN Raw16 narrow(Half, VFloat a) {
  Raw16 r;
  for (int i = 0; i < VFloat::kLanes; ++i) r[i] = Half(a.v[i]).bits;
  return r;
}
#endif

// ---- loads and stores by element type; lanes that are not real load as zero ----
template <class T>
WT_FN Vec<Compute<T>> load(const T* p, AllLanes) {
  if constexpr (sizeof(T) == 2)
    return widen(T{}, Raw16(*reinterpret_cast<const Raw16Unaligned*>(p)));
  else
    return Vec<T>::load(p);
}
template <class T>
WT_FN Vec<Compute<T>> load(const T* p, FirstLanes part) {
  if constexpr (sizeof(T) == 2) {
    Raw16 bits = {};
    for (int i = 0; i < part.n; ++i) bits[i] = p[i].bits;
    return widen(T{}, bits);
  } else {
    return load_partial<T>(p, part.n);
  }
}
template <class T>
WT_FN void store(T* p, Vec<Compute<T>> a, AllLanes) {
  if constexpr (sizeof(T) == 2)
    *reinterpret_cast<Raw16Unaligned*>(p) = narrow(T{}, a);
  else
    a.store(p);
}
template <class T>
WT_FN void store(T* p, Vec<Compute<T>> a, FirstLanes part) {
  if constexpr (sizeof(T) == 2) {
    const Raw16 bits = narrow(T{}, a);
    for (int i = 0; i < part.n; ++i) p[i].bits = bits[i];
  } else {
    store_partial(p, a, part.n);
  }
}

// `a` in the real lanes, `fill` in the others.
template <class C>
WT_FN Vec<C> keep(Vec<C> a, AllLanes, C = 0) {
  return a;
}
template <class C>
WT_FN Vec<C> keep(Vec<C> a, FirstLanes part, C fill = 0) {
  return select(lanes_below<C>(part.n), a, Vec<C>(fill));
}

// exp for arguments that are not above 0 by more than rounding: no test for overflow. A NaN passes.
WT_FN VFloat exp_below(VFloat x) {
  const ExpParts p = reduce_exp(max_or_b(VFloat(-105), x));
  return scale(fma(exp_tail(p.r), p.r * p.r, p.r) + VFloat(1), p.n);
}
WT_FN VDouble exp_below(VDouble x) { return exp(x); }

// ---- loops ----

// f(position, lanes) over n elements, a vector at a time.
template <class C, class F>
WT_FN void for_vectors(int64_t n, F&& f) {
  constexpr int kLanes = Vec<C>::kLanes;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, AllLanes{});
  if (i < n) f(i, FirstLanes{int(n - i)});
}

// Folds f(accumulator, position, lanes) over n elements in four independent accumulators, which `join`
// unites.
template <class C, class A, class F, class J>
WT_FN A fold_vectors(int64_t n, A start, F&& f, J&& join) {
  constexpr int kLanes = Vec<C>::kLanes;
  A a = start, b = start, c = start, d = start;
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    f(a, i, AllLanes{});
    f(b, i + kLanes, AllLanes{});
    f(c, i + 2 * kLanes, AllLanes{});
    f(d, i + 3 * kLanes, AllLanes{});
  }
  for (; i + kLanes <= n; i += kLanes) f(a, i, AllLanes{});
  if (i < n) f(b, i, FirstLanes{int(n - i)});
  return join(join(a, b), join(c, d));
}

// Joins the lanes of a vector by halves, in registers.
template <class C, class J>
WT_FN C across_lanes(Vec<C> a, J&& join) {
  using I = IntRaw<C>;
#pragma GCC unroll 4
  for (int width = Vec<C>::kLanes / 2; width > 0; width /= 2) {
    I partner;
    for (int i = 0; i < Vec<C>::kLanes; ++i) partner[i] = i ^ width;
    a = join(a, Vec<C>(__builtin_shuffle(a.v, partner)));
  }
  return a.v[0];
}
template <class C>
WT_FN C sum_lanes(Vec<C> a) {
  return across_lanes(a, [](Vec<C> x, Vec<C> y) { return x + y; });
}

// Sum over n elements of f(position, lanes), whose unreal lanes must be zero.
template <class C, class F>
WT_FN C sum_vectors(int64_t n, F&& f) {
  return sum_lanes(fold_vectors<C>(
      n, Vec<C>(0), [&](Vec<C>& acc, int64_t i, auto lanes) { acc += f(i, lanes); },
      [](Vec<C> a, Vec<C> b) { return a + b; }));
}

// The largest of n elements; NaN if there is one.
template <class T>
WT_FN Compute<T> max_of_row(const T* x, int64_t n) {
  using C = Compute<T>;
  constexpr C kLow = -__builtin_inf();
  auto larger = [](Vec<C> a, Vec<C> b) { return maximum(a, b); };
  auto step = [&](Vec<C>& acc, int64_t i, auto lanes) {
    acc = maximum(acc, keep<C>(load(x + i, lanes), lanes, kLow));
  };
  return across_lanes(fold_vectors<C>(n, Vec<C>(kLow), step, larger), larger);
}

// A vector [n] of any floating dtype in the compute type: itself, or converted into scratch. Null stays null.
template <class C>
const C* in_compute(const LaunchContext& ctx, const View& v, int64_t n) {
  if (!v.data || v.dtype == dtype_of<C>) return v.as<C>();
  C* out = static_cast<C*>(ctx.scratch((n + 1) * sizeof(C)));
  dispatch(FloatTypes{}, v.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    for (int64_t i = 0; i < n; ++i) out[i] = C(Compute<T>(v.as<T>()[i]));
  });
  return out;
}

// The opposite: n values of the compute type into a View of any floating dtype.
template <class C>
WT_FN void store_as(const View& v, int64_t i, C value) {
  dispatch(FloatTypes{}, v.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    v.as<T>()[i] = T(static_cast<Compute<T>>(value));
  });
}

}  // namespace warptape::kernels::WARPTAPE_ISA
