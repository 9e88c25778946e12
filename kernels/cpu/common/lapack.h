// LAPACK's routines, found in a library that is opened on first use.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>

#include "kernels/dispatch.h"
#include "kernels/linalg/linalg.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::cpu {

// The routine of that letter (s, d, c, z) and name. RuntimeError that says what to install.
void* lapack_routine(char letter, const char* name);

using LapackTypes = Types<float, double, Complex<float>, Complex<double>>;
template <class T> inline constexpr bool kIsComplex = false;
template <class R> inline constexpr bool kIsComplex<Complex<R>> = true;
template <class T> struct RealOf {
  using type = T;
};
template <class R> struct RealOf<Complex<R>> {
  using type = R;
};
template <class T> using Real = typename RealOf<T>::type;
template <class T> inline constexpr char kLetter =
    sizeof(Real<T>) == 4 ? (kIsComplex<T> ? 'c' : 's') : (kIsComplex<T> ? 'z' : 'd');

template <size_t N>
struct RoutineName {
  char text[N];
  consteval RoutineName(const char (&name)[N]) { std::copy_n(name, N, text); }
};

// Calls it with pointers, as Fortran does; the lengths of strings go behind all else.
template <class T, RoutineName kName, class... A>
void call(A... args) {
  static constinit std::atomic<void*> known{nullptr};
  void* routine = known.load(std::memory_order_acquire);
  if (!routine) {
    routine = lapack_routine(kLetter<T>, kName.text);
    known.store(routine, std::memory_order_release);
  }
  constexpr size_t kStrings = (size_t{std::is_same_v<A, const char*>} + ... + 0);
  [&]<size_t... I>(std::index_sequence<I...>) {
    reinterpret_cast<void (*)(A..., decltype(I)...)>(routine)(args..., (static_cast<void>(I), size_t{1})...);
  }(std::make_index_sequence<kStrings>{});
}

// The matrices of one argument.
template <class T>
struct Matrices {
  explicit Matrices(const View& v)
      : data(v.as<T>()),
        count(v.sizes[0]),
        m(static_cast<int>(v.sizes[1])),
        n(static_cast<int>(v.sizes[2])),
        ld(std::max(m, 1)) {}
  T* operator[](int64_t i) const { return data + i * size(); }
  int64_t size() const { return int64_t{m} * n; }
  T* data;
  int64_t count;
  int m, n, ld;
};
template <class T>
T* vector(const View& v, int64_t i) {
  return v.as<T>() + i * (v.ndim > 1 ? v.sizes[1] : 1);
}

template <class T>
std::unique_ptr<T[]> room(int64_t n) {
  return std::make_unique_for_overwrite<T[]>(static_cast<size_t>(std::max<int64_t>(n, 1)));
}
// The size that a routine asks for: `query(T* size, int* minus_one)`.
template <class T, class F>
int workspace(F&& query) {
  T size[1];
  int ask = -1;
  query(size, &ask);
  return std::max(1, static_cast<int>(*reinterpret_cast<Real<T>*>(size)));
}

// f(i) for every matrix, on the pool; `work` is about the number of operations for one of them.
template <class F>
void each_matrix(int64_t count, double work, F&& f) {
  constexpr double kGrain = 1 << 15;
  const int64_t grain = std::max<int64_t>(1, static_cast<int64_t>(kGrain / std::max(work, 1.0)));
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i > begin) poll_interrupt();
      f(i);
    }
  });
}
template <class T>
double work_of(const Matrices<T>& a) {
  return static_cast<double>(a.size()) * std::max(std::min(a.m, a.n), 1);
}

enum class Content : uint8_t { Finite, Infinite, NaN };

template <class T>
Content content(const T* a, int64_t n) {
  using R = Real<T>;
  const auto* parts = reinterpret_cast<const R*>(a);
  const int64_t count = n * static_cast<int64_t>(sizeof(T) / sizeof(R));
  constexpr int64_t kLanes = 64 / sizeof(R);  // sums that do not wait for each other
  R lanes[kLanes] = {}, none = 0;             // turn into NaN
  int64_t done = 0;
  for (; done + kLanes <= count; done += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += parts[done + j] - parts[done + j];
  for (; done < count; ++done) none += parts[done] - parts[done];
  for (const R lane : lanes) none += lane;
  if (none == 0) return Content::Finite;
  for (int64_t i = 0; i < count; ++i)
    if (std::isnan(parts[i])) return Content::NaN;
  return Content::Infinite;
}
// Zeros in the triangle that a routine does not read.
template <class T>
void clear_other_triangle(const Matrices<T>& A, T* a, bool upper) {
  for (int64_t j = 0; j < A.n; ++j)
    std::fill_n(a + j * A.m + (upper ? j + 1 : 0), upper ? A.m - j - 1 : j, T(0));
}

}  // namespace warptape::kernels::cpu
