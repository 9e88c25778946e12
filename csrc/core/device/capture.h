// Graphs of what a device was given. A device without them inherits what refuses.
#pragma once

#include <cstdint>

#include "core/export.h"

namespace warptape {

using GraphHandle = void*;

// What the current stream is given between begin and end is recorded instead of run.
class WT_API DeviceCapture {
 public:
  virtual ~DeviceCapture();

  // Memory taken meanwhile comes from the pool of that number, and stays the graph's until it is freed.
  virtual uint64_t new_pool();
  virtual void begin_capture(int index, uint64_t pool, const char* mode);
  virtual GraphHandle end_capture(int index);
  virtual bool is_capturing();  // the current stream of the calling thread
  virtual void replay(GraphHandle graph);
  virtual void free_graph(GraphHandle graph) noexcept;
};

}  // namespace warptape
