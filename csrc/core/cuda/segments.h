// Where the device allocator gets the large pieces of memory that it cuts up.
#pragma once

#include <cstddef>
#include <memory>

namespace warptape::cuda {

class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  // Null when there is no room; throws on any other trouble. 512-byte aligned; a multiple of 2 MiB is asked.
  virtual void* allocate(size_t bytes) = 0;
  // Returns the piece once all work that was given to the device is done with it.
  virtual void free(void* p, size_t bytes) noexcept = 0;
};

std::unique_ptr<SegmentSource> malloc_segments(int device);  // cudaMalloc, cudaFree

}  // namespace warptape::cuda
