// Lines in the lanes of vectors: how they come there from memory and leave it, and the steps of a transform.
#pragma once

#include <utility>

#include "kernels/cpu/fft/fft_plan.h"
#include "kernels/cpu/vector/vec.h"

namespace warptape::kernels::WARPTAPE_ISA {

// Lines in memory: consecutive elements are `step` apart, neighbouring lines `lane`.
template <class T>
struct Place {
  T *re, *im;
  int64_t step, lane;
  WT_INLINE Place moved(int64_t by, int64_t new_step, int64_t new_lane) const {
    return {re + by, im + by, new_step, new_lane};
  }
  WT_INLINE bool pairs() const { return im == re + 1; }
};

// Element k of all lines is re[k], im[k].
template <class T>
struct Lanes {
  Vec<T>*re, *im;
  WT_INLINE Lanes swapped() const { return {im, re}; }
};
template <class T>
WT_FN Lanes<T> lanes_at(char* work, int64_t n) {
  auto* re = reinterpret_cast<Vec<T>*>(work);
  return {re, re + n};
}

// ---- memory ----

// Rows become lanes: blocks of S x S change their places, for S = kLanes / 2 .. 1.
template <int S, class T>
WT_FN void transpose(Vec<T>* v) {
  constexpr int L = Vec<T>::kLanes;
  for (int i = 0; i < L; ++i) {
    if (i & S) continue;
    const Vec<T> a = v[i], b = v[i + S];
    v[i] = pick(a, b, [](int j) { return j & S ? L + j - S : j; });
    v[i + S] = pick(a, b, [](int j) { return j & S ? L + j : j + S; });
  }
  if constexpr (S > 1) transpose<S / 2>(v);
}

// `count` elements from k on, at most kLanes / 2, of lines of pairs whose rows are vectors.
template <class T>
WT_FN void load_rows(const Place<T>& p, Lanes<T> to, int64_t k, int count, int lanes) {
  constexpr int L = Vec<T>::kLanes;
  Vec<T> v[L];
  for (int i = 0; i < L; ++i) v[i] = i < lanes ? load_some(p.re + 2 * k + i * p.lane, 2 * count) : Vec<T>(0);
  transpose<L / 2>(v);
  for (int i = 0; i < count; ++i) to.re[k + i] = v[2 * i], to.im[k + i] = v[2 * i + 1];
}
template <class T>
WT_FN void store_rows(Lanes<T> from, const Place<T>& p, int64_t k, int count, int lanes, Vec<T> scale) {
  constexpr int L = Vec<T>::kLanes;
  Vec<T> v[L];
  for (int i = 0; i < L / 2; ++i) {
    const int64_t at = k + (i < count ? i : 0);
    v[2 * i] = from.re[at] * scale, v[2 * i + 1] = from.im[at] * scale;
  }
  transpose<L / 2>(v);
  for (int i = 0; i < lanes; ++i) store_some(p.re + 2 * k + i * p.lane, v[i], 2 * count);
}

// Calls f(first, count) for blocks of up to `size` elements that cover [0, n).
template <class F>
WT_FN void in_blocks(int64_t n, int size, F&& f) {
  int64_t k = 0;
  for (; k + size <= n; k += size) f(k, size);
  if (k < n) f(k, int(n - k));
}

template <class T>
void load(const Place<T>& p, Lanes<T> to, int64_t n, int lanes) {
  constexpr int L = Vec<T>::kLanes;
  if (p.lane == 2 && p.pairs()) {
    for (int64_t k = 0; k < n; ++k) load_pairs(p.re + k * p.step, to.re[k], to.im[k], lanes);
  } else if (p.lane == 1) {
    for (int64_t k = 0; k < n; ++k)
      to.re[k] = load_some(p.re + k * p.step, lanes), to.im[k] = load_some(p.im + k * p.step, lanes);
  } else if (p.step == 2 && p.pairs()) {
    in_blocks(n, L / 2, [&](int64_t k, int count) { load_rows(p, to, k, count, lanes); });
  } else {
    for (int64_t k = 0; k < n; ++k) {
      to.re[k] = to.im[k] = Vec<T>(0);
      T *re = reinterpret_cast<T*>(to.re + k), *im = reinterpret_cast<T*>(to.im + k);
      for (int l = 0; l < lanes; ++l) {
        re[l] = p.re[k * p.step + l * p.lane];
        im[l] = p.im[k * p.step + l * p.lane];
      }
    }
  }
}

template <class T>
void store(Lanes<T> from, const Place<T>& p, int64_t n, int lanes, T scale) {
  constexpr int L = Vec<T>::kLanes;
  const Vec<T> s(scale);
  if (p.lane == 2 && p.pairs()) {
    for (int64_t k = 0; k < n; ++k) store_pairs(p.re + k * p.step, from.re[k] * s, from.im[k] * s, lanes);
  } else if (p.lane == 1) {
    for (int64_t k = 0; k < n; ++k) {
      store_some(p.re + k * p.step, from.re[k] * s, lanes);
      store_some(p.im + k * p.step, from.im[k] * s, lanes);
    }
  } else if (p.step == 2 && p.pairs()) {
    in_blocks(n, L / 2, [&](int64_t k, int count) { store_rows(from, p, k, count, lanes, s); });
  } else {
    for (int64_t k = 0; k < n; ++k) {
      const T *re = reinterpret_cast<const T*>(from.re + k), *im = reinterpret_cast<const T*>(from.im + k);
      for (int l = 0; l < lanes; ++l) {
        p.re[k * p.step + l * p.lane] = re[l] * scale;
        p.im[k * p.step + l * p.lane] = im[l] * scale;
      }
    }
  }
}

// ---- steps ----

// f(0) .. f(N - 1) with constants, so that arrays indexed by them are registers.
template <int N, class F>
WT_FN void unrolled(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

// (re, im) times (wr, wi).
template <class V>
WT_FN void turn(V& re, V& im, V wr, V wi) {
  const V old = re;
  re = fma(old, wr, -(im * wi));
  im = fma(old, wi, im * wr);
}

// cos(2 pi k / 16); sin(x) = cos(x - pi / 2).
inline constexpr double kCosines16[] = {
    1,  0.92387953251128675613,  0.70710678118654752440,  0.38268343236508977173,
    0,  -0.38268343236508977173, -0.70710678118654752440, -0.92387953251128675613,
    -1, -0.92387953251128675613, -0.70710678118654752440, -0.38268343236508977173,
    0,  0.38268343236508977173,  0.70710678118654752440,  0.92387953251128675613,
    1,  0.92387953251128675613,  0.70710678118654752440,  0.38268343236508977173,
    0,  -0.38268343236508977173, -0.70710678118654752440, -0.92387953251128675613};

// The sums over j of a[j] exp(-2 pi i j k / R), in place.
template <int R, class T>
WT_FN void butterfly(Vec<T>* re, Vec<T>* im) {
  if constexpr (R == 2) {
    const Vec<T> r = re[0], i = im[0];
    re[0] = r + re[1], im[0] = i + im[1];
    re[1] = r - re[1], im[1] = i - im[1];
  } else if constexpr (R == 4) {
    const Vec<T> ar = re[0] + re[2], ai = im[0] + im[2], br = re[0] - re[2], bi = im[0] - im[2];
    const Vec<T> cr = re[1] + re[3], ci = im[1] + im[3], dr = re[1] - re[3], di = im[1] - im[3];
    re[0] = ar + cr, im[0] = ai + ci;
    re[1] = br + di, im[1] = bi - dr;
    re[2] = ar - cr, im[2] = ai - ci;
    re[3] = br - di, im[3] = bi + dr;
  } else {
    // A matrix [4, R / 4]: transforms of the columns, factors, transforms of the rows.
    constexpr int kColumns = R / 4;
    Vec<T> r[R], i[R];
    unrolled<kColumns>([&](auto c) {
      unrolled<4>([&](auto j) { r[4 * c + j] = re[c + kColumns * j], i[4 * c + j] = im[c + kColumns * j]; });
      butterfly<4>(r + 4 * c, i + 4 * c);
      unrolled<4>([&](auto k) {
        constexpr int kTurn = c * k * 16 / R;
        if constexpr (kTurn == 4) {
          const Vec<T> old = r[4 * c + k];
          r[4 * c + k] = i[4 * c + k], i[4 * c + k] = -old;
        } else if constexpr (kTurn > 0) {
          turn(r[4 * c + k], i[4 * c + k], Vec<T>(kCosines16[kTurn]), Vec<T>(-kCosines16[kTurn + 12]));
        }
      });
    });
    unrolled<4>([&](auto k) {
      Vec<T> row_re[kColumns], row_im[kColumns];
      unrolled<kColumns>([&](auto c) { row_re[c] = r[4 * c + k], row_im[c] = i[4 * c + k]; });
      butterfly<kColumns>(row_re, row_im);
      unrolled<kColumns>([&](auto j) { re[k + 4 * j] = row_re[j], im[k + 4 * j] = row_im[j]; });
    });
  }
}
// Of an odd number: j and R - j have conjugate factors, so one product serves sum and difference.
template <int R, class T>
WT_FN void butterfly_odd(int radix, const T* cosines, Vec<T>* re, Vec<T>* im) {
  constexpr int kHalf = (R ? R : cpu::kLargestRadix) / 2;
  const int r = R ? R : radix, half = r / 2;
  const T* sines = cosines + r;
  Vec<T> sum_re[kHalf + 1], sum_im[kHalf + 1], difference_re[kHalf + 1], difference_im[kHalf + 1];
  const Vec<T> first_re = re[0], first_im = im[0];
  for (int j = 1; j <= half; ++j) {
    sum_re[j] = re[j] + re[r - j], sum_im[j] = im[j] + im[r - j];
    difference_re[j] = re[j] - re[r - j], difference_im[j] = im[j] - im[r - j];
    re[0] += sum_re[j], im[0] += sum_im[j];
  }
  for (int k = 1; k <= half; ++k) {
    Vec<T> a = first_re, b = first_im, c(0), d(0);
    for (int j = 1, e = k; j <= half; ++j, e = e + k < r ? e + k : e + k - r) {
      const Vec<T> cosine(cosines[e]), sine(sines[e]);
      a = fma(cosine, sum_re[j], a), b = fma(cosine, sum_im[j], b);
      c = fma(sine, difference_re[j], c), d = fma(sine, difference_im[j], d);
    }
    re[k] = a + d, im[k] = b - c;
    re[r - k] = a - d, im[r - k] = b + c;
  }
}

// Stockham's step: y[q + done (R p + k)] = w^(p k) times the sum over j of x[q + done (p + rest j)] w_R^(j
// k).
template <int R, class T>
void step(const cpu::FftStep& s, const T* roots, int64_t done, Lanes<T> x, Lanes<T> y) {
  for (int64_t p = 0; p < s.rest; ++p) {
    const T* w = roots + s.twiddles + p * 2 * (R - 1);
    for (int64_t q = 0; q < done; ++q) {
      const int64_t from = q + done * p, to = q + done * R * p, apart = done * s.rest;
      Vec<T> re[R], im[R];
      unrolled<R>([&](auto j) { re[j] = x.re[from + apart * j], im[j] = x.im[from + apart * j]; });
      if constexpr (R % 2 == 0)
        butterfly<R>(re, im);
      else
        butterfly_odd<R>(R, roots + s.own_roots, re, im);
      if (p > 0)
        unrolled<R - 1>([&](auto k) { turn(re[k + 1], im[k + 1], Vec<T>(w[2 * k]), Vec<T>(w[2 * k + 1])); });
      unrolled<R>([&](auto k) { y.re[to + done * k] = re[k], y.im[to + done * k] = im[k]; });
    }
  }
}
// The same for any odd radix.
template <class T>
void step_odd(const cpu::FftStep& s, const T* roots, int64_t done, Lanes<T> x, Lanes<T> y) {
  const int r = s.radix;
  Vec<T> re[cpu::kLargestRadix], im[cpu::kLargestRadix];
  for (int64_t p = 0; p < s.rest; ++p) {
    const T* w = roots + s.twiddles + p * 2 * (r - 1);
    for (int64_t q = 0; q < done; ++q) {
      const int64_t from = q + done * p, to = q + done * r * p, apart = done * s.rest;
      for (int j = 0; j < r; ++j) re[j] = x.re[from + apart * j], im[j] = x.im[from + apart * j];
      butterfly_odd<0>(r, roots + s.own_roots, re, im);
      for (int k = 1; k < r; ++k) turn(re[k], im[k], Vec<T>(w[2 * k - 2]), Vec<T>(w[2 * k - 1]));
      for (int k = 0; k < r; ++k) y.re[to + done * k] = re[k], y.im[to + done * k] = im[k];
    }
  }
}

// The transform of x, in one of the two places; the other is overwritten.
template <class T>
Lanes<T> run_steps(const cpu::FftPlan<T>& plan, Lanes<T> x, Lanes<T> y) {
  int64_t done = 1;
  for (int i = 0; i < plan.steps; ++i) {
    const cpu::FftStep& s = plan.step[i];
    switch (s.radix) {
      case 2:
        step<2>(s, plan.roots, done, x, y);
        break;
      case 3:
        step<3>(s, plan.roots, done, x, y);
        break;
      case 4:
        step<4>(s, plan.roots, done, x, y);
        break;
      case 5:
        step<5>(s, plan.roots, done, x, y);
        break;
      case 8:
        step<8>(s, plan.roots, done, x, y);
        break;
      case 16:
        step<16>(s, plan.roots, done, x, y);
        break;
      default:
        step_odd(s, plan.roots, done, x, y);
    }
    done *= s.radix;
    const Lanes<T> result = y;
    y = x, x = result;
  }
  return x;
}

// ---- real lines of length 2 n as complex ones of length n ----

// Of the transform z of n pairs to the frequencies 0 .. n of the 2 n reals, and back to twice that. Both
// change elements k and n - k together; w[k] = exp(-pi i k / n).
struct ToHalf {
  template <class V>
  WT_FN static void ends(V& first_re, V& first_im, V& last_re, V& last_im) {
    const V re = first_re, im = first_im;
    first_re = re + im, last_re = re - im;
    first_im = last_im = V(0);
  }
  template <class V>
  WT_FN static void pair(V& ar, V& ai, V& br, V& bi, V wr, V wi) {
    const V even_re = (ar + br) * V(0.5), even_im = (ai - bi) * V(0.5);
    const V odd_re = (ai + bi) * V(0.5), odd_im = (br - ar) * V(0.5);
    const V turned_re = wr * odd_re - wi * odd_im, turned_im = wr * odd_im + wi * odd_re;
    br = even_re - turned_re, bi = turned_im - even_im;
    ar = even_re + turned_re, ai = even_im + turned_im;
  }
};
struct FromHalf {
  template <class V>
  WT_FN static void ends(V& first_re, V& first_im, V& last_re, V&) {
    first_im = first_re - last_re;
    first_re = first_re + last_re;
  }
  template <class V>
  WT_FN static void pair(V& ar, V& ai, V& br, V& bi, V wr, V wi) {
    const V even_re = ar + br, even_im = ai - bi, turned_re = ar - br, turned_im = ai + bi;
    const V odd_re = wr * turned_re + wi * turned_im, odd_im = wr * turned_im - wi * turned_re;
    br = even_re + odd_im, bi = odd_re - even_im;
    ar = even_re - odd_im, ai = even_im + odd_re;
  }
};

// Of lines in lanes.
template <class Way, class T>
void convert_half(int64_t n, const T* w, Lanes<T> x) {
  Way::ends(x.re[0], x.im[0], x.re[n], x.im[n]);
  for (int64_t k = 1; k <= n - k; ++k) {
    Vec<T> ar = x.re[k], ai = x.im[k], br = x.re[n - k], bi = x.im[n - k];
    Way::pair(ar, ai, br, bi, Vec<T>(w[2 * k]), Vec<T>(w[2 * k + 1]));
    x.re[n - k] = br, x.im[n - k] = bi;
    x.re[k] = ar, x.im[k] = ai;
  }
}

template <class T>
WT_FN Vec<T> reversed(Vec<T> a) {
  return pick(a, a, [](int j) { return Vec<T>::kLanes - 1 - j; });
}

// Of a line of pairs in memory.
template <class Way, class T>
void convert_half(int64_t n, const T* w, T* x) {
  constexpr int L = Vec<T>::kLanes;
  Way::ends(x[0], x[1], x[2 * n], x[2 * n + 1]);
  int64_t k = 1;
  for (; k + L <= n - k - L + 1; k += L) {
    T *a = x + 2 * k, *b = x + 2 * (n - k - L + 1);
    Vec<T> ar, ai, br, bi, wr, wi;
    load_pairs(a, ar, ai, L), load_pairs(b, br, bi, L), load_pairs(w + 2 * k, wr, wi, L);
    br = reversed(br), bi = reversed(bi);
    Way::pair(ar, ai, br, bi, wr, wi);
    store_pairs(a, ar, ai, L), store_pairs(b, reversed(br), reversed(bi), L);
  }
  for (; k <= n - k; ++k) {
    const T* a = x + 2 * k;
    const T* b = x + 2 * (n - k);
    T ar = a[0], ai = a[1], br = b[0], bi = b[1];
    Way::pair(ar, ai, br, bi, w[2 * k], w[2 * k + 1]);
    x[2 * (n - k)] = br, x[2 * (n - k) + 1] = bi;
    x[2 * k] = ar, x[2 * k + 1] = ai;
  }
}

}  // namespace warptape::kernels::WARPTAPE_ISA
