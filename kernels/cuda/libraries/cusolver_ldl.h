// cuSOLVER's LDL, by its prototypes: newer than cuSOLVER 12.0.4, which CUDA 13.0 brings. A build needs no
// newer headers, and the functions are looked up at run time (linalg_has_ldl).
#pragma once

#include <cusolverDn.h>

#include <cstdint>

extern "C" {
#define WT_LDL_FACTOR(name)                                                                               \
  cusolverStatus_t cusolverDnX##name##_bufferSize(                                                        \
      cusolverDnHandle_t handle, cusolverDnParams_t params, cublasFillMode_t uplo, int64_t n,             \
      cudaDataType type_a, const void* a, int64_t lda, const int64_t* pivots, cudaDataType compute,       \
      size_t* device_bytes, size_t* host_bytes);                                                          \
  cusolverStatus_t cusolverDnX##name(cusolverDnHandle_t handle, cusolverDnParams_t params,                \
                                     cublasFillMode_t uplo, int64_t n, cudaDataType type_a, void* a,      \
                                     int64_t lda, int64_t* pivots, cudaDataType compute, void* on_device, \
                                     size_t device_bytes, void* on_host, size_t host_bytes, int* info)
WT_LDL_FACTOR(sytrf);
WT_LDL_FACTOR(hetrf);
#undef WT_LDL_FACTOR
cusolverStatus_t cusolverDnXhetrs_bufferSize(cusolverDnHandle_t handle, cusolverDnParams_t params,
                                             cublasFillMode_t uplo, int64_t n, int64_t nrhs,
                                             cudaDataType type_a, const void* a, int64_t lda,
                                             const int64_t* pivots, cudaDataType type_b, void* b, int64_t ldb,
                                             size_t* device_bytes, size_t* host_bytes);
cusolverStatus_t cusolverDnXhetrs(cusolverDnHandle_t handle, cusolverDnParams_t params, cublasFillMode_t uplo,
                                  int64_t n, int64_t nrhs, cudaDataType type_a, const void* a, int64_t lda,
                                  const int64_t* pivots, cudaDataType type_b, void* b, int64_t ldb,
                                  void* on_device, size_t device_bytes, void* on_host, size_t host_bytes,
                                  int* info);
}
