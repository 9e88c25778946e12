// The part of cuBLAS's interface that the plugin uses, for Note [Emulated CUDA], with its numbers. The
// stand-in (cublas.cpp) refuses what the documentation does not allow.
#pragma once

#include "cuComplex.h"
#include "cublasLt.h"

using cudaDataType = cudaDataType_t;
enum cublasFillMode_t { CUBLAS_FILL_MODE_LOWER = 0, CUBLAS_FILL_MODE_UPPER = 1 };
enum cublasDiagType_t { CUBLAS_DIAG_NON_UNIT = 0, CUBLAS_DIAG_UNIT = 1 };
enum cublasSideMode_t { CUBLAS_SIDE_LEFT = 0, CUBLAS_SIDE_RIGHT = 1 };
using cublasHandle_t = struct cublasContext*;

extern "C" {
cublasStatus_t cublasCreate(cublasHandle_t* handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);

#define EMULATED_CUBLAS(L, T)                                                                                \
  cublasStatus_t cublas##L##trsm(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo,        \
                                 cublasOperation_t trans, cublasDiagType_t diag, int m, int n,               \
                                 const T* alpha, const T* A, int lda, T* B, int ldb);                        \
  cublasStatus_t cublas##L##trsmBatched(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo, \
                                        cublasOperation_t trans, cublasDiagType_t diag, int m, int n,        \
                                        const T* alpha, const T* const A[], int lda, T* const B[], int ldb,  \
                                        int count);                                                          \
  cublasStatus_t cublas##L##getrfBatched(cublasHandle_t handle, int n, T* const A[], int lda, int* pivots,   \
                                         int* info, int count);                                              \
  cublasStatus_t cublas##L##getrsBatched(cublasHandle_t handle, cublasOperation_t trans, int n, int nrhs,    \
                                         const T* const A[], int lda, const int* pivots, T* const B[],       \
                                         int ldb, int* info, int count);                                     \
  cublasStatus_t cublas##L##geqrfBatched(cublasHandle_t handle, int m, int n, T* const A[], int lda,         \
                                         T* const tau[], int* info, int count);
EMULATED_CUBLAS(S, float)
EMULATED_CUBLAS(D, double)
EMULATED_CUBLAS(C, cuComplex)
EMULATED_CUBLAS(Z, cuDoubleComplex)
#undef EMULATED_CUBLAS
}
