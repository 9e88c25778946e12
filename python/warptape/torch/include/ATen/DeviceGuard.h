// The current CUDA device, for a scope.
#pragma once

#include "ATen/core/TensorBody.h"

namespace c10 {
namespace cuda {

inline DeviceIndex device_count() noexcept { return static_cast<DeviceIndex>(wtx::api().device_count()); }
inline DeviceIndex current_device() {
  int index = 0;
  wtx::check(wtx::api().current_device(&index));
  return static_cast<DeviceIndex>(index);
}
inline void set_device(DeviceIndex index) { wtx::check(wtx::api().set_current_device(index)); }
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
    if (before_ >= 0) wtx::api().set_current_device(before_);
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

}  // namespace cuda

using DeviceGuard = cuda::OptionalCUDAGuard;
using OptionalDeviceGuard = cuda::OptionalCUDAGuard;

}  // namespace c10
namespace at {

inline optional<Device> device_of(const Tensor& t) {
  return t.defined() ? make_optional(t.device()) : nullopt;
}

}  // namespace at
