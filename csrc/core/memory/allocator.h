// Device memory behind one interface: caching allocators with statistics.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device.h"

namespace warptape {

struct MemoryStats {           // bytes, except where said
  int64_t allocated = 0;       // held by live storages
  int64_t peak_allocated = 0;  // the most since the last reset
  int64_t reserved = 0;        // allocated and cached
  int64_t peak_reserved = 0;
  int64_t allocations = 0;  // calls since start
  int64_t cache_hits = 0;   // calls that the cache answered
};

class Allocator {
 public:
  virtual ~Allocator() = default;
  // At least `bytes` bytes, 64-byte aligned; nullptr for 0. Throws OutOfMemoryError and leaves everything as
  // it was.
  virtual void* allocate(size_t bytes) = 0;
  virtual void deallocate(void* p, size_t bytes) noexcept = 0;  // with the size asked for
  virtual void empty_cache() = 0;
  virtual MemoryStats stats() const = 0;
  virtual void reset_peak() = 0;
};

WT_API Allocator& cpu_allocator();
// The allocator of a device; opens its plugin. DeviceError when there is none.
WT_API Allocator& allocator_of(Device device);

}  // namespace warptape
