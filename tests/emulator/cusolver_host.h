// What the parts of the stand-in for cuSOLVER share: handles, and the routines that name types by arguments.
#pragma once

#include "cusolverDn.h"
#include "solver_host.h"

struct cusolverDnContext {
  int device;
  cudaStream_t stream;
};
struct cusolverDnParams {};
struct gesvdjInfo {};

namespace emulator::solver {

constexpr auto kOk = CUSOLVER_STATUS_SUCCESS;
constexpr auto kInvalid = CUSOLVER_STATUS_INVALID_VALUE;

inline bool refuses() {
  const char* refused = std::getenv("WARPTAPE_EMULATED_REFUSE");
  return refused && !std::strcmp(refused, "solver");
}
inline bool is_handle(cusolverDnHandle_t handle) {
  const auto* stream = handle ? emulator::resolve(handle->stream) : nullptr;
  return stream && stream->device == handle->device && emulator::current_device() == handle->device;
}
inline cusolverStatus_t run(cusolverDnHandle_t handle, emulator::Work work) {
  if (refuses()) return CUSOLVER_STATUS_NOT_SUPPORTED;
  return emulator::enqueue(handle->stream, std::move(work)) == cudaSuccess ? kOk
                                                                           : CUSOLVER_STATUS_EXECUTION_FAILED;
}

inline bool is_real(cudaDataType t) { return t == CUDA_R_32F || t == CUDA_R_64F; }
inline bool is_double(cudaDataType t) { return t == CUDA_R_64F || t == CUDA_C_64F; }
inline bool is_type(cudaDataType t) { return is_real(t) || t == CUDA_C_32F || t == CUDA_C_64F; }
inline DType dtype_of_library(cudaDataType t) {
  return t == CUDA_R_32F   ? DType::Float32
         : t == CUDA_R_64F ? DType::Float64
         : t == CUDA_C_32F ? DType::Complex64
                           : DType::Complex128;
}
template <class F>
void by_type(cudaDataType t, F&& f) {
  dispatch(Types<float, double, Complex<float>, Complex<double>>{}, dtype_of_library(t), f);
}
template <class T> struct PartOf {
  using type = T;
};
template <class R> struct PartOf<Complex<R>> {
  using type = R;
};

// Of no use here, but it must be there.
inline size_t work_bytes(int64_t n) { return size_t(n) * 24 + 40; }
inline cusolverStatus_t tell_bytes(bool valid, size_t* device_bytes, size_t* host_bytes, int64_t numbers) {
  if (!valid || !device_bytes || !host_bytes) return kInvalid;
  *device_bytes = *host_bytes = work_bytes(numbers);
  return kOk;
}
struct Buffers {
  void* on_device;
  size_t device_bytes;
  void* on_host;
  size_t host_bytes;
  bool suit(int device, int64_t numbers) const {
    return device_bytes >= work_bytes(numbers) && emulator::lies_on(device, on_device, device_bytes) &&
           host_bytes >= work_bytes(numbers) && on_host && emulator::place_of(on_host).device < 0;
  }
};

}  // namespace emulator::solver
