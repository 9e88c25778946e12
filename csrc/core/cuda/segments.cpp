#include "core/cuda/segments.h"

#include "core/cuda/devices.h"
#include "core/cuda/error.h"
#include "core/cuda/streams.h"
#include "kernels/cuda/common/relaxed_capture.h"

namespace warptape::cuda {
namespace {

class MallocSegments final : public SegmentSource {
 public:
  explicit MallocSegments(int device) : device_(device) {}

  void* allocate(size_t bytes) override {
    kernels::cuda::use_device(device_);
    kernels::cuda::RelaxedCapture relaxed;
    void* p = nullptr;
    cudaError_t error = cudaMalloc(&p, bytes);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return nullptr;
    }
    check(error, "cuda allocator");
    return p;
  }

  // cudaFree waits for the device by itself. At exit the driver may be gone, and its memory with it.
  void free(void* p, size_t) noexcept override {
    if (succeeded(cudaSetDevice(device_))) succeeded(cudaFree(p));
  }

 private:
  int device_;
};

}  // namespace

std::unique_ptr<SegmentSource> malloc_segments(int device) {
  return std::make_unique<MallocSegments>(device);
}

}  // namespace warptape::cuda
