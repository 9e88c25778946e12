// In place of cuSOLVER, computed by the CPU's kernels, which LAPACK does. A call is checked when it is made,
// by what the documentation demands: sizes and leading dims, types that go together, memory that is there and
// on the handle's device, work memory of the size that was asked for. Then it is one task of its stream,
// which leaves nothing in work memory or in inputs that the routine destroys.
#include "cusolver_host.h"

namespace {

using namespace emulator::solver;
// What a routine asks for: of no use here, but it must be there.
int work_numbers(int m, int n) { return m + n + 7; }
cusolverStatus_t tell_size(bool valid, int* lwork, int m, int n) {
  if (!valid || !lwork) return kInvalid;
  *lwork = work_numbers(m, n);
  return kOk;
}
template <class T>
bool is_work(cusolverDnHandle_t handle, const T* work, int lwork, int m, int n) {
  return lwork >= work_numbers(m, n) && is_memory(handle->device, work, lwork);
}

// ---- factors -------------------------------------------------------------------------------------------

// Reads and writes one triangle.
template <class T>
void factor_cholesky(T* a, int n, int lda, bool upper, int* info) {
  static Slot<CholeskyFn> cholesky{"linalg_cholesky"};
  Dense<T> dense(a, n, n, lda);
  on_cpu(cholesky, View(dense), upper, View(Row<int>(info, 0)));
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = upper ? 0 : j; i < (upper ? j + 1 : n); ++i) a[j * lda + i] = dense(i, j);
}
template <class T>
cusolverStatus_t potrf(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, T* a, int lda, T* work,
                       int lwork, int* info) {
  auto held = emulator::lock();
  if (!is_handle(handle) || !is_fill(uplo) || !is_matrix(handle->device, a, n, n, lda) ||
      !is_work(handle, work, lwork, n, n) || !is_memory(handle->device, info, 1))
    return kInvalid;
  return run(handle, [=] {
    factor_cholesky(own(a), n, lda, uplo == CUBLAS_FILL_MODE_UPPER, info);
    spoil(work, size_t(lwork) * sizeof(T));
  });
}
template <class T>
cusolverStatus_t potrf_batched(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, T** a, int lda,
                               int* info, int count) {
  auto held = emulator::lock();
  if (!is_handle(handle) || !is_fill(uplo) || n < 0 || lda < std::max(n, 1) || count < 0 ||
      !is_memory(handle->device, a, count) || !is_memory(handle->device, info, count))
    return kInvalid;
  return run(handle, [=, device = handle->device] {
    for (int i = 0; i < count; ++i) {
      if (!is_matrix(device, a[i], n, n, lda))
        emulator::die("cuSOLVER: potrfBatched, matrix %d at %p is not %d by %d numbers of device %d", i,
                      static_cast<void*>(a[i]), n, n, device);
      factor_cholesky(own(a[i]), n, lda, uplo == CUBLAS_FILL_MODE_UPPER, info + i);
    }
  });
}

// getrf is given no size: its work memory must hold what was asked for.
template <class T>
cusolverStatus_t getrf(cusolverDnHandle_t handle, int m, int n, T* a, int lda, T* work, int* pivots,
                       int* info) {
  auto held = emulator::lock();
  if (!is_handle(handle) || !is_matrix(handle->device, a, m, n, lda) ||
      !is_memory(handle->device, work, work_numbers(m, n)) ||
      (pivots && !is_memory(handle->device, pivots, std::min(m, n))) || !is_memory(handle->device, info, 1))
    return kInvalid;
  return run(handle, [=] {
    factor_lu(own(a), m, n, lda, pivots, info);
    spoil(work, size_t(work_numbers(m, n)) * sizeof(T));
  });
}
template <class T>
cusolverStatus_t getrs(cusolverDnHandle_t handle, cublasOperation_t trans, int n, int nrhs, const T* a,
                       int lda, const int* pivots, T* b, int ldb, int* info) {
  auto held = emulator::lock();
  if (!is_handle(handle) || nrhs < 0 || !is_matrix(handle->device, a, n, n, lda) ||
      !is_matrix(handle->device, b, n, nrhs, ldb) || !is_memory(handle->device, pivots, n) ||
      !is_memory(handle->device, info, 1))
    return kInvalid;
  if (trans != CUBLAS_OP_N) return CUSOLVER_STATUS_NOT_SUPPORTED;
  return run(handle, [=] {
    Dense<Own<T>> lu(own(a), n, n, lda), x(own(b), n, nrhs, ldb);
    solve_by_lu(lu, pivots, x);
    x.store(own(b), ldb);
    *info = 0;
  });
}

// ---- reflectors ----------------------------------------------------------------------------------------

template <class T>
cusolverStatus_t geqrf(cusolverDnHandle_t handle, int m, int n, T* a, int lda, T* tau, T* work, int lwork,
                       int* info) {
  auto held = emulator::lock();
  if (!is_handle(handle) || !is_matrix(handle->device, a, m, n, lda) ||
      !is_memory(handle->device, tau, std::min(m, n)) || !is_work(handle, work, lwork, m, n) ||
      !is_memory(handle->device, info, 1))
    return kInvalid;
  return run(handle, [=] {
    static Slot<QrFn> qr{"linalg_qr"};
    Dense<Own<T>> dense(own(a), m, n, lda);
    on_cpu(qr, View(dense), View(Row<Own<T>>(own(tau), std::min(m, n))));
    dense.store(own(a), lda);
    spoil(work, size_t(lwork) * sizeof(T));
    *info = 0;
  });
}

bool forms(int m, int n, int k) { return m >= n && n >= k && k >= 0; }
template <class T>
cusolverStatus_t form(cusolverDnHandle_t handle, int m, int n, int k, T* a, int lda, const T* tau, T* work,
                      int lwork, int* info) {
  auto held = emulator::lock();
  if (!is_handle(handle) || !forms(m, n, k) || !is_matrix(handle->device, a, m, n, lda) ||
      !is_memory(handle->device, tau, k) || !is_work(handle, work, lwork, m, n) ||
      !is_memory(handle->device, info, 1))
    return kInvalid;
  return run(handle, [=] {
    static Slot<ReflectorsFn> reflectors{"linalg_reflectors"};
    Dense<Own<T>> dense(own(a), m, n, lda);
    on_cpu(reflectors, View(dense), View(Row<const Own<T>>(own(tau), k)));
    dense.store(own(a), lda);
    spoil(work, size_t(lwork) * sizeof(T));
    *info = 0;
  });
}

// Of a real matrix the transpose is asked for, of a complex one the adjoint.
template <class T>
bool multiplies(cublasOperation_t trans, bool left, int m, int n, int k) {
  constexpr bool kReal = std::is_arithmetic_v<T>;
  return (trans == CUBLAS_OP_N || trans == (kReal ? CUBLAS_OP_T : CUBLAS_OP_C)) && m >= 0 && n >= 0 &&
         k >= 0 && k <= (left ? m : n);
}
template <class T>
cusolverStatus_t multiply(cusolverDnHandle_t handle, cublasSideMode_t side, cublasOperation_t trans, int m,
                          int n, int k, const T* a, int lda, const T* tau, T* c, int ldc, T* work, int lwork,
                          int* info) {
  auto held = emulator::lock();
  const bool left = side == CUBLAS_SIDE_LEFT;
  const int rows = left ? m : n;
  if (!is_handle(handle) || !multiplies<T>(trans, left, m, n, k) ||
      !is_matrix(handle->device, a, rows, k, lda) || !is_memory(handle->device, tau, k) ||
      !is_matrix(handle->device, c, m, n, ldc) || !is_work(handle, work, lwork, m, n) ||
      !is_memory(handle->device, info, 1))
    return kInvalid;
  return run(handle, [=] {
    static Slot<MultiplyReflectorsFn> by_reflectors{"linalg_multiply_reflectors"};
    Dense<Own<T>> q(own(a), rows, k, lda), x(own(c), m, n, ldc);
    on_cpu(by_reflectors, View(q), View(Row<const Own<T>>(own(tau), k)), View(x), left, trans != CUBLAS_OP_N);
    x.store(own(c), ldc);
    spoil(work, size_t(lwork) * sizeof(T));
    *info = 0;
  });
}

// ---- singular values -----------------------------------------------------------------------------------

template <class T, class R>
struct Svd {
  bool vectors, economic;
  int m, n, lda, ldu, ldv;
  int least() const { return std::min(m, n); }
  int columns_u() const { return economic ? least() : m; }
  int columns_v() const { return economic ? least() : n; }
  bool agrees() const {
    return m >= 0 && n >= 0 && lda >= std::max(m, 1) && ldu >= std::max(m, 1) && ldv >= std::max(n, 1);
  }
  bool is_memory_of(int device, const T* a, const R* s, const T* u, const T* v, const int* info,
                    int count) const {
    auto all = [&](const T* p, int64_t ld, int64_t columns) {
      return is_memory(device, p, ld * columns * count);
    };
    return all(a, lda, n) && is_memory(device, s, int64_t{least()} * count) &&
           is_memory(device, info, count) &&
           (!vectors || (all(u, ldu, columns_u()) && all(v, ldv, columns_v())));
  }

  // V, and not its adjoint.
  void operator()(T* a, R* s, T* u, T* v, int* info) const {
    static Slot<SvdFn> svd{"linalg_svd"};
    using O = Own<T>;
    Dense<O> dense(own(a), m, n, lda), left(m, columns_u()), right(columns_v(), n);
    const View none{nullptr, nullptr, nullptr, 0, dtype_of<O>};
    on_cpu(svd, View(dense), vectors ? View(left) : none, View(Row<R>(s, least())),
           vectors ? View(right) : none, View(Row<int>(info, 0)));
    for (int j = 0; j < n; ++j) spoil(a + int64_t{j} * lda, size_t(m) * sizeof(T));
    if (!vectors) return;
    left.store(own(u), ldu);
    turned(right, true, true).store(own(v), ldv);
  }
};

template <class T, class R>
cusolverStatus_t gesvdj(cusolverDnHandle_t handle, const Svd<T, R>& svd, T* a, R* s, T* u, T* v, T* work,
                        int lwork, int* info, gesvdjInfo_t params, int count) {
  auto held = emulator::lock();
  if (!is_handle(handle) || !params || count < 0 || !svd.agrees() ||
      !svd.is_memory_of(handle->device, a, s, u, v, info, count) ||
      !is_work(handle, work, lwork, svd.m, svd.n))
    return kInvalid;
  return run(handle, [=] {
    for (int64_t i = 0; i < count; ++i)
      svd(a + i * svd.lda * svd.n, s + i * svd.least(), u + i * svd.ldu * svd.columns_u(),
          v + i * svd.ldv * svd.columns_v(), info + i);
    spoil(work, size_t(lwork) * sizeof(T));
  });
}
constexpr int kBatchedMost = 32;

// ---- eigenvalues ---------------------------------------------------------------------------------------

// Eigenvalues are real, vectors come in place of A.
struct Eigh {
  cusolverEigMode_t job;
  cublasFillMode_t uplo;
  int64_t n, lda;
  cudaDataType type, values, compute;
  bool agrees() const {
    return n >= 0 && lda >= std::max<int64_t>(n, 1) && is_fill(uplo) && is_type(type) && compute == type &&
           is_real(values) && is_double(values) == is_double(type);
  }
  size_t item() const { return itemsize(dtype_of_library(type)); }

  void operator()(void* a, void* w, int* info) const {
    by_type(type, [&](auto t) {
      using T = typename decltype(t)::type;
      using R = typename PartOf<T>::type;
      static Slot<EighFn> eigh{"linalg_eigh"};
      auto* matrix = static_cast<T*>(a);
      Dense<T> dense(matrix, n, n, lda);
      on_cpu(eigh, View(dense), View(Row<R>(static_cast<R*>(w), n)), uplo == CUBLAS_FILL_MODE_UPPER,
             job == CUSOLVER_EIG_MODE_VECTOR, View(Row<int>(info, 0)));
      if (job != CUSOLVER_EIG_MODE_VECTOR) spoil(dense.numbers.data(), dense.numbers.size() * sizeof(T));
      dense.store(matrix, lda);
    });
  }
};
cusolverStatus_t run_eigh(cusolverDnHandle_t handle, cusolverDnParams_t params, const Eigh& eigh, void* a,
                          void* w, const Buffers& work, int* info, int64_t count) {
  auto held = emulator::lock();
  if (!is_handle(handle) || !params || count < 0 || !eigh.agrees()) return kInvalid;
  const size_t step = size_t(eigh.lda * eigh.n) * eigh.item(),
               row = size_t(eigh.n) * itemsize(dtype_of_library(eigh.values));
  if (!emulator::lies_on(handle->device, a, step * size_t(count)) ||
      !emulator::lies_on(handle->device, w, row * size_t(count)) || !is_memory(handle->device, info, count) ||
      !work.suit(handle->device, eigh.n * count))
    return kInvalid;
  spoil(work.on_host, work.host_bytes);
  return run(handle, [=] {
    for (size_t i = 0; i < size_t(count); ++i)
      eigh(static_cast<char*>(a) + i * step, static_cast<char*>(w) + i * row, info + i);
    spoil(work.on_device, work.device_bytes);
  });
}

// Eigenvalues are complex, or real and imaginary parts one behind the other, which nobody asks for here.
// There are no left vectors. The right ones of a real matrix are real: pairs are two columns.
struct Eig {
  cusolverEigMode_t left, right;
  int64_t n, lda, ldvl, ldvr;
  cudaDataType type, values, type_vl, type_vr, compute;
  bool agrees() const {
    return left == CUSOLVER_EIG_MODE_NOVECTOR && n >= 0 && lda >= std::max<int64_t>(n, 1) && ldvl >= 1 &&
           ldvr >= (right == CUSOLVER_EIG_MODE_VECTOR ? std::max<int64_t>(n, 1) : 1) && is_type(type) &&
           !is_real(values) && is_double(values) == is_double(type) && type_vl == type && type_vr == type &&
           compute == type;
  }

  void operator()(void* a, void* w, void* vr, int* info) const {
    by_type(type, [&](auto t) {
      using T = typename decltype(t)::type;
      using C = Complex<typename PartOf<T>::type>;
      static Slot<EigFn> eig{"linalg_eig"};
      Dense<T> dense(static_cast<T*>(a), n, n, lda);
      Dense<C> vectors(n, n);
      auto* all = static_cast<C*>(w);
      const bool wanted = right == CUSOLVER_EIG_MODE_VECTOR;
      on_cpu(eig, View(dense), View(Row<C>(all, n)),
             wanted ? View(vectors) : View{nullptr, nullptr, nullptr, 0, dtype_of<C>},
             View(Row<int>(info, 0)));
      spoil(dense.numbers.data(), dense.numbers.size() * sizeof(T));
      dense.store(static_cast<T*>(a), lda);
      if (!wanted) return;
      if constexpr (std::is_same_v<T, C>) {
        vectors.store(static_cast<T*>(vr), ldvr);
      } else {
        Dense<T> parts(n, n);
        for (int64_t j = 0; j < n; ++j)
          for (int64_t i = 0; i < n; ++i)
            parts(i, j) = all[j].im < 0 ? vectors(i, j - 1).im : vectors(i, j).re;
        parts.store(static_cast<T*>(vr), ldvr);
      }
    });
  }
};
cusolverStatus_t run_eig(cusolverDnHandle_t handle, cusolverDnParams_t params, const Eig& eig, void* a,
                         void* w, void* vr, const Buffers& work, int* info) {
  auto held = emulator::lock();
  if (!is_handle(handle) || !params || !eig.agrees()) return kInvalid;
  const size_t item = itemsize(dtype_of_library(eig.type)), n = size_t(eig.n);
  const bool wanted = eig.right == CUSOLVER_EIG_MODE_VECTOR;
  if (!emulator::lies_on(handle->device, a, size_t(eig.lda) * n * item) ||
      !emulator::lies_on(handle->device, w, n * itemsize(dtype_of_library(eig.values))) ||
      (wanted && !emulator::lies_on(handle->device, vr, size_t(eig.ldvr) * n * item)) ||
      !is_memory(handle->device, info, 1) || !work.suit(handle->device, eig.n))
    return kInvalid;
  return run(handle, [=] {
    spoil(work.on_host, work.host_bytes);  // work memory on both sides is in use until the stream is done
    eig(a, w, vr, info);
    spoil(work.on_device, work.device_bytes);
  });
}

}  // namespace

extern "C" {

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* handle) {
  auto held = emulator::lock();
  if (emulator::unsafe_call() != cudaSuccess) return CUSOLVER_STATUS_NOT_INITIALIZED;
  *handle = new cusolverDnContext{emulator::current_device(), nullptr};
  return kOk;
}
cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle) {
  delete handle;
  return kOk;
}
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return kOk;
}
cusolverStatus_t cusolverDnCreateParams(cusolverDnParams_t* params) {
  *params = new cusolverDnParams;
  return kOk;
}
cusolverStatus_t cusolverDnCreateGesvdjInfo(gesvdjInfo_t* info) {
  *info = new gesvdjInfo;
  return kOk;
}

#define WT_CUSOLVER_FACTORS(L, T)                                                                            \
  cusolverStatus_t cusolverDn##L##potrf_bufferSize(cusolverDnHandle_t, cublasFillMode_t uplo, int n, T*,     \
                                                   int lda, int* lwork) {                                    \
    return tell_size(is_fill(uplo) && n >= 0 && lda >= std::max(n, 1), lwork, n, n);                         \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##L##potrf(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, T* a,       \
                                        int lda, T* work, int lwork, int* info) {                            \
    return potrf(handle, uplo, n, a, lda, work, lwork, info);                                                \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##L##potrfBatched(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n,      \
                                               T* a[], int lda, int* info, int count) {                      \
    return potrf_batched(handle, uplo, n, a, lda, info, count);                                              \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##L##getrf_bufferSize(cusolverDnHandle_t, int m, int n, T*, int lda,            \
                                                   int* lwork) {                                             \
    return tell_size(m >= 0 && n >= 0 && lda >= std::max(m, 1), lwork, m, n);                                \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##L##getrf(cusolverDnHandle_t handle, int m, int n, T* a, int lda, T* work,     \
                                        int* pivots, int* info) {                                            \
    return getrf(handle, m, n, a, lda, work, pivots, info);                                                  \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##L##getrs(cusolverDnHandle_t handle, cublasOperation_t trans, int n, int nrhs, \
                                        const T* a, int lda, const int* pivots, T* b, int ldb, int* info) {  \
    return getrs(handle, trans, n, nrhs, a, lda, pivots, b, ldb, info);                                      \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##L##geqrf_bufferSize(cusolverDnHandle_t, int m, int n, T*, int lda,            \
                                                   int* lwork) {                                             \
    return tell_size(m >= 0 && n >= 0 && lda >= std::max(m, 1), lwork, m, n);                                \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##L##geqrf(cusolverDnHandle_t handle, int m, int n, T* a, int lda, T* tau,      \
                                        T* work, int lwork, int* info) {                                     \
    return geqrf(handle, m, n, a, lda, tau, work, lwork, info);                                              \
  }
WT_CUSOLVER_FACTORS(S, float)
WT_CUSOLVER_FACTORS(D, double)
WT_CUSOLVER_FACTORS(C, cuComplex)
WT_CUSOLVER_FACTORS(Z, cuDoubleComplex)

#define WT_CUSOLVER_REFLECTORS(Q, T)                                                                         \
  cusolverStatus_t cusolverDn##Q##gqr_bufferSize(cusolverDnHandle_t, int m, int n, int k, const T*, int lda, \
                                                 const T*, int* lwork) {                                     \
    return tell_size(forms(m, n, k) && lda >= std::max(m, 1), lwork, m, n);                                  \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##Q##gqr(cusolverDnHandle_t handle, int m, int n, int k, T* a, int lda,         \
                                      const T* tau, T* work, int lwork, int* info) {                         \
    return form(handle, m, n, k, a, lda, tau, work, lwork, info);                                            \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##Q##mqr_bufferSize(cusolverDnHandle_t, cublasSideMode_t side,                  \
                                                 cublasOperation_t trans, int m, int n, int k, const T*,     \
                                                 int lda, const T*, const T*, int ldc, int* lwork) {         \
    const bool left = side == CUBLAS_SIDE_LEFT;                                                              \
    return tell_size(                                                                                        \
        multiplies<T>(trans, left, m, n, k) && lda >= std::max(left ? m : n, 1) && ldc >= std::max(m, 1),    \
        lwork, m, n);                                                                                        \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##Q##mqr(cusolverDnHandle_t handle, cublasSideMode_t side,                      \
                                      cublasOperation_t trans, int m, int n, int k, const T* a, int lda,     \
                                      const T* tau, T* c, int ldc, T* work, int lwork, int* info) {          \
    return multiply(handle, side, trans, m, n, k, a, lda, tau, c, ldc, work, lwork, info);                   \
  }
WT_CUSOLVER_REFLECTORS(Sor, float)
WT_CUSOLVER_REFLECTORS(Dor, double)
WT_CUSOLVER_REFLECTORS(Cun, cuComplex)
WT_CUSOLVER_REFLECTORS(Zun, cuDoubleComplex)

#define WT_CUSOLVER_SVD(L, T, R)                                                                             \
  cusolverStatus_t cusolverDn##L##gesvdj_bufferSize(                                                         \
      cusolverDnHandle_t, cusolverEigMode_t jobz, int econ, int m, int n, const T*, int lda, const R*,       \
      const T*, int ldu, const T*, int ldv, int* lwork, gesvdjInfo_t params) {                               \
    const Svd<T, R> svd{jobz == CUSOLVER_EIG_MODE_VECTOR, econ != 0, m, n, lda, ldu, ldv};                   \
    return tell_size(params && svd.agrees(), lwork, m, n);                                                   \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##L##gesvdj(cusolverDnHandle_t handle, cusolverEigMode_t jobz, int econ, int m, \
                                         int n, T* a, int lda, R* s, T* u, int ldu, T* v, int ldv, T* work,  \
                                         int lwork, int* info, gesvdjInfo_t params) {                        \
    const Svd<T, R> svd{jobz == CUSOLVER_EIG_MODE_VECTOR, econ != 0, m, n, lda, ldu, ldv};                   \
    return gesvdj(handle, svd, a, s, u, v, work, lwork, info, params, 1);                                    \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##L##gesvdjBatched_bufferSize(                                                  \
      cusolverDnHandle_t, cusolverEigMode_t jobz, int m, int n, const T*, int lda, const R*, const T*,       \
      int ldu, const T*, int ldv, int* lwork, gesvdjInfo_t params, int count) {                              \
    const Svd<T, R> svd{jobz == CUSOLVER_EIG_MODE_VECTOR, false, m, n, lda, ldu, ldv};                       \
    return tell_size(params && svd.agrees() && count >= 0 && std::max(m, n) <= kBatchedMost, lwork, m, n);   \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##L##gesvdjBatched(                                                             \
      cusolverDnHandle_t handle, cusolverEigMode_t jobz, int m, int n, T* a, int lda, R* s, T* u, int ldu,   \
      T* v, int ldv, T* work, int lwork, int* info, gesvdjInfo_t params, int count) {                        \
    const Svd<T, R> svd{jobz == CUSOLVER_EIG_MODE_VECTOR, false, m, n, lda, ldu, ldv};                       \
    if (std::max(m, n) > kBatchedMost) return kInvalid;                                                      \
    return gesvdj(handle, svd, a, s, u, v, work, lwork, info, params, count);                                \
  }
WT_CUSOLVER_SVD(S, float, float)
WT_CUSOLVER_SVD(D, double, double)
WT_CUSOLVER_SVD(C, cuComplex, float)
WT_CUSOLVER_SVD(Z, cuDoubleComplex, double)

cusolverStatus_t cusolverDnXsyevd_bufferSize(cusolverDnHandle_t, cusolverDnParams_t params,
                                             cusolverEigMode_t jobz, cublasFillMode_t uplo, int64_t n,
                                             cudaDataType type_a, const void*, int64_t lda,
                                             cudaDataType type_w, const void*, cudaDataType compute,
                                             size_t* device_bytes, size_t* host_bytes) {
  const Eigh eigh{jobz, uplo, n, lda, type_a, type_w, compute};
  return tell_bytes(params && eigh.agrees(), device_bytes, host_bytes, n);
}
cusolverStatus_t cusolverDnXsyevd(cusolverDnHandle_t handle, cusolverDnParams_t params,
                                  cusolverEigMode_t jobz, cublasFillMode_t uplo, int64_t n,
                                  cudaDataType type_a, void* a, int64_t lda, cudaDataType type_w, void* w,
                                  cudaDataType compute, void* on_device, size_t device_bytes, void* on_host,
                                  size_t host_bytes, int* info) {
  return run_eigh(handle, params, {jobz, uplo, n, lda, type_a, type_w, compute}, a, w,
                  {on_device, device_bytes, on_host, host_bytes}, info, 1);
}
cusolverStatus_t cusolverDnXsyevBatched_bufferSize(cusolverDnHandle_t, cusolverDnParams_t params,
                                                   cusolverEigMode_t jobz, cublasFillMode_t uplo, int64_t n,
                                                   cudaDataType type_a, const void*, int64_t lda,
                                                   cudaDataType type_w, const void*, cudaDataType compute,
                                                   size_t* device_bytes, size_t* host_bytes, int64_t count) {
  const Eigh eigh{jobz, uplo, n, lda, type_a, type_w, compute};
  return tell_bytes(params && eigh.agrees() && count >= 0, device_bytes, host_bytes, n * count);
}
cusolverStatus_t cusolverDnXsyevBatched(cusolverDnHandle_t handle, cusolverDnParams_t params,
                                        cusolverEigMode_t jobz, cublasFillMode_t uplo, int64_t n,
                                        cudaDataType type_a, void* a, int64_t lda, cudaDataType type_w,
                                        void* w, cudaDataType compute, void* on_device, size_t device_bytes,
                                        void* on_host, size_t host_bytes, int* info, int64_t count) {
  return run_eigh(handle, params, {jobz, uplo, n, lda, type_a, type_w, compute}, a, w,
                  {on_device, device_bytes, on_host, host_bytes}, info, count);
}
cusolverStatus_t cusolverDnXgeev_bufferSize(cusolverDnHandle_t, cusolverDnParams_t params,
                                            cusolverEigMode_t left, cusolverEigMode_t right, int64_t n,
                                            cudaDataType type_a, const void*, int64_t lda,
                                            cudaDataType type_w, const void*, cudaDataType type_vl,
                                            const void*, int64_t ldvl, cudaDataType type_vr, const void*,
                                            int64_t ldvr, cudaDataType compute, size_t* device_bytes,
                                            size_t* host_bytes) {
  const Eig eig{left, right, n, lda, ldvl, ldvr, type_a, type_w, type_vl, type_vr, compute};
  return tell_bytes(params && eig.agrees(), device_bytes, host_bytes, n);
}
cusolverStatus_t cusolverDnXgeev(cusolverDnHandle_t handle, cusolverDnParams_t params, cusolverEigMode_t left,
                                 cusolverEigMode_t right, int64_t n, cudaDataType type_a, void* a,
                                 int64_t lda, cudaDataType type_w, void* w, cudaDataType type_vl, void*,
                                 int64_t ldvl, cudaDataType type_vr, void* vr, int64_t ldvr,
                                 cudaDataType compute, void* on_device, size_t device_bytes, void* on_host,
                                 size_t host_bytes, int* info) {
  return run_eig(handle, params, {left, right, n, lda, ldvl, ldvr, type_a, type_w, type_vl, type_vr, compute},
                 a, w, vr, {on_device, device_bytes, on_host, host_bytes}, info);
}

}  // extern "C"
