// cuSOLVER and cuBLAS for the slots of kernels/linalg/linalg.h: their routines by type, their handles, and
// how a batch is walked. Matrices lie by columns, their leading dim is the number of their rows.
#pragma once

#include <cublas_v2.h>
#include <cusolverDn.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/cuda/common/runtime.h"
#include "kernels/cuda/linalg/linalg_kernels.h"
#include "kernels/dispatch.h"
#include "kernels/linalg/linalg.h"

namespace warptape::kernels::cuda {

using SolverTypes = Types<float, double, Complex<float>, Complex<double>>;

// The libraries' routines for T: real ones (s, d) and complex ones (c, z), whose Q is unitary (un) and not
// orthogonal (or).
template <class T>
struct Routines;
#define WT_ROUTINES(T, RealT, LibraryT, data, real, L, q)                                \
  template <>                                                                            \
  struct Routines<T> {                                                                   \
    using Real = RealT;                                                                  \
    using Number = LibraryT;                                                             \
    static constexpr cudaDataType kData = data, kReal = real;                            \
    static constexpr auto potrf_size = cusolverDn##L##potrf_bufferSize;                  \
    static constexpr auto potrf = cusolverDn##L##potrf;                                  \
    static constexpr auto potrf_batched = cusolverDn##L##potrfBatched;                   \
    static constexpr auto getrf_size = cusolverDn##L##getrf_bufferSize;                  \
    static constexpr auto getrf = cusolverDn##L##getrf;                                  \
    static constexpr auto getrs = cusolverDn##L##getrs;                                  \
    static constexpr auto geqrf_size = cusolverDn##L##geqrf_bufferSize;                  \
    static constexpr auto geqrf = cusolverDn##L##geqrf;                                  \
    static constexpr auto form_size = cusolverDn##q##gqr_bufferSize;                     \
    static constexpr auto form = cusolverDn##q##gqr;                                     \
    static constexpr auto multiply_size = cusolverDn##q##mqr_bufferSize;                 \
    static constexpr auto multiply = cusolverDn##q##mqr;                                 \
    static constexpr auto gesvdj_size = cusolverDn##L##gesvdj_bufferSize;                \
    static constexpr auto gesvdj = cusolverDn##L##gesvdj;                                \
    static constexpr auto gesvdj_batched_size = cusolverDn##L##gesvdjBatched_bufferSize; \
    static constexpr auto gesvdj_batched = cusolverDn##L##gesvdjBatched;                 \
    static constexpr auto trsm = cublas##L##trsm;                                        \
    static constexpr auto trsm_batched = cublas##L##trsmBatched;                         \
    static constexpr auto getrf_batched = cublas##L##getrfBatched;                       \
    static constexpr auto getrs_batched = cublas##L##getrsBatched;                       \
    static constexpr auto geqrf_batched = cublas##L##geqrfBatched;                       \
  }
WT_ROUTINES(float, float, float, CUDA_R_32F, CUDA_R_32F, S, Sor);
WT_ROUTINES(double, double, double, CUDA_R_64F, CUDA_R_64F, D, Dor);
WT_ROUTINES(Complex<float>, float, cuComplex, CUDA_C_32F, CUDA_R_32F, C, Cun);
WT_ROUTINES(Complex<double>, double, cuDoubleComplex, CUDA_C_64F, CUDA_R_64F, Z, Zun);
#undef WT_ROUTINES

template <class T> using RealOf = typename Routines<T>::Real;
template <class T> inline constexpr bool kComplexMatrix = !std::is_same_v<T, RealOf<T>>;

// As the libraries declare it.
template <class T>
auto* lib(T* p) {
  return reinterpret_cast<typename Routines<T>::Number*>(p);
}

// The matrices of one argument; m, n and ld as the libraries count. DeviceError for more than they can.
template <class T>
struct Matrices {
  Matrices(const char* op, const View& v) : data(v.as<T>()), count(static_cast<int>(v.sizes[0])) {
    for (int d = 0; d < 3; ++d)
      if (v.sizes[d] > INT32_MAX)
        raise_library_error(std::string(op) +
                            ": cuSOLVER takes up to 2^31 - 1 matrices, rows and columns, got " +
                            std::to_string(v.sizes[d]));
    m = static_cast<int>(v.sizes[1]), n = static_cast<int>(v.sizes[2]), ld = std::max(m, 1);
  }
  T* operator[](int64_t i) const { return data + i * size(); }
  int64_t size() const { return int64_t{m} * n; }
  int least() const { return std::min(m, n); }
  bool empty() const { return count == 0 || m == 0 || n == 0; }
  T* data;
  int count, m = 0, n = 0, ld = 1;
};
template <class T>
T* vector(const View& v, int64_t i) {
  return v.as<T>() + i * (v.ndim > 1 ? v.sizes[1] : 1);
}

// One call's hold on the handles of both libraries, of which a device has one each: set to the call's stream,
// so that their work goes there in order, and no other thread's.
class Solver {
 public:
  Solver(const LaunchContext& ctx, const char* op);
  Solver(const Solver&) = delete;
  Solver& operator=(const Solver&) = delete;

  cusolverDnHandle_t handle() const;
  cublasHandle_t blas() const;
  cusolverDnParams_t params() const;  // of the routines that name types by arguments
  gesvdjInfo_t jacobi() const;        // tolerance and sweeps as cuSOLVER sets them
  // Throws a DeviceError that names op and routine.
  void check(cusolverStatus_t status, const char* routine) const;
  void check(cublasStatus_t status, const char* routine) const;

  template <class T>
  T* scratch(int64_t n) const {
    return static_cast<T*>(ctx_.scratch(sizeof(T) * static_cast<size_t>(std::max<int64_t>(n, 1))));
  }
  // Where each of the matrices lies, in device memory.
  template <class T>
  typename Routines<T>::Number** pointers(const Matrices<T>& a) const {
    return pointers(a.data, a.size(), a.count);
  }
  template <class T>
  typename Routines<T>::Number** pointers(T* first, int64_t step, int64_t count) const {
    auto** at = scratch<typename Routines<T>::Number*>(count);
    matrix_pointers(ctx_, op_, reinterpret_cast<void**>(at), first, step * int64_t{sizeof(T)}, count);
    return at;
  }
  const LaunchContext& ctx() const { return ctx_; }
  const char* op() const { return op_; }

 private:
  struct Handles;
  static Handles& handles_of(int device);
  const LaunchContext& ctx_;
  const char* op_;
  Handles& handles_;
  std::unique_lock<std::mutex> lock_;
};

// Work memory of the routines that name types by arguments, on both sides.
struct Work {
  size_t device_bytes = 0, host_bytes = 0;
  void* on_device = nullptr;
  std::vector<char> on_host;
  void take(const Solver& s) {
    on_device = s.scratch<char>(static_cast<int64_t>(device_bytes));
    on_host.resize(std::max<size_t>(host_bytes, 1));
  }
  // Nothing says that the host's is done with before the stream is.
  void finish(const Solver& s) const {
    if (host_bytes) cuda::check(cudaStreamSynchronize(static_cast<cudaStream_t>(s.ctx().stream)), s.op());
  }
};

// f(solver, tag) with the type of the matrices.
template <class F>
void by_solver(const LaunchContext& ctx, const char* op, DType dtype, F&& f) {
  {
    const Solver s(ctx, op);
    dispatch(SolverTypes{}, dtype, [&](auto t) { f(s, t); }, op);
  }
  if (launch_blocking) finish_blocking(ctx, op);
}

template <class T>
MatrixArgs args_of(const Matrices<T>& a) {
  return {a.data, dtype_of<T>, a.count, a.m, a.n};
}
constexpr cublasFillMode_t fill(bool upper) {
  return upper ? CUBLAS_FILL_MODE_UPPER : CUBLAS_FILL_MODE_LOWER;
}

}  // namespace warptape::kernels::cuda
