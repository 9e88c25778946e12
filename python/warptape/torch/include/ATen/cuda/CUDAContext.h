// What the current CUDA device is, and its stream.
#pragma once

#include "ATen/ceil_div.h"
#include "c10/cuda/CUDAGuard.h"

namespace at {
namespace cuda {

inline bool is_available() { return c10::cuda::device_count() > 0; }
inline int64_t getNumGPUs() { return c10::cuda::device_count(); }
inline cudaDeviceProp* getDeviceProperties(int64_t device) {
  static thread_local cudaDeviceProp properties;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, static_cast<int>(device)));
  return &properties;
}
inline cudaDeviceProp* getCurrentDeviceProperties() {
  return getDeviceProperties(c10::cuda::current_device());
}
inline int warp_size() { return 32; }

}  // namespace cuda
}  // namespace at
