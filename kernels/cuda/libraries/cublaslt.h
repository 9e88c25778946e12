// What users of cuBLASLt share: descriptors that end with their owner, and a handle a device. Header of the
// files that make products; internal to them.
#pragma once

#include <cublasLt.h>

#include <array>
#include <mutex>
#include <string>

#include "kernels/cuda/common/relaxed_capture.h"
#include "kernels/cuda/common/runtime.h"

namespace warptape::kernels::cuda {

inline constexpr int kMaxDevices = 64;

inline void check_lt(cublasStatus_t status, const char* what) {
  if (__builtin_expect(status != CUBLAS_STATUS_SUCCESS, 0))
    raise_library_error(std::string("matmul: ") + what +
                        " of cuBLASLt failed: " + cublasLtGetStatusString(status));
}

template <class Handle, cublasStatus_t (*Destroy)(Handle)>
class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (handle_) Destroy(handle_);
  }
  Handle* fill() { return &handle_; }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};
using Operation = Descriptor<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Descriptor<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Descriptor<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <class V>
void set(const Operation& o, cublasLtMatmulDescAttributes_t what, V value) {
  check_lt(cublasLtMatmulDescSetAttribute(o.get(), what, &value, sizeof value), "setting an operation");
}
template <class V>
void set(const Layout& l, cublasLtMatrixLayoutAttribute_t what, V value) {
  check_lt(cublasLtMatrixLayoutSetAttribute(l.get(), what, &value, sizeof value), "setting a layout");
}
template <class V>
void set(const Preference& p, cublasLtMatmulPreferenceAttributes_t what, V value) {
  check_lt(cublasLtMatmulPreferenceSetAttribute(p.get(), what, &value, sizeof value), "setting a preference");
}

// One a device; any thread may use it.
inline cublasLtHandle_t handle_of(int device) {
  static std::array<cublasLtHandle_t, kMaxDevices> all{};
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = all[static_cast<size_t>(device)];
  if (!handle) {
    RelaxedCapture relaxed;
    check_lt(cublasLtCreate(&handle), "opening");
  }
  return handle;
}

}  // namespace warptape::kernels::cuda
