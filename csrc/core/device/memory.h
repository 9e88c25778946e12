// The memory of a device.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/device/streams.h"
#include "core/memory/allocator.h"
#include "core/memory/memory_history.h"

namespace warptape {

// What an allocator with streams and segments can tell beyond MemoryStats, as torch.cuda.memory_stats names
// it.
using NamedStats = std::vector<std::pair<std::string, int64_t>>;

class WT_API DeviceMemory {
 public:
  virtual ~DeviceMemory();

  virtual Allocator& allocator(int index) = 0;
  virtual Allocator& host_allocator() = 0;  // page-locked memory of the host
  virtual bool is_page_locked(const void* p) = 0;
  virtual std::pair<int64_t, int64_t> memory_info(int index) = 0;  // free and total bytes of the device
  virtual NamedStats memory_stats(int index) = 0;
  virtual void set_memory_fraction(int index, double fraction) = 0;
  virtual void record_memory_history(const MemoryHistoryOptions& options) = 0;  // of all devices
  virtual MemorySnapshot memory_snapshot(int index) = 0;
  // The block that holds `data` is also used on `stream` of the same device: once freed, it is not handed out
  // again before what that stream was given until then is done. Does nothing for foreign memory.
  virtual void record_stream(const void* data, int index, StreamHandle stream) = 0;
  // Queued on the current stream. Unless `non_blocking`, a copy from or to host memory returns when it is
  // done; a copy from pageable memory returns when the host side may be reused in any case.
  virtual void copy(void* dst, Device dst_device, const void* src, Device src_device, size_t bytes,
                    bool non_blocking) = 0;
  virtual void fill_zero(void* dst, int index, size_t bytes) = 0;
};

}  // namespace warptape
