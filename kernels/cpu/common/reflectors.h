// QR of small matrices, where LAPACK's calls take longer than the numbers. As its geqr2 and org2r: a
// reflector is I - tau v v^H with 1 in front of v, chosen so that the diagonal of R is real.
#pragma once

#include "kernels/cpu/common/lapack.h"

namespace warptape::kernels::cpu {

constexpr int kSmallRows = 16;

template <class T>
T conjugated(T x) {
  if constexpr (kIsComplex<T>)
    return T(x.re, -x.im);
  else
    return x;
}
template <class T>
double square_of(T x) {
  if constexpr (kIsComplex<T>)
    return double(x.re) * double(x.re) + double(x.im) * double(x.im);
  else
    return double(x) * double(x);
}

// Whether squares neither overflow nor vanish beside others; false for what is not finite.
template <class T>
bool is_moderate(const T* a, int64_t n) {
  if (sizeof(Real<T>) == 4) return content(a, n) == Content::Finite;  // summed in double
  double most = 0, sum = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, square_of(a[i])), sum += square_of(a[i]);
  return most > 1e-180 && sum < 1e280;
}

// x -= t v (v^H x), with 1 for v[0].
template <class T>
void reflect(T* x, const T* v, T t, int n) {
  T even = x[0], odd(0);
  int p = 1;
  for (; p + 1 < n; p += 2) {
    even = even + conjugated(v[p]) * x[p];
    odd = odd + conjugated(v[p + 1]) * x[p + 1];
  }
  if (p < n) even = even + conjugated(v[p]) * x[p];
  t = t * (even + odd);
  x[0] = x[0] - t;
  for (p = 1; p < n; ++p) x[p] = x[p] - t * v[p];
}

// x [n] becomes beta and v; what is returned is tau.
template <class T>
T make_reflector(T* x, int n) {
  using R = Real<T>;
  double below = 0, first = 0, imaginary = 0;
  for (int p = 1; p < n; ++p) below += square_of(x[p]);
  if constexpr (kIsComplex<T>)
    first = double(x[0].re), imaginary = double(x[0].im);
  else
    first = double(x[0]);
  if (below == 0 && imaginary == 0) return T(0);
  const double norm = std::sqrt(first * first + imaginary * imaginary + below);
  const auto beta = static_cast<R>(std::signbit(first) ? norm : -norm);
  T tau((beta - R(first)) / beta);
  if constexpr (kIsComplex<T>) tau.im = -R(imaginary) / beta;
  const T scale = T(1) / (x[0] - T(beta));
  for (int p = 1; p < n; ++p) x[p] = x[p] * scale;
  x[0] = T(beta);
  return tau;
}

template <class T>
void factor_small_qr(const Matrices<T>& A, T* a, T* tau) {
  for (int i = 0; i < std::min(A.m, A.n); ++i) {
    T* v = a + int64_t{i} * A.m + i;
    tau[i] = make_reflector(v, A.m - i);
    if (tau[i] == T(0)) continue;
    for (int j = i + 1; j < A.n; ++j) reflect(a + int64_t{j} * A.m + i, v, conjugated(tau[i]), A.m - i);
  }
}

// The first n columns of the product of k reflectors.
template <class T>
void form_small_q(const Matrices<T>& A, T* a, int k, const T* tau) {
  for (int j = k; j < A.n; ++j)
    for (int p = 0; p < A.m; ++p) a[int64_t{j} * A.m + p] = T(p == j);
  for (int i = k - 1; i >= 0; --i) {
    T* v = a + int64_t{i} * A.m + i;
    for (int j = i + 1; j < A.n; ++j) reflect(a + int64_t{j} * A.m + i, v, tau[i], A.m - i);
    v[0] = T(1) - tau[i];
    for (int p = 1; p < A.m - i; ++p) v[p] = T(0) - tau[i] * v[p];
    std::fill_n(a + int64_t{i} * A.m, i, T(0));
  }
}

}  // namespace warptape::kernels::cpu
