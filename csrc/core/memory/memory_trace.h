// Who took memory and gave it back, noted while somebody asks for it. Off, it costs storages one load.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/device.h"

namespace warptape {

struct MemoryEvent {
  int64_t time = 0;  // nanoseconds of the steady clock
  const void* data = nullptr;
  int64_t bytes = 0;  // as asked for; negative where they were given back
  Device device;
};

extern WT_API std::atomic<bool> traces_memory;

// False where somebody else traces. The end returns what all threads did, in order.
WT_API bool start_memory_trace();
WT_API std::vector<MemoryEvent> end_memory_trace();
// How many events there are by now: what a mark in a program lies between.
WT_API size_t memory_trace_length();
WT_API void note_memory(const void* data, int64_t bytes, Device device) noexcept;

}  // namespace warptape
