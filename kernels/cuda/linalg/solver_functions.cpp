// The functions of cuSOLVER and cuBLAS that solver.cpp calls, under their own names: each looks the real one
// up when it is first called, as in library_functions.cpp.
#include <cublas_v2.h>
#include <cusolverDn.h>

#include "kernels/cuda/libraries/cusolver_ldl.h"
#include "kernels/cuda/libraries/library_forward.h"

#define WT_BLAS(name, parameters, arguments) WT_FORWARD(Cublas, cublasStatus_t, name, parameters, arguments)
WT_BLAS(cublasCreate_v2, (cublasHandle_t * handle), (handle))
WT_BLAS(cublasSetStream_v2, (cublasHandle_t handle, cudaStream_t stream), (handle, stream))
#define WT_BLAS_OF(L, T)                                                                                   \
  WT_BLAS(cublas##L##trsm_v2,                                                                              \
          (cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo, cublasOperation_t trans,   \
           cublasDiagType_t diag, int m, int n, const T* alpha, const T* a, int lda, T* b, int ldb),       \
          (handle, side, uplo, trans, diag, m, n, alpha, a, lda, b, ldb))                                  \
  WT_BLAS(cublas##L##trsmBatched,                                                                          \
          (cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo, cublasOperation_t trans,   \
           cublasDiagType_t diag, int m, int n, const T* alpha, const T* const a[], int lda, T* const b[], \
           int ldb, int count),                                                                            \
          (handle, side, uplo, trans, diag, m, n, alpha, a, lda, b, ldb, count))                           \
  WT_BLAS(cublas##L##getrfBatched,                                                                         \
          (cublasHandle_t handle, int n, T* const a[], int lda, int* pivots, int* info, int count),        \
          (handle, n, a, lda, pivots, info, count))                                                        \
  WT_BLAS(cublas##L##getrsBatched,                                                                         \
          (cublasHandle_t handle, cublasOperation_t trans, int n, int nrhs, const T* const a[], int lda,   \
           const int* pivots, T* const b[], int ldb, int* info, int count),                                \
          (handle, trans, n, nrhs, a, lda, pivots, b, ldb, info, count))                                   \
  WT_BLAS(                                                                                                 \
      cublas##L##geqrfBatched,                                                                             \
      (cublasHandle_t handle, int m, int n, T* const a[], int lda, T* const tau[], int* info, int count),  \
      (handle, m, n, a, lda, tau, info, count))
WT_BLAS_OF(S, float)
WT_BLAS_OF(D, double)
WT_BLAS_OF(C, cuComplex)
WT_BLAS_OF(Z, cuDoubleComplex)

#define WT_SOLVER(name, parameters, arguments) \
  WT_FORWARD(Cusolver, cusolverStatus_t, name, parameters, arguments)
WT_SOLVER(cusolverDnCreate, (cusolverDnHandle_t * handle), (handle))
WT_SOLVER(cusolverDnSetStream, (cusolverDnHandle_t handle, cudaStream_t stream), (handle, stream))
WT_SOLVER(cusolverDnCreateParams, (cusolverDnParams_t * params), (params))
WT_SOLVER(cusolverDnCreateGesvdjInfo, (gesvdjInfo_t * info), (info))

#define WT_SOLVER_FACTORS(L, T)                                                                              \
  WT_SOLVER(cusolverDn##L##potrf_bufferSize,                                                                 \
            (cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, T* a, int lda, int* lwork),            \
            (handle, uplo, n, a, lda, lwork))                                                                \
  WT_SOLVER(cusolverDn##L##potrf,                                                                            \
            (cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, T* a, int lda, T* work, int lwork,     \
             int* info),                                                                                     \
            (handle, uplo, n, a, lda, work, lwork, info))                                                    \
  WT_SOLVER(                                                                                                 \
      cusolverDn##L##potrfBatched,                                                                           \
      (cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, T* a[], int lda, int* info, int count),      \
      (handle, uplo, n, a, lda, info, count))                                                                \
  WT_SOLVER(cusolverDn##L##getrf_bufferSize,                                                                 \
            (cusolverDnHandle_t handle, int m, int n, T* a, int lda, int* lwork),                            \
            (handle, m, n, a, lda, lwork))                                                                   \
  WT_SOLVER(cusolverDn##L##getrf,                                                                            \
            (cusolverDnHandle_t handle, int m, int n, T* a, int lda, T* work, int* pivots, int* info),       \
            (handle, m, n, a, lda, work, pivots, info))                                                      \
  WT_SOLVER(cusolverDn##L##getrs,                                                                            \
            (cusolverDnHandle_t handle, cublasOperation_t trans, int n, int nrhs, const T* a, int lda,       \
             const int* pivots, T* b, int ldb, int* info),                                                   \
            (handle, trans, n, nrhs, a, lda, pivots, b, ldb, info))                                          \
  WT_SOLVER(cusolverDn##L##geqrf_bufferSize,                                                                 \
            (cusolverDnHandle_t handle, int m, int n, T* a, int lda, int* lwork),                            \
            (handle, m, n, a, lda, lwork))                                                                   \
  WT_SOLVER(cusolverDn##L##geqrf,                                                                            \
            (cusolverDnHandle_t handle, int m, int n, T* a, int lda, T* tau, T* work, int lwork, int* info), \
            (handle, m, n, a, lda, tau, work, lwork, info))
WT_SOLVER_FACTORS(S, float)
WT_SOLVER_FACTORS(D, double)
WT_SOLVER_FACTORS(C, cuComplex)
WT_SOLVER_FACTORS(Z, cuDoubleComplex)

#define WT_SOLVER_REFLECTORS(Q, T)                                                                           \
  WT_SOLVER(cusolverDn##Q##gqr_bufferSize,                                                                   \
            (cusolverDnHandle_t handle, int m, int n, int k, const T* a, int lda, const T* tau, int* lwork), \
            (handle, m, n, k, a, lda, tau, lwork))                                                           \
  WT_SOLVER(cusolverDn##Q##gqr,                                                                              \
            (cusolverDnHandle_t handle, int m, int n, int k, T* a, int lda, const T* tau, T* work,           \
             int lwork, int* info),                                                                          \
            (handle, m, n, k, a, lda, tau, work, lwork, info))                                               \
  WT_SOLVER(cusolverDn##Q##mqr_bufferSize,                                                                   \
            (cusolverDnHandle_t handle, cublasSideMode_t side, cublasOperation_t trans, int m, int n, int k, \
             const T* a, int lda, const T* tau, const T* c, int ldc, int* lwork),                            \
            (handle, side, trans, m, n, k, a, lda, tau, c, ldc, lwork))                                      \
  WT_SOLVER(cusolverDn##Q##mqr,                                                                              \
            (cusolverDnHandle_t handle, cublasSideMode_t side, cublasOperation_t trans, int m, int n, int k, \
             const T* a, int lda, const T* tau, T* c, int ldc, T* work, int lwork, int* info),               \
            (handle, side, trans, m, n, k, a, lda, tau, c, ldc, work, lwork, info))
WT_SOLVER_REFLECTORS(Sor, float)
WT_SOLVER_REFLECTORS(Dor, double)
WT_SOLVER_REFLECTORS(Cun, cuComplex)
WT_SOLVER_REFLECTORS(Zun, cuDoubleComplex)

#define WT_SOLVER_SVD(L, T, R)                                                                               \
  WT_SOLVER(cusolverDn##L##gesvdj_bufferSize,                                                                \
            (cusolverDnHandle_t handle, cusolverEigMode_t jobz, int econ, int m, int n, const T* a, int lda, \
             const R* s, const T* u, int ldu, const T* v, int ldv, int* lwork, gesvdjInfo_t params),         \
            (handle, jobz, econ, m, n, a, lda, s, u, ldu, v, ldv, lwork, params))                            \
  WT_SOLVER(cusolverDn##L##gesvdj,                                                                           \
            (cusolverDnHandle_t handle, cusolverEigMode_t jobz, int econ, int m, int n, T* a, int lda, R* s, \
             T* u, int ldu, T* v, int ldv, T* work, int lwork, int* info, gesvdjInfo_t params),              \
            (handle, jobz, econ, m, n, a, lda, s, u, ldu, v, ldv, work, lwork, info, params))                \
  WT_SOLVER(                                                                                                 \
      cusolverDn##L##gesvdjBatched_bufferSize,                                                               \
      (cusolverDnHandle_t handle, cusolverEigMode_t jobz, int m, int n, const T* a, int lda, const R* s,     \
       const T* u, int ldu, const T* v, int ldv, int* lwork, gesvdjInfo_t params, int count),                \
      (handle, jobz, m, n, a, lda, s, u, ldu, v, ldv, lwork, params, count))                                 \
  WT_SOLVER(cusolverDn##L##gesvdjBatched,                                                                    \
            (cusolverDnHandle_t handle, cusolverEigMode_t jobz, int m, int n, T* a, int lda, R* s, T* u,     \
             int ldu, T* v, int ldv, T* work, int lwork, int* info, gesvdjInfo_t params, int count),         \
            (handle, jobz, m, n, a, lda, s, u, ldu, v, ldv, work, lwork, info, params, count))
WT_SOLVER_SVD(S, float, float)
WT_SOLVER_SVD(D, double, double)
WT_SOLVER_SVD(C, cuComplex, float)
WT_SOLVER_SVD(Z, cuDoubleComplex, double)

WT_SOLVER(cusolverDnXsyevd_bufferSize,
          (cusolverDnHandle_t handle, cusolverDnParams_t params, cusolverEigMode_t jobz,
           cublasFillMode_t uplo, int64_t n, cudaDataType type_a, const void* a, int64_t lda,
           cudaDataType type_w, const void* w, cudaDataType compute, size_t* device_bytes,
           size_t* host_bytes),
          (handle, params, jobz, uplo, n, type_a, a, lda, type_w, w, compute, device_bytes, host_bytes))
WT_SOLVER(cusolverDnXsyevd,
          (cusolverDnHandle_t handle, cusolverDnParams_t params, cusolverEigMode_t jobz,
           cublasFillMode_t uplo, int64_t n, cudaDataType type_a, void* a, int64_t lda, cudaDataType type_w,
           void* w, cudaDataType compute, void* on_device, size_t device_bytes, void* on_host,
           size_t host_bytes, int* info),
          (handle, params, jobz, uplo, n, type_a, a, lda, type_w, w, compute, on_device, device_bytes,
           on_host, host_bytes, info))
WT_SOLVER(cusolverDnXsyevBatched_bufferSize,
          (cusolverDnHandle_t handle, cusolverDnParams_t params, cusolverEigMode_t jobz,
           cublasFillMode_t uplo, int64_t n, cudaDataType type_a, const void* a, int64_t lda,
           cudaDataType type_w, const void* w, cudaDataType compute, size_t* device_bytes, size_t* host_bytes,
           int64_t count),
          (handle, params, jobz, uplo, n, type_a, a, lda, type_w, w, compute, device_bytes, host_bytes,
           count))
WT_SOLVER(cusolverDnXsyevBatched,
          (cusolverDnHandle_t handle, cusolverDnParams_t params, cusolverEigMode_t jobz,
           cublasFillMode_t uplo, int64_t n, cudaDataType type_a, void* a, int64_t lda, cudaDataType type_w,
           void* w, cudaDataType compute, void* on_device, size_t device_bytes, void* on_host,
           size_t host_bytes, int* info, int64_t count),
          (handle, params, jobz, uplo, n, type_a, a, lda, type_w, w, compute, on_device, device_bytes,
           on_host, host_bytes, info, count))
WT_SOLVER(cusolverDnXgeev_bufferSize,
          (cusolverDnHandle_t handle, cusolverDnParams_t params, cusolverEigMode_t left,
           cusolverEigMode_t right, int64_t n, cudaDataType type_a, const void* a, int64_t lda,
           cudaDataType type_w, const void* w, cudaDataType type_vl, const void* vl, int64_t ldvl,
           cudaDataType type_vr, const void* vr, int64_t ldvr, cudaDataType compute, size_t* device_bytes,
           size_t* host_bytes),
          (handle, params, left, right, n, type_a, a, lda, type_w, w, type_vl, vl, ldvl, type_vr, vr, ldvr,
           compute, device_bytes, host_bytes))
WT_SOLVER(cusolverDnXgeev,
          (cusolverDnHandle_t handle, cusolverDnParams_t params, cusolverEigMode_t left,
           cusolverEigMode_t right, int64_t n, cudaDataType type_a, void* a, int64_t lda, cudaDataType type_w,
           void* w, cudaDataType type_vl, void* vl, int64_t ldvl, cudaDataType type_vr, void* vr,
           int64_t ldvr, cudaDataType compute, void* on_device, size_t device_bytes, void* on_host,
           size_t host_bytes, int* info),
          (handle, params, left, right, n, type_a, a, lda, type_w, w, type_vl, vl, ldvl, type_vr, vr, ldvr,
           compute, on_device, device_bytes, on_host, host_bytes, info))

// Of symmetric matrices (sy) and of Hermitian ones (he).
#define WT_SOLVER_LDL(name)                                                                                \
  WT_SOLVER(cusolverDnX##name##_bufferSize,                                                                \
            (cusolverDnHandle_t handle, cusolverDnParams_t params, cublasFillMode_t uplo, int64_t n,       \
             cudaDataType type_a, const void* a, int64_t lda, const int64_t* pivots, cudaDataType compute, \
             size_t* device_bytes, size_t* host_bytes),                                                    \
            (handle, params, uplo, n, type_a, a, lda, pivots, compute, device_bytes, host_bytes))          \
  WT_SOLVER(cusolverDnX##name,                                                                             \
            (cusolverDnHandle_t handle, cusolverDnParams_t params, cublasFillMode_t uplo, int64_t n,       \
             cudaDataType type_a, void* a, int64_t lda, int64_t* pivots, cudaDataType compute,             \
             void* on_device, size_t device_bytes, void* on_host, size_t host_bytes, int* info),           \
            (handle, params, uplo, n, type_a, a, lda, pivots, compute, on_device, device_bytes, on_host,   \
             host_bytes, info))
WT_SOLVER_LDL(sytrf)
WT_SOLVER_LDL(hetrf)
WT_SOLVER(cusolverDnXsytrs_bufferSize,
          (cusolverDnHandle_t handle, cublasFillMode_t uplo, int64_t n, int64_t nrhs, cudaDataType type_a,
           const void* a, int64_t lda, const int64_t* pivots, cudaDataType type_b, void* b, int64_t ldb,
           size_t* device_bytes, size_t* host_bytes),
          (handle, uplo, n, nrhs, type_a, a, lda, pivots, type_b, b, ldb, device_bytes, host_bytes))
WT_SOLVER(cusolverDnXsytrs,
          (cusolverDnHandle_t handle, cublasFillMode_t uplo, int64_t n, int64_t nrhs, cudaDataType type_a,
           const void* a, int64_t lda, const int64_t* pivots, cudaDataType type_b, void* b, int64_t ldb,
           void* on_device, size_t device_bytes, void* on_host, size_t host_bytes, int* info),
          (handle, uplo, n, nrhs, type_a, a, lda, pivots, type_b, b, ldb, on_device, device_bytes, on_host,
           host_bytes, info))
WT_SOLVER(cusolverDnXhetrs_bufferSize,
          (cusolverDnHandle_t handle, cusolverDnParams_t params, cublasFillMode_t uplo, int64_t n,
           int64_t nrhs, cudaDataType type_a, const void* a, int64_t lda, const int64_t* pivots,
           cudaDataType type_b, void* b, int64_t ldb, size_t* device_bytes, size_t* host_bytes),
          (handle, params, uplo, n, nrhs, type_a, a, lda, pivots, type_b, b, ldb, device_bytes, host_bytes))
WT_SOLVER(cusolverDnXhetrs,
          (cusolverDnHandle_t handle, cusolverDnParams_t params, cublasFillMode_t uplo, int64_t n,
           int64_t nrhs, cudaDataType type_a, const void* a, int64_t lda, const int64_t* pivots,
           cudaDataType type_b, void* b, int64_t ldb, void* on_device, size_t device_bytes, void* on_host,
           size_t host_bytes, int* info),
          (handle, params, uplo, n, nrhs, type_a, a, lda, pivots, type_b, b, ldb, on_device, device_bytes,
           on_host, host_bytes, info))
