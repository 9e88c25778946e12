// Factors of matrices and systems of equations. The library runs in the calling thread: our pool splits the
// batch.
#include "kernels/cpu/common/lapack.h"
#include "kernels/cpu/common/reflectors.h"
#include "kernels/runtime/services.h"

#include <dlfcn.h>

#include <mutex>
#include <stdexcept>

namespace warptape::kernels {

namespace cpu {
namespace {

struct Library {
  void* handle;
  std::string prefix;
};
std::atomic<const Library*> library{nullptr};

const Library* open_library() {
  // Before the lock: who tells it may wait for Python's, which a thread that waits here may hold.
  Services* above = services();
  const std::string path = above ? above->lapack_library() : "";
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (const Library* opened = library) return opened;
  std::string problem = "it is not installed";
  if (!path.empty()) {
    if (void* handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
      if (void* set = dlsym(handle, "scipy_openblas_set_num_threads"))
        reinterpret_cast<void (*)(int)>(set)(1);
      return library = new Library{handle, "scipy_"};
    }
    const char* why = dlerror();
    problem = why ? why : "it cannot be opened";
  }
  if (void* handle = dlopen("liblapack.so.3", RTLD_LAZY | RTLD_LOCAL))
    return library = new Library{handle, ""};
  throw std::runtime_error("linear algebra needs LAPACK from the package scipy-openblas32: " + problem +
                           "; run `pip install scipy-openblas32`");
}

}  // namespace

void* lapack_routine(char letter, const char* name) {
  const Library* opened = library.load(std::memory_order_acquire);
  if (!opened) opened = open_library();
  const std::string symbol = opened->prefix + letter + name + "_";
  void* routine = dlsym(opened->handle, symbol.c_str());
  if (!routine) throw std::runtime_error("the LAPACK library found has no routine " + symbol);
  return routine;
}

namespace {

// ---- LU ------------------------------------------------------------------------------------------------

// The library's own getrf goes on from a pivot that is NaN as if it were 1, LAPACK's recursive one divides.
template <class T>
void factor_lu(const Matrices<T>& A, T* matrix, int* pivots, int* info) {
  if (content(matrix, A.size()) == Content::Finite)
    call<T, "getrf">(&A.m, &A.n, matrix, &A.ld, pivots, info);
  else
    call<T, "getrf2">(&A.m, &A.n, matrix, &A.ld, pivots, info);
}

void lapack_lu(const LaunchContext&, const View& a, const View& pivots, const View& info) {
  dispatch(LapackTypes{}, a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(a);
    each_matrix(A.count, work_of(A),
                [&](int64_t i) { factor_lu(A, A[i], vector<int>(pivots, i), vector<int>(info, i)); });
  });
}

void lapack_solve(const LaunchContext&, const View& a, const View& pivots, const View& b, const View& info) {
  dispatch(LapackTypes{}, a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(a), B(b);
    each_matrix(A.count, work_of(A) + double(A.m) * double(B.size()), [&](int64_t i) {
      int* steps = vector<int>(pivots, i);
      int done;
      factor_lu(A, A[i], steps, vector<int>(info, i));
      const char none = 'N';
      call<T, "getrs">(&none, &A.n, &B.n, A[i], &A.ld, steps, B[i], &B.ld, &done);
    });
  });
}

void lapack_lu_solve(const LaunchContext&, const View& lu, const View& pivots, const View& b, bool adjoint) {
  dispatch(LapackTypes{}, lu.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(lu), B(b);
    const char form = adjoint ? 'C' : 'N';
    each_matrix(A.count, double(A.m) * double(B.size()), [&](int64_t i) {
      int done;
      call<T, "getrs">(&form, &A.n, &B.n, A[i], &A.ld, vector<int>(pivots, i), B[i], &B.ld, &done);
    });
  });
}

template <class T>
Real<T> size_of(T x) {
  if constexpr (kIsComplex<T>)
    return std::hypot(x.re, x.im);
  else
    return std::abs(x);
}
template <class T>
T sign_of(T x) {
  if constexpr (kIsComplex<T>) {
    const Real<T> size = size_of(x);
    return size == 0 ? T(0) : T(x.re / size, x.im / size);
  } else {
    return T(x > 0) - T(x < 0);  // 0 for NaN
  }
}

void lapack_determinant(const LaunchContext&, const View& a, const View& pivots, const View& value,
                        const View& sign, const View& log) {
  dispatch(LapackTypes{}, a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(a);
    each_matrix(A.count, work_of(A), [&](int64_t i) {
      int* steps = vector<int>(pivots, i);
      int info;
      factor_lu(A, A[i], steps, &info);
      T product(1), signs(1);
      Real<T> sum = 0;
      for (int j = 0; j < A.n; ++j) {
        T x = A[i][int64_t{j} * A.m + j];
        sum += log.data ? std::log(size_of(x)) : 0;
        if (steps[j] != j + 1) x = T(0) - x;
        product = product * x;
        signs = signs * sign_of(x);
      }
      if (value.data) value.as<T>()[i] = product;
      if (sign.data) sign.as<T>()[i] = signs;
      if (log.data) log.as<Real<T>>()[i] = sum;
    });
  });
}

void lapack_triangular(const LaunchContext&, const View& a, const View& b, bool left, bool upper, bool unit) {
  dispatch(LapackTypes{}, a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(a), B(b);
    const char side = left ? 'L' : 'R', triangle = upper ? 'U' : 'L', none = 'N', ones = unit ? 'U' : 'N';
    const T one(1);
    each_matrix(B.count, double(A.m) * double(B.size()), [&](int64_t i) {
      call<T, "trsm">(&side, &triangle, &none, &ones, &B.m, &B.n, &one, A[i], &A.ld, B[i], &B.ld);
    });
  });
}

// ---- Cholesky, LDL -------------------------------------------------------------------------------------

void lapack_cholesky(const LaunchContext&, const View& a, bool upper, const View& info) {
  dispatch(LapackTypes{}, a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(a);
    const char triangle = upper ? 'U' : 'L';
    each_matrix(A.count, work_of(A), [&](int64_t i) {
      T* matrix = A[i];
      clear_other_triangle(A, matrix, upper);
      // As for LU: NaN is not positive.
      if (content(matrix, A.size()) == Content::Finite)
        call<T, "potrf">(&triangle, &A.n, matrix, &A.ld, vector<int>(info, i));
      else
        call<T, "potrf2">(&triangle, &A.n, matrix, &A.ld, vector<int>(info, i));
    });
  });
}

bool lapack_has_ldl(const LaunchContext&) { return true; }
void lapack_ldl(const LaunchContext&, const View& a, const View& pivots, bool hermitian, const View& info) {
  dispatch(LapackTypes{}, a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(a);
    const char lower = 'L';
    int done;
    auto factor = [&](T* matrix, int* steps, T* work, int* size, int* result) {
      if constexpr (kIsComplex<T>)
        if (hermitian) return call<T, "hetrf">(&lower, &A.n, matrix, &A.ld, steps, work, size, result);
      call<T, "sytrf">(&lower, &A.n, matrix, &A.ld, steps, work, size, result);
    };
    const int size = workspace<T>([&](T* w, int* s) { factor(A.data, nullptr, w, s, &done); });
    each_matrix(A.count, work_of(A), [&](int64_t i) {
      auto work = room<T>(size);
      int given = size;
      clear_other_triangle(A, A[i], false);
      factor(A[i], vector<int>(pivots, i), work.get(), &given, vector<int>(info, i));
    });
  });
}

void lapack_ldl_solve(const LaunchContext&, const View& a, const View& pivots, const View& b,
                      bool hermitian) {
  dispatch(LapackTypes{}, a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(a), B(b);
    const char lower = 'L';
    each_matrix(B.count, double(A.m) * double(B.size()), [&](int64_t i) {
      int done;
      int* steps = vector<int>(pivots, i);
      if constexpr (kIsComplex<T>)
        if (hermitian) return call<T, "hetrs">(&lower, &A.n, &B.n, A[i], &A.ld, steps, B[i], &B.ld, &done);
      call<T, "sytrs">(&lower, &A.n, &B.n, A[i], &A.ld, steps, B[i], &B.ld, &done);
    });
  });
}

// ---- QR ------------------------------------------------------------------------------------------------

void lapack_qr(const LaunchContext&, const View& a, const View& tau) {
  dispatch(LapackTypes{}, a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(a);
    int done;
    const int size = workspace<T>([&](T* w, int* s) {
      call<T, "geqrf">(&A.m, &A.n, A.data, &A.ld, static_cast<T*>(tau.data), w, s, &done);
    });
    each_matrix(A.count, 2 * work_of(A), [&](int64_t i) {
      if (A.m <= kSmallRows && A.n <= kSmallRows && is_moderate(A[i], A.size()))
        return factor_small_qr(A, A[i], vector<T>(tau, i));
      auto work = room<T>(size);
      int result;
      call<T, "geqrf">(&A.m, &A.n, A[i], &A.ld, vector<T>(tau, i), work.get(), &size, &result);
    });
  });
}

template <class T>
void form(const Matrices<T>& A, T* matrix, int k, T* tau, T* work, const int* size) {
  int done;
  if constexpr (kIsComplex<T>)
    call<T, "ungqr">(&A.m, &A.n, &k, matrix, &A.ld, tau, work, size, &done);
  else
    call<T, "orgqr">(&A.m, &A.n, &k, matrix, &A.ld, tau, work, size, &done);
}
void lapack_reflectors(const LaunchContext&, const View& a, const View& tau) {
  dispatch(LapackTypes{}, a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(a);
    const int k = static_cast<int>(tau.sizes[1]);
    const int size = workspace<T>([&](T* w, int* s) { form(A, A.data, k, tau.as<T>(), w, s); });
    each_matrix(A.count, 2 * work_of(A), [&](int64_t i) {
      if (A.m <= kSmallRows) return form_small_q(A, A[i], k, vector<T>(tau, i));
      auto work = room<T>(size);
      form(A, A[i], k, vector<T>(tau, i), work.get(), &size);
    });
  });
}

template <class T>
void multiply(const Matrices<T>& A, T* a, int k, T* tau, const Matrices<T>& C, T* c, bool left, bool adjoint,
              T* work, const int* size) {
  const char side = left ? 'L' : 'R', none = 'N', turned = kIsComplex<T> ? 'C' : 'T';
  const char* which = adjoint ? &turned : &none;
  int done;
  const char* at = &side;
  if constexpr (kIsComplex<T>)
    call<T, "unmqr">(at, which, &C.m, &C.n, &k, a, &A.ld, tau, c, &C.ld, work, size, &done);
  else
    call<T, "ormqr">(at, which, &C.m, &C.n, &k, a, &A.ld, tau, c, &C.ld, work, size, &done);
}
void lapack_multiply_reflectors(const LaunchContext&, const View& a, const View& tau, const View& c,
                                bool left, bool adjoint) {
  dispatch(LapackTypes{}, a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Matrices<T> A(a), C(c);
    const int k = static_cast<int>(tau.sizes[1]);
    const int size = workspace<T>(
        [&](T* w, int* s) { multiply(A, A.data, k, tau.as<T>(), C, C.data, left, adjoint, w, s); });
    each_matrix(A.count, 2.0 * k * double(C.size()), [&](int64_t i) {
      auto work = room<T>(size);
      multiply(A, A[i], k, vector<T>(tau, i), C, C[i], left, adjoint, work.get(), &size);
    });
  });
}

}  // namespace

WT_KERNEL(linalg_lu, lapack_lu);
WT_KERNEL(linalg_solve, lapack_solve);
WT_KERNEL(linalg_lu_solve, lapack_lu_solve);
WT_KERNEL(linalg_determinant, lapack_determinant);
WT_KERNEL(linalg_triangular, lapack_triangular);
WT_KERNEL(linalg_cholesky, lapack_cholesky);
WT_KERNEL(linalg_has_ldl, lapack_has_ldl);
WT_KERNEL(linalg_ldl, lapack_ldl);
WT_KERNEL(linalg_ldl_solve, lapack_ldl_solve);
WT_KERNEL(linalg_qr, lapack_qr);
WT_KERNEL(linalg_reflectors, lapack_reflectors);
WT_KERNEL(linalg_multiply_reflectors, lapack_multiply_reflectors);

}  // namespace cpu
}  // namespace warptape::kernels
