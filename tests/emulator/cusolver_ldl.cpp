// In place of cuSOLVER's LDL, as cusolver.cpp: of symmetric matrices, or of Hermitian ones, which are
// complex.
#include <cstdlib>

#include "cusolver_host.h"
#include "kernels/cuda/libraries/cusolver_ldl.h"
#include "kernels/cuda/libraries/library.h"

namespace warptape::kernels::cuda {
// WARPTAPE_EMULATED_CUSOLVER=12.0 is one without LDL.
bool library_has(Library, const char*) { return !std::getenv("WARPTAPE_EMULATED_CUSOLVER"); }
}  // namespace warptape::kernels::cuda

namespace {

using namespace emulator::solver;

struct Ldl {
  cublasFillMode_t uplo;
  int64_t n, lda;
  cudaDataType type, compute;
  bool hermitian;
  bool agrees() const {
    return is_fill(uplo) && n >= 0 && lda >= std::max<int64_t>(n, 1) && is_type(type) && compute == type &&
           !(hermitian && is_real(type));
  }
  bool is_given(int device, const void* a, const int64_t* pivots, const int* info) const {
    const size_t bytes = size_t(lda * n) * itemsize(dtype_of_library(type));
    return emulator::lies_on(device, a, bytes) && is_memory(device, pivots, n) && is_memory(device, info, 1);
  }
  // The plugin asks for lower triangles alone, which LAPACK's kernel computes.
  bool is_there() const { return uplo == CUBLAS_FILL_MODE_LOWER; }

  void factor(void* a, int64_t* pivots, int* info) const {
    by_type(type, [&](auto t) {
      using T = typename decltype(t)::type;
      static Slot<LdlFn> ldl{"linalg_ldl"};
      auto* matrix = static_cast<T*>(a);
      Dense<T> dense(matrix, n, n, lda);
      std::vector<int> steps(size_t(n) + 1);
      on_cpu(ldl, View(dense), View(Row<int>(steps.data(), n)), hermitian, View(Row<int>(info, 0)));
      std::copy_n(steps.begin(), n, pivots);
      for (int64_t j = 0; j < n; ++j)
        for (int64_t i = j; i < n; ++i)
          matrix[j * lda + i] = dense(i, j);  // the other triangle is left alone
    });
  }
  void solve(const void* a, const int64_t* pivots, void* b, int64_t columns, int64_t ldb) const {
    by_type(type, [&](auto t) {
      using T = typename decltype(t)::type;
      static Slot<LdlSolveFn> ldl_solve{"linalg_ldl_solve"};
      auto* right = static_cast<T*>(b);
      Dense<T> dense(static_cast<const T*>(a), n, n, lda), x(right, n, columns, ldb);
      std::vector<int> steps(pivots, pivots + n);
      on_cpu(ldl_solve, View(dense), View(Row<int>(steps.data(), n)), View(x), hermitian);
      x.store(right, ldb);
    });
  }
};

cusolverStatus_t run_factor(cusolverDnHandle_t handle, cusolverDnParams_t params, const Ldl& ldl, void* a,
                            int64_t* pivots, const Buffers& work, int* info) {
  auto held = emulator::lock();
  if (!is_handle(handle) || !params || !ldl.agrees() || !ldl.is_given(handle->device, a, pivots, info) ||
      !work.suit(handle->device, ldl.n))
    return kInvalid;
  if (!ldl.is_there()) return CUSOLVER_STATUS_NOT_SUPPORTED;
  return run(handle, [=] {
    spoil(work.on_host, work.host_bytes);
    ldl.factor(a, pivots, info);
    spoil(work.on_device, work.device_bytes);
  });
}

struct Right {
  void* b;
  int64_t columns, ld;
  cudaDataType type;
  bool agrees(const Ldl& ldl) const {
    return columns >= 0 && ld >= std::max<int64_t>(ldl.n, 1) && type == ldl.type;
  }
};
cusolverStatus_t run_solve(cusolverDnHandle_t handle, const Ldl& ldl, const void* a, const int64_t* pivots,
                           const Right& right, const Buffers& work, int* info) {
  auto held = emulator::lock();
  if (!is_handle(handle) || !ldl.agrees() || !right.agrees(ldl) ||
      !ldl.is_given(handle->device, a, pivots, info) ||
      !emulator::lies_on(handle->device, right.b,
                         size_t(right.ld * right.columns) * itemsize(dtype_of_library(ldl.type))) ||
      !work.suit(handle->device, ldl.n + right.columns))
    return kInvalid;
  if (!ldl.is_there()) return CUSOLVER_STATUS_NOT_SUPPORTED;
  return run(handle, [=] {
    spoil(work.on_host, work.host_bytes);
    ldl.solve(a, pivots, right.b, right.columns, right.ld);
    *info = 0;
    spoil(work.on_device, work.device_bytes);
  });
}

}  // namespace

extern "C" {

#define WT_CUSOLVER_LDL(name, hermitian)                                                                  \
  cusolverStatus_t cusolverDnX##name##_bufferSize(                                                        \
      cusolverDnHandle_t, cusolverDnParams_t params, cublasFillMode_t uplo, int64_t n, cudaDataType type, \
      const void*, int64_t lda, const int64_t*, cudaDataType compute, size_t* device_bytes,               \
      size_t* host_bytes) {                                                                               \
    return tell_bytes(params && Ldl{uplo, n, lda, type, compute, hermitian}.agrees(), device_bytes,       \
                      host_bytes, n);                                                                     \
  }                                                                                                       \
  cusolverStatus_t cusolverDnX##name(cusolverDnHandle_t handle, cusolverDnParams_t params,                \
                                     cublasFillMode_t uplo, int64_t n, cudaDataType type, void* a,        \
                                     int64_t lda, int64_t* pivots, cudaDataType compute, void* on_device, \
                                     size_t device_bytes, void* on_host, size_t host_bytes, int* info) {  \
    return run_factor(handle, params, {uplo, n, lda, type, compute, hermitian}, a, pivots,                \
                      {on_device, device_bytes, on_host, host_bytes}, info);                              \
  }
WT_CUSOLVER_LDL(sytrf, false)
WT_CUSOLVER_LDL(hetrf, true)

cusolverStatus_t cusolverDnXsytrs_bufferSize(cusolverDnHandle_t, cublasFillMode_t uplo, int64_t n,
                                             int64_t nrhs, cudaDataType type, const void*, int64_t lda,
                                             const int64_t*, cudaDataType type_b, void* b, int64_t ldb,
                                             size_t* device_bytes, size_t* host_bytes) {
  const Ldl ldl{uplo, n, lda, type, type, false};
  return tell_bytes(ldl.agrees() && Right{b, nrhs, ldb, type_b}.agrees(ldl), device_bytes, host_bytes,
                    n + nrhs);
}
cusolverStatus_t cusolverDnXsytrs(cusolverDnHandle_t handle, cublasFillMode_t uplo, int64_t n, int64_t nrhs,
                                  cudaDataType type, const void* a, int64_t lda, const int64_t* pivots,
                                  cudaDataType type_b, void* b, int64_t ldb, void* on_device,
                                  size_t device_bytes, void* on_host, size_t host_bytes, int* info) {
  return run_solve(handle, {uplo, n, lda, type, type, false}, a, pivots, {b, nrhs, ldb, type_b},
                   {on_device, device_bytes, on_host, host_bytes}, info);
}
cusolverStatus_t cusolverDnXhetrs_bufferSize(cusolverDnHandle_t, cusolverDnParams_t params,
                                             cublasFillMode_t uplo, int64_t n, int64_t nrhs,
                                             cudaDataType type, const void*, int64_t lda, const int64_t*,
                                             cudaDataType type_b, void* b, int64_t ldb, size_t* device_bytes,
                                             size_t* host_bytes) {
  const Ldl ldl{uplo, n, lda, type, type, true};
  return tell_bytes(params && ldl.agrees() && Right{b, nrhs, ldb, type_b}.agrees(ldl), device_bytes,
                    host_bytes, n + nrhs);
}
cusolverStatus_t cusolverDnXhetrs(cusolverDnHandle_t handle, cusolverDnParams_t params, cublasFillMode_t uplo,
                                  int64_t n, int64_t nrhs, cudaDataType type, const void* a, int64_t lda,
                                  const int64_t* pivots, cudaDataType type_b, void* b, int64_t ldb,
                                  void* on_device, size_t device_bytes, void* on_host, size_t host_bytes,
                                  int* info) {
  if (!params) return kInvalid;
  return run_solve(handle, {uplo, n, lda, type, type, true}, a, pivots, {b, nrhs, ldb, type_b},
                   {on_device, device_bytes, on_host, host_bytes}, info);
}

}  // extern "C"
