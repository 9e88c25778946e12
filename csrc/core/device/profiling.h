// What a device did. One that cannot tell inherits what refuses, or does nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/export.h"

namespace warptape {

// A kernel, copy or fill that a device ran.
struct DeviceActivity {
  std::string name;      // "gemm_kernel<...>", "Memcpy HtoD", "Memset"
  const char* category;  // "kernel", "gpu_memcpy", "gpu_memset"
  int device = 0;
  uint64_t stream = 0;
  int64_t start = 0, end = 0;  // nanoseconds of the host's steady clock
  int64_t bytes = 0;           // of copies and fills
  uint64_t event = 0;          // that was open when it was launched, by push_event(); 0 for none
};

class WT_API DeviceProfiling {
 public:
  virtual ~DeviceProfiling();

  // Recorded from start to stop (by CUPTI); DeviceError where that library is missing.
  virtual void start_activities();
  virtual std::vector<DeviceActivity> stop_activities();  // waits for all devices
  // What this thread launches until pop_event() belongs to that number.
  virtual void push_event(uint64_t number);
  virtual void pop_event();

  // Ranges for profilers (NVTX): the depth of nested ranges, or -1.
  virtual int range_push(const char* text);
  virtual int range_pop();
  virtual void mark(const char* text);
};

}  // namespace warptape
