// The current device or stream, for a scope.
#pragma once

#include "ATen/core/TensorBody.h"
#include "c10/cuda/CUDAStream.h"

namespace c10 {
namespace cuda {

// Of a tensor that lies elsewhere the device stays.
class OptionalCUDAGuard {
 public:
  OptionalCUDAGuard() = default;
  explicit OptionalCUDAGuard(optional<Device> device) {
    if (device) set_device(*device);
  }
  explicit OptionalCUDAGuard(DeviceIndex index) { set_index(index); }
  OptionalCUDAGuard(const OptionalCUDAGuard&) = delete;
  OptionalCUDAGuard& operator=(const OptionalCUDAGuard&) = delete;
  ~OptionalCUDAGuard() {
    if (before_ >= 0) warptape::extension::api().set_current_device(before_);
  }
  void set_device(Device device) {
    if (device.is_cuda()) set_index(device.index());
  }
  void set_index(DeviceIndex index) {
    if (before_ < 0) before_ = current_device();
    if (index >= 0) c10::cuda::set_device(index);
  }

 private:
  int before_ = -1;
};

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
  ~CUDAStreamGuard() { warptape::extension::api().set_current_stream(before_.device_index(), before_.stream()); }
  CUDAStreamGuard(const CUDAStreamGuard&) = delete;
  CUDAStreamGuard& operator=(const CUDAStreamGuard&) = delete;

 private:
  CUDAGuard device_;
  CUDAStream before_;
};

}  // namespace cuda

using DeviceGuard = cuda::OptionalCUDAGuard;
using OptionalDeviceGuard = cuda::OptionalCUDAGuard;

}  // namespace c10

namespace at {
using DeviceGuard = c10::DeviceGuard;

inline c10::optional<Device> device_of(const Tensor& t) {
  return t.defined() ? c10::make_optional(t.device()) : c10::nullopt;
}
namespace cuda {
using namespace c10::cuda;
using c10::cuda::CUDAGuard;
using c10::cuda::getCurrentCUDAStream;
using c10::cuda::OptionalCUDAGuard;
}  // namespace cuda
}  // namespace at
