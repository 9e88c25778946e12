// Streams, devices and errors of CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include "ATen/DeviceGuard.h"

#define C10_CUDA_CHECK(call)                                                                           \
  do {                                                                                                 \
    const cudaError_t warptape_error = (call);                                                         \
    if (C10_UNLIKELY(warptape_error != cudaSuccess)) {                                                 \
      (void)cudaGetLastError();                                                                        \
      ::c10::detail::fail("", "CUDA error: ", cudaGetErrorString(warptape_error), " at " __FILE__ ":", \
                          __LINE__);                                                                   \
    }                                                                                                  \
  } while (false)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define C10_CUDA_ERROR_HANDLED(call) (call)
#define AT_CUDA_CHECK(call) C10_CUDA_CHECK(call)

namespace c10 {
namespace cuda {

inline void device_synchronize() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }

class CUDAStream {
 public:
  CUDAStream(DeviceIndex device, cudaStream_t stream) : device_(device), stream_(stream) {}
  cudaStream_t stream() const { return stream_; }
  operator cudaStream_t() const { return stream_; }
  DeviceIndex device_index() const { return device_; }
  Device device() const { return {kCUDA, device_}; }
  bool query() const { return cudaStreamQuery(stream_) == cudaSuccess; }
  void synchronize() const { C10_CUDA_CHECK(cudaStreamSynchronize(stream_)); }
  friend bool operator==(const CUDAStream& a, const CUDAStream& b) { return a.stream_ == b.stream_; }
  friend bool operator!=(const CUDAStream& a, const CUDAStream& b) { return !(a == b); }

 private:
  DeviceIndex device_;
  cudaStream_t stream_;
};

// The calling thread's stream of a device; -1 is its current device.
inline CUDAStream getCurrentCUDAStream(DeviceIndex device = -1) {
  if (device < 0) device = current_device();
  void* stream = nullptr;
  wtx::check(wtx::api().current_stream(device, &stream));
  return {device, static_cast<cudaStream_t>(stream)};
}
inline CUDAStream getDefaultCUDAStream(DeviceIndex device = -1) {
  return {device < 0 ? current_device() : device, nullptr};
}
inline void setCurrentCUDAStream(CUDAStream s) {
  wtx::check(wtx::api().set_current_stream(s.device_index(), s.stream()));
}

}  // namespace cuda
}  // namespace c10
