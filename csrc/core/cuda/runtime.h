// DeviceRuntime for CUDA. One object, implemented by concern: runtime.cpp (devices, memory, copies),
// events.cpp (streams, events), graph.cpp, switches.cpp, activities.cpp, nvtx.cpp.
#pragma once

#include <memory>

#include "core/cuda/allocator.h"
#include "core/cuda/host_allocator.h"

namespace warptape::cuda {

class CudaRuntime final : public DeviceRuntime {
 public:
  explicit CudaRuntime(int count);

  int device_count() override;
  int current_device() override;
  void set_current_device(int index) override;
  DeviceProperties properties(int index) override;
  bool can_access_peer(int index, int peer) override;
  std::vector<std::pair<std::string, std::string>> versions() override;
  void synchronize(int index) override;
  void raise_fault(int index) override;
  kernels::IndexFault* fault_record(int index) override;

  Allocator& allocator(int index) override { return device_allocator(index); }
  Allocator& host_allocator() override { return host_; }
  bool is_page_locked(const void* p) override;
  std::pair<int64_t, int64_t> memory_info(int index) override;
  NamedStats memory_stats(int index) override;
  void set_memory_fraction(int index, double fraction) override;
  void record_memory_history(const MemoryHistoryOptions& options) override;
  MemorySnapshot memory_snapshot(int index) override;
  void record_stream(const void* data, int index, StreamHandle stream) override;
  void copy(void* dst, Device dst_device, const void* src, Device src_device, size_t bytes,
            bool non_blocking) override;
  void fill_zero(void* dst, int index, size_t bytes) override;

  StreamHandle current_stream(int index) override;
  void set_current_stream(int index, StreamHandle stream) override;
  StreamHandle new_stream(int index, int priority) override;
  bool stream_done(int index, StreamHandle stream) override;
  void synchronize_stream(int index, StreamHandle stream) override;
  EventHandle new_event(int index, bool timing, bool blocking) override;
  void free_event(EventHandle event) noexcept override;
  void record_event(EventHandle event, int index, StreamHandle stream) override;
  void wait_event(int index, StreamHandle stream, EventHandle event) override;
  bool event_done(EventHandle event) override;
  void synchronize_event(EventHandle event) override;
  double elapsed_ms(EventHandle start, EventHandle end) override;

  uint64_t new_pool() override;
  void begin_capture(int index, uint64_t pool, const char* mode) override;
  GraphHandle end_capture(int index) override;
  bool is_capturing() override;
  void replay(GraphHandle graph) override;
  void free_graph(GraphHandle graph) noexcept override;

  bool get_switch(const char* name) override;
  void set_switch(const char* name, bool on) override;

  void start_activities() override;
  std::vector<DeviceActivity> stop_activities() override;
  void push_event(uint64_t number) override;
  void pop_event() override;

  int range_push(const char* text) override;
  int range_pop() override;
  void mark(const char* text) override;

 private:
  DeviceAllocator& device_allocator(int index);
  void copy_with_host(void* dst, const void* src, size_t bytes, int index, bool to_device, bool non_blocking);
  void copy_between_devices(void* dst, int dst_index, const void* src, int src_index, size_t bytes);

  std::vector<std::unique_ptr<DeviceAllocator>> allocators_;
  HostAllocator host_;
};

}  // namespace warptape::cuda
