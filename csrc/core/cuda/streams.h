// Streams as the rest of the device runtime needs them: the current one of a thread, and events for the
// allocators.
#pragma once

#include <cuda_runtime.h>

#include <mutex>
#include <vector>

#include "core/device_runtime.h"

namespace warptape::cuda {

inline cudaStream_t as_stream(StreamHandle stream) { return static_cast<cudaStream_t>(stream); }

StreamHandle current_stream(int index);
void set_current_stream(int index, StreamHandle stream);
StreamHandle new_stream(int index, int priority);
// Waits for the stream, then raises errors and faults under the name `what`.
void synchronize_stream(int index, StreamHandle stream, const char* what);

// Graphs being captured in this process, on any thread. Meanwhile allocators record no events: on a stream
// that takes part they would become nodes of the graph.
bool any_capture();
void count_capture(int change);

// Events without timing, kept for reuse. Nothing here throws: blocks are freed by destructors, and those may
// run when the driver is gone; then an event is null and its block is not reused.
class EventPool {
 public:
  explicit EventPool(int device) : device_(device) {}
  cudaEvent_t record(StreamHandle stream) noexcept;
  void give_back(cudaEvent_t event) noexcept { free_.push_back(event); }

 private:
  int device_;
  std::vector<cudaEvent_t> free_;
};

}  // namespace warptape::cuda
