// What the stand-ins for cuSOLVER and cuBLAS share: checks of arguments, and matrices as the CPU's kernels of
// linear algebra take them.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "cuComplex.h"
#include "internal.h"
#include "kernels/dispatch.h"
#include "kernels/linalg/linalg.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/slot.h"

namespace emulator::solver {

using namespace warptape;
using namespace warptape::kernels;

// The library's type of a number, and the kernels'.
template <class T> struct OwnOf {
  using type = T;
};
template <> struct OwnOf<cuComplex> {
  using type = Complex<float>;
};
template <> struct OwnOf<cuDoubleComplex> {
  using type = Complex<double>;
};
template <class T> using Own = typename OwnOf<T>::type;
template <class T>
Own<T>* own(T* p) {
  return reinterpret_cast<Own<T>*>(p);
}
template <class T>
const Own<T>* own(const T* p) {
  return reinterpret_cast<const Own<T>*>(p);
}

// ---- what the documentation demands --------------------------------------------------------------------

template <class T>
bool is_memory(int device, const T* p, int64_t numbers) {
  return numbers >= 0 && (numbers == 0 || (p && reinterpret_cast<uintptr_t>(p) % sizeof(T) == 0 &&
                                           lies_on(device, p, size_t(numbers) * sizeof(T))));
}
// By columns, `ld` apart.
template <class T>
bool is_matrix(int device, const T* p, int64_t rows, int64_t columns, int64_t ld) {
  return rows >= 0 && columns >= 0 && ld >= std::max<int64_t>(rows, 1) &&
         is_memory(device, p, rows && columns ? (columns - 1) * ld + rows : 0);
}
inline bool is_fill(int uplo) { return uplo == 0 || uplo == 1; }
// Nothing that a routine leaves in work memory, or in an input that it destroys, may be relied on.
inline void spoil(void* p, size_t bytes) {
  if (bytes) std::memset(p, 0xcd, bytes);
}

// ---- the CPU's kernels ---------------------------------------------------------------------------------

// A dense copy, [1, m, n] by columns.
template <class T>
struct Dense {
  Dense(int64_t m, int64_t n) : numbers(size_t(m * n)), sizes{1, m, n}, strides{m * n, 1, m} {}
  Dense(const T* a, int64_t m, int64_t n, int64_t ld) : Dense(m, n) {
    for (int64_t j = 0; j < n; ++j) std::copy_n(a + j * ld, m, numbers.data() + j * m);
  }
  void store(T* a, int64_t ld) const {
    for (int64_t j = 0; j < sizes[2]; ++j) std::copy_n(numbers.data() + j * sizes[1], sizes[1], a + j * ld);
  }
  T& operator()(int64_t i, int64_t j) { return numbers[size_t(j * sizes[1] + i)]; }
  operator View() { return {numbers.data(), sizes, strides, 3, dtype_of<T>}; }

  std::vector<T> numbers;
  int64_t sizes[3], strides[3];
};
// [1, n], or [1] with n = 0.
template <class T>
struct Row {
  Row(T* p, int64_t n) : data(p), sizes{1, n}, ndim(n ? 2 : 1) {}
  operator View() {
    return {const_cast<std::remove_const_t<T>*>(data), sizes, strides, ndim,
            dtype_of<std::remove_const_t<T>>};
  }
  T* data;
  int64_t sizes[2], strides[2] = {1, 1};
  int ndim;
};

// Runs a slot of the CPU.
template <class... P, class... A>
void on_cpu(Slot<void(const LaunchContext&, P...)>& slot, A&&... args) {
  std::vector<std::unique_ptr<void, void (*)(void*)>> blocks;
  LaunchContext host;
  host.allocator = &blocks;
  host.allocate = [](void* self, size_t bytes) -> void* {
    constexpr size_t kAlign = 64;
    void* p = std::aligned_alloc(kAlign, (bytes / kAlign + 1) * kAlign);
    static_cast<decltype(blocks)*>(self)->emplace_back(p, std::free);
    return p;
  };
  cpu::Uninterrupted uninterrupted;
  slot(host, static_cast<P>(args)...);
}

template <class T>
T conjugate(T x) {
  if constexpr (std::is_arithmetic_v<T>)
    return x;
  else
    return {x.re, -x.im};
}
// op(A) as a matrix of its own.
template <class T>
Dense<T> turned(Dense<T>& a, bool transpose, bool adjoint) {
  if (!transpose) return a;
  Dense<T> out(a.sizes[2], a.sizes[1]);
  for (int64_t i = 0; i < a.sizes[1]; ++i)
    for (int64_t j = 0; j < a.sizes[2]; ++j) out(j, i) = adjoint ? conjugate(a(i, j)) : a(i, j);
  return out;
}

// X with A X = B by A's packed factors: rows exchanged, then both triangles.
template <class T>
void solve_by_lu(Dense<T>& lu, const int* pivots, Dense<T>& b) {
  static Slot<TriangularFn> triangular{"linalg_triangular"};
  const int64_t n = lu.sizes[1];
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < b.sizes[2]; ++j) std::swap(b(i, j), b(pivots[i] - 1, j));
  on_cpu(triangular, View(lu), View(b), true, false, true);
  on_cpu(triangular, View(lu), View(b), true, true, false);
}
// For callers that give no pivots. Of a zero on the diagonal info tells the first one's place, from 1.
template <class T>
void factor_without_pivots(T* a, int64_t m, int64_t n, int64_t ld, int* info) {
  *info = 0;
  for (int64_t k = 0; k < std::min(m, n); ++k) {
    const T pivot = a[k * ld + k];
    if (pivot == T(0) && *info == 0) *info = int(k) + 1;
    for (int64_t i = k + 1; i < m; ++i) {
      a[k * ld + i] = a[k * ld + i] / pivot;
      for (int64_t j = k + 1; j < n; ++j) a[j * ld + i] = a[j * ld + i] - a[k * ld + i] * a[j * ld + k];
    }
  }
}
template <class T>
void factor_lu(T* a, int64_t m, int64_t n, int64_t ld, int* pivots, int* info) {
  static Slot<LuFn> lu{"linalg_lu"};
  if (!pivots) return factor_without_pivots(a, m, n, ld, info);
  Dense<T> dense(a, m, n, ld);
  on_cpu(lu, View(dense), View(Row<int>(pivots, std::min(m, n))), View(Row<int>(info, 0)));
  dense.store(a, ld);
}

}  // namespace emulator::solver
