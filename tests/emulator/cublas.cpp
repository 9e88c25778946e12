// In place of cuBLAS. A call is checked when it is made; arrays of pointers lie in device memory and are read
// when the call runs, where a pointer that is not the device's, or a matrix beyond its memory, ends the
// process.
#include "cublas_v2.h"

#include "solver_host.h"

struct cublasContext {
  int device;
  cudaStream_t stream;
};

namespace {

using namespace emulator::solver;
constexpr auto kOk = CUBLAS_STATUS_SUCCESS;
constexpr auto kInvalid = CUBLAS_STATUS_INVALID_VALUE;

bool is_handle(cublasHandle_t handle) {
  return handle && emulator::current_device() == handle->device && emulator::resolve(handle->stream) &&
         emulator::resolve(handle->stream)->device == handle->device;
}
cublasStatus_t run(cublasHandle_t handle, emulator::Work work) {
  return emulator::enqueue(handle->stream, std::move(work)) == cudaSuccess ? kOk
                                                                           : CUBLAS_STATUS_EXECUTION_FAILED;
}
// The i-th matrix of an array of pointers, when the call runs.
template <class T>
T* matrix_at(int device, T* const* all, int i, int64_t rows, int64_t columns, int64_t ld, const char* what) {
  if (!is_matrix(device, all[i], rows, columns, ld))
    emulator::die("cuBLAS: %s, matrix %d at %p is not %ld by %ld numbers of device %d", what, i,
                  static_cast<const void*>(all[i]), long(rows), long(columns), device);
  return all[i];
}

struct Triangular {
  bool left, upper, transpose, adjoint, unit;
  int m, n;
  int rows() const { return left ? m : n; }  // of A
  bool agrees(int lda, int ldb) const {
    return m >= 0 && n >= 0 && lda >= std::max(rows(), 1) && ldb >= std::max(m, 1);
  }

  template <class T>
  void operator()(const T* a, int lda, T* b, int ldb, T alpha) const {
    static Slot<TriangularFn> triangular{"linalg_triangular"};
    Dense<T> given(a, rows(), rows(), lda), x(b, m, n, ldb), turn = turned(given, transpose, adjoint);
    for (T& number : x.numbers) number = alpha * number;
    on_cpu(triangular, View(turn), View(x), left, upper != transpose, unit);
    x.store(b, ldb);
  }
};
Triangular triangular_of(cublasSideMode_t side, cublasFillMode_t uplo, cublasOperation_t trans,
                         cublasDiagType_t diag, int m, int n) {
  return {side == CUBLAS_SIDE_LEFT,
          uplo == CUBLAS_FILL_MODE_UPPER,
          trans != CUBLAS_OP_N,
          trans == CUBLAS_OP_C,
          diag == CUBLAS_DIAG_UNIT,
          m,
          n};
}

template <class T>
cublasStatus_t trsm(cublasHandle_t handle, const Triangular& t, const T* alpha, const T* a, int lda, T* b,
                    int ldb) {
  auto held = emulator::lock();
  if (!is_handle(handle) || !alpha || !t.agrees(lda, ldb) ||
      !is_matrix(handle->device, a, t.rows(), t.rows(), lda) || !is_matrix(handle->device, b, t.m, t.n, ldb))
    return kInvalid;
  return run(handle, [=, scale = *own(alpha)] { t(own(a), lda, own(b), ldb, scale); });
}

template <class T>
cublasStatus_t trsm_batched(cublasHandle_t handle, const Triangular& t, const T* alpha, const T* const* a,
                            int lda, T* const* b, int ldb, int count) {
  auto held = emulator::lock();
  if (!is_handle(handle) || !alpha || count < 0 || !t.agrees(lda, ldb) ||
      !is_memory(handle->device, a, count) || !is_memory(handle->device, b, count))
    return kInvalid;
  return run(handle, [=, scale = *own(alpha), device = handle->device] {
    for (int i = 0; i < count; ++i)
      t(own(matrix_at(device, a, i, t.rows(), t.rows(), lda, "trsmBatched")), lda,
        own(matrix_at(device, b, i, t.m, t.n, ldb, "trsmBatched")), ldb, scale);
  });
}

template <class T>
cublasStatus_t getrf_batched(cublasHandle_t handle, int n, T* const* a, int lda, int* pivots, int* info,
                             int count) {
  auto held = emulator::lock();
  if (!is_handle(handle) || n < 0 || count < 0 || lda < std::max(n, 1) ||
      !is_memory(handle->device, a, count) ||
      (pivots && !is_memory(handle->device, pivots, int64_t{n} * count)) ||
      !is_memory(handle->device, info, count))
    return kInvalid;
  return run(handle, [=, device = handle->device] {
    for (int i = 0; i < count; ++i)
      factor_lu(own(matrix_at(device, a, i, n, n, lda, "getrfBatched")), n, n, lda,
                pivots ? pivots + i * n : nullptr, info + i);
  });
}

// info lies on the host and tells of arguments alone.
template <class T>
cublasStatus_t getrs_batched(cublasHandle_t handle, cublasOperation_t trans, int n, int nrhs,
                             const T* const* a, int lda, const int* pivots, T* const* b, int ldb, int* info,
                             int count) {
  auto held = emulator::lock();
  if (!info || emulator::place_of(info).device >= 0) return kInvalid;
  *info = 0;
  if (trans != CUBLAS_OP_N) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!is_handle(handle) || n < 0 || nrhs < 0 || count < 0 || lda < std::max(n, 1) || ldb < std::max(n, 1) ||
      !is_memory(handle->device, a, count) || !is_memory(handle->device, b, count) ||
      !is_memory(handle->device, pivots, int64_t{n} * count))
    return kInvalid;
  return run(handle, [=, device = handle->device] {
    for (int i = 0; i < count; ++i) {
      Dense<Own<T>> lu(own(matrix_at(device, a, i, n, n, lda, "getrsBatched")), n, n, lda);
      auto* at = own(matrix_at(device, b, i, n, nrhs, ldb, "getrsBatched"));
      Dense<Own<T>> x(at, n, nrhs, ldb);
      solve_by_lu(lu, pivots + i * n, x);
      x.store(at, ldb);
    }
  });
}

// As getrs_batched's, info lies on the host.
template <class T>
cublasStatus_t geqrf_batched(cublasHandle_t handle, int m, int n, T* const* a, int lda, T* const* tau,
                             int* info, int count) {
  auto held = emulator::lock();
  if (!info || emulator::place_of(info).device >= 0) return kInvalid;
  *info = 0;
  if (!is_handle(handle) || m < 0 || n < 0 || count < 0 || lda < std::max(m, 1) ||
      !is_memory(handle->device, a, count) || !is_memory(handle->device, tau, count))
    return kInvalid;
  return run(handle, [=, device = handle->device] {
    static Slot<QrFn> qr{"linalg_qr"};
    const int k = std::min(m, n);
    for (int i = 0; i < count; ++i) {
      auto* at = own(matrix_at(device, a, i, m, n, lda, "geqrfBatched"));
      auto* row = own(matrix_at(device, tau, i, k, 1, std::max(k, 1), "geqrfBatched (tau)"));
      Dense<Own<T>> dense(at, m, n, lda);
      on_cpu(qr, View(dense), View(Row<Own<T>>(row, k)));
      dense.store(at, lda);
    }
  });
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  auto held = emulator::lock();
  if (emulator::unsafe_call() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasContext{emulator::current_device(), nullptr};
  return kOk;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return kOk;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return kOk;
}

#define WT_CUBLAS(L, T)                                                                                      \
  cublasStatus_t cublas##L##trsm(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo,        \
                                 cublasOperation_t trans, cublasDiagType_t diag, int m, int n,               \
                                 const T* alpha, const T* a, int lda, T* b, int ldb) {                       \
    return trsm(handle, triangular_of(side, uplo, trans, diag, m, n), alpha, a, lda, b, ldb);                \
  }                                                                                                          \
  cublasStatus_t cublas##L##trsmBatched(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo, \
                                        cublasOperation_t trans, cublasDiagType_t diag, int m, int n,        \
                                        const T* alpha, const T* const a[], int lda, T* const b[], int ldb,  \
                                        int count) {                                                         \
    return trsm_batched(handle, triangular_of(side, uplo, trans, diag, m, n), alpha, a, lda, b, ldb, count); \
  }                                                                                                          \
  cublasStatus_t cublas##L##getrfBatched(cublasHandle_t handle, int n, T* const a[], int lda, int* pivots,   \
                                         int* info, int count) {                                             \
    return getrf_batched(handle, n, a, lda, pivots, info, count);                                            \
  }                                                                                                          \
  cublasStatus_t cublas##L##getrsBatched(cublasHandle_t handle, cublasOperation_t trans, int n, int nrhs,    \
                                         const T* const a[], int lda, const int* pivots, T* const b[],       \
                                         int ldb, int* info, int count) {                                    \
    return getrs_batched(handle, trans, n, nrhs, a, lda, pivots, b, ldb, info, count);                       \
  }                                                                                                          \
  cublasStatus_t cublas##L##geqrfBatched(cublasHandle_t handle, int m, int n, T* const a[], int lda,         \
                                         T* const tau[], int* info, int count) {                             \
    return geqrf_batched(handle, m, n, a, lda, tau, info, count);                                            \
  }
WT_CUBLAS(S, float)
WT_CUBLAS(D, double)
WT_CUBLAS(C, cuComplex)
WT_CUBLAS(Z, cuDoubleComplex)

}  // extern "C"
