// The part of cuSOLVER's interface that the plugin uses, for Note [Emulated CUDA], with its numbers. The
// stand-in (cusolver.cpp) refuses what the documentation does not allow.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cublas_v2.h"

enum cusolverStatus_t {
  CUSOLVER_STATUS_SUCCESS = 0,
  CUSOLVER_STATUS_NOT_INITIALIZED = 1,
  CUSOLVER_STATUS_INVALID_VALUE = 3,
  CUSOLVER_STATUS_EXECUTION_FAILED = 6,
  CUSOLVER_STATUS_NOT_SUPPORTED = 9,
};
enum cusolverEigMode_t { CUSOLVER_EIG_MODE_NOVECTOR = 0, CUSOLVER_EIG_MODE_VECTOR = 1 };
using cusolverDnHandle_t = struct cusolverDnContext*;
using cusolverDnParams_t = struct cusolverDnParams*;
using gesvdjInfo_t = struct gesvdjInfo*;

extern "C" {
cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* handle);
cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle);
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream);
cusolverStatus_t cusolverDnCreateParams(cusolverDnParams_t* params);
cusolverStatus_t cusolverDnCreateGesvdjInfo(gesvdjInfo_t* info);

#define EMULATED_CUSOLVER(L, Q, T, R)                                                                        \
  cusolverStatus_t cusolverDn##L##potrf_bufferSize(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n,  \
                                                   T* A, int lda, int* lwork);                               \
  cusolverStatus_t cusolverDn##L##potrf(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n, T* A,       \
                                        int lda, T* work, int lwork, int* info);                             \
  cusolverStatus_t cusolverDn##L##potrfBatched(cusolverDnHandle_t handle, cublasFillMode_t uplo, int n,      \
                                               T* A[], int lda, int* info, int count);                       \
  cusolverStatus_t cusolverDn##L##getrf_bufferSize(cusolverDnHandle_t handle, int m, int n, T* A, int lda,   \
                                                   int* lwork);                                              \
  cusolverStatus_t cusolverDn##L##getrf(cusolverDnHandle_t handle, int m, int n, T* A, int lda, T* work,     \
                                        int* pivots, int* info);                                             \
  cusolverStatus_t cusolverDn##L##getrs(cusolverDnHandle_t handle, cublasOperation_t trans, int n, int nrhs, \
                                        const T* A, int lda, const int* pivots, T* B, int ldb, int* info);   \
  cusolverStatus_t cusolverDn##L##geqrf_bufferSize(cusolverDnHandle_t handle, int m, int n, T* A, int lda,   \
                                                   int* lwork);                                              \
  cusolverStatus_t cusolverDn##L##geqrf(cusolverDnHandle_t handle, int m, int n, T* A, int lda, T* tau,      \
                                        T* work, int lwork, int* info);                                      \
  cusolverStatus_t cusolverDn##Q##gqr_bufferSize(cusolverDnHandle_t handle, int m, int n, int k, const T* A, \
                                                 int lda, const T* tau, int* lwork);                         \
  cusolverStatus_t cusolverDn##Q##gqr(cusolverDnHandle_t handle, int m, int n, int k, T* A, int lda,         \
                                      const T* tau, T* work, int lwork, int* info);                          \
  cusolverStatus_t cusolverDn##Q##mqr_bufferSize(cusolverDnHandle_t handle, cublasSideMode_t side,           \
                                                 cublasOperation_t trans, int m, int n, int k, const T* A,   \
                                                 int lda, const T* tau, const T* C, int ldc, int* lwork);    \
  cusolverStatus_t cusolverDn##Q##mqr(cusolverDnHandle_t handle, cublasSideMode_t side,                      \
                                      cublasOperation_t trans, int m, int n, int k, const T* A, int lda,     \
                                      const T* tau, T* C, int ldc, T* work, int lwork, int* info);           \
  cusolverStatus_t cusolverDn##L##gesvdj_bufferSize(                                                         \
      cusolverDnHandle_t handle, cusolverEigMode_t jobz, int econ, int m, int n, const T* A, int lda,        \
      const R* S, const T* U, int ldu, const T* V, int ldv, int* lwork, gesvdjInfo_t params);                \
  cusolverStatus_t cusolverDn##L##gesvdj(cusolverDnHandle_t handle, cusolverEigMode_t jobz, int econ, int m, \
                                         int n, T* A, int lda, R* S, T* U, int ldu, T* V, int ldv, T* work,  \
                                         int lwork, int* info, gesvdjInfo_t params);                         \
  cusolverStatus_t cusolverDn##L##gesvdjBatched_bufferSize(                                                  \
      cusolverDnHandle_t handle, cusolverEigMode_t jobz, int m, int n, const T* A, int lda, const R* S,      \
      const T* U, int ldu, const T* V, int ldv, int* lwork, gesvdjInfo_t params, int count);                 \
  cusolverStatus_t cusolverDn##L##gesvdjBatched(                                                             \
      cusolverDnHandle_t handle, cusolverEigMode_t jobz, int m, int n, T* A, int lda, R* S, T* U, int ldu,   \
      T* V, int ldv, T* work, int lwork, int* info, gesvdjInfo_t params, int count);
EMULATED_CUSOLVER(S, Sor, float, float)
EMULATED_CUSOLVER(D, Dor, double, double)
EMULATED_CUSOLVER(C, Cun, cuComplex, float)
EMULATED_CUSOLVER(Z, Zun, cuDoubleComplex, double)
#undef EMULATED_CUSOLVER

cusolverStatus_t cusolverDnXsyevd_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t params,
                                             cusolverEigMode_t jobz, cublasFillMode_t uplo, int64_t n,
                                             cudaDataType type_a, const void* A, int64_t lda,
                                             cudaDataType type_w, const void* W, cudaDataType compute,
                                             size_t* device_bytes, size_t* host_bytes);
cusolverStatus_t cusolverDnXsyevd(cusolverDnHandle_t handle, cusolverDnParams_t params,
                                  cusolverEigMode_t jobz, cublasFillMode_t uplo, int64_t n,
                                  cudaDataType type_a, void* A, int64_t lda, cudaDataType type_w, void* W,
                                  cudaDataType compute, void* on_device, size_t device_bytes, void* on_host,
                                  size_t host_bytes, int* info);
cusolverStatus_t cusolverDnXsyevBatched_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t params,
                                                   cusolverEigMode_t jobz, cublasFillMode_t uplo, int64_t n,
                                                   cudaDataType type_a, const void* A, int64_t lda,
                                                   cudaDataType type_w, const void* W, cudaDataType compute,
                                                   size_t* device_bytes, size_t* host_bytes, int64_t count);
cusolverStatus_t cusolverDnXsyevBatched(cusolverDnHandle_t handle, cusolverDnParams_t params,
                                        cusolverEigMode_t jobz, cublasFillMode_t uplo, int64_t n,
                                        cudaDataType type_a, void* A, int64_t lda, cudaDataType type_w,
                                        void* W, cudaDataType compute, void* on_device, size_t device_bytes,
                                        void* on_host, size_t host_bytes, int* info, int64_t count);
cusolverStatus_t cusolverDnXgeev_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t params,
                                            cusolverEigMode_t left, cusolverEigMode_t right, int64_t n,
                                            cudaDataType type_a, const void* A, int64_t lda,
                                            cudaDataType type_w, const void* W, cudaDataType type_vl,
                                            const void* VL, int64_t ldvl, cudaDataType type_vr,
                                            const void* VR, int64_t ldvr, cudaDataType compute,
                                            size_t* device_bytes, size_t* host_bytes);
cusolverStatus_t cusolverDnXgeev(cusolverDnHandle_t handle, cusolverDnParams_t params, cusolverEigMode_t left,
                                 cusolverEigMode_t right, int64_t n, cudaDataType type_a, void* A,
                                 int64_t lda, cudaDataType type_w, void* W, cudaDataType type_vl, void* VL,
                                 int64_t ldvl, cudaDataType type_vr, void* VR, int64_t ldvr,
                                 cudaDataType compute, void* on_device, size_t device_bytes, void* on_host,
                                 size_t host_bytes, int* info);
cusolverStatus_t cusolverDnXsytrs_bufferSize(cusolverDnHandle_t handle, cublasFillMode_t uplo, int64_t n,
                                             int64_t nrhs, cudaDataType type_a, const void* A, int64_t lda,
                                             const int64_t* pivots, cudaDataType type_b, void* B, int64_t ldb,
                                             size_t* device_bytes, size_t* host_bytes);
cusolverStatus_t cusolverDnXsytrs(cusolverDnHandle_t handle, cublasFillMode_t uplo, int64_t n, int64_t nrhs,
                                  cudaDataType type_a, const void* A, int64_t lda, const int64_t* pivots,
                                  cudaDataType type_b, void* B, int64_t ldb, void* on_device,
                                  size_t device_bytes, void* on_host, size_t host_bytes, int* info);
}
