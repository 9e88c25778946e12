// The current device or stream, for a scope.
#pragma once

#include "ATen/DeviceGuard.h"
#include "c10/cuda/CUDAStream.h"

namespace c10 {
namespace cuda {

class CUDAGuard : public OptionalCUDAGuard {
 public:
  explicit CUDAGuard(DeviceIndex index) : OptionalCUDAGuard(index) {}
  explicit CUDAGuard(Device device) {
    TORCH_CHECK(device.is_cuda(), "CUDAGuard: expected a CUDA device, got ", device);
    set_device(device);
  }
};

class CUDAStreamGuard {
 public:
  explicit CUDAStreamGuard(CUDAStream stream)
      : device_(stream.device()), before_(getCurrentCUDAStream(stream.device_index())) {
    setCurrentCUDAStream(stream);
  }
  ~CUDAStreamGuard() { wtx::api().set_current_stream(before_.device_index(), before_.stream()); }
  CUDAStreamGuard(const CUDAStreamGuard&) = delete;
  CUDAStreamGuard& operator=(const CUDAStreamGuard&) = delete;

 private:
  CUDAGuard device_;
  CUDAStream before_;
};

}  // namespace cuda
}  // namespace c10

namespace at {
namespace cuda {
using namespace c10::cuda;
using c10::cuda::CUDAGuard;
using c10::cuda::getCurrentCUDAStream;
using c10::cuda::OptionalCUDAGuard;
}  // namespace cuda
}  // namespace at
