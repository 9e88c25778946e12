// What a device other than the CPU supplies, as one table that its plugin fills in. The CPU is built in; the
// meta device needs none of it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/memory/allocator.h"
#include "core/memory/memory_history.h"
#include "kernels/slot.h"

namespace warptape {

inline constexpr int kPluginAbi = 4;

struct DeviceProperties {
  std::string name;
  std::string uuid;  // "GPU-..." as nvidia-smi prints it
  int major = 0, minor = 0;
  int multi_processor_count = 0;
  int max_threads_per_multi_processor = 0;
  int warp_size = 0;
  int64_t total_memory = 0;  // bytes, like all sizes here
  int64_t l2_cache_size = 0;
  int64_t shared_memory_per_block = 0;
  int64_t shared_memory_per_block_optin = 0;
  int64_t shared_memory_per_multiprocessor = 0;
  int regs_per_multiprocessor = 0;
  bool is_integrated = false;
  bool is_multi_gpu_board = false;
};

// Work for one device in order; null is the device's default stream.
using StreamHandle = void*;
using EventHandle = void*;
using GraphHandle = void*;

// What an allocator with streams and segments can tell beyond MemoryStats, as torch.cuda.memory_stats names
// it.
using NamedStats = std::vector<std::pair<std::string, int64_t>>;

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

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  // ---- devices; the current one belongs to the calling thread ----
  virtual int device_count() = 0;
  virtual int current_device() = 0;
  virtual void set_current_device(int index) = 0;  // DeviceError for an ordinal that there is not
  virtual DeviceProperties properties(int index) = 0;
  virtual bool can_access_peer(int index, int peer) = 0;
  virtual std::vector<std::pair<std::string, std::string>> versions() = 0;  // of the driver and libraries
  // Waits for all work of the device, then raises what it found (IndexError of a kernel, DeviceError).
  virtual void synchronize(int index) = 0;
  // Raises a fault that a finished kernel has reported; waits for nothing.
  virtual void raise_fault(int index) = 0;
  // Where kernels report a bad index: mapped memory that host and device share.
  virtual kernels::IndexFault* fault_record(int index) = 0;

  // ---- memory ----
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

  // ---- streams and events ----
  virtual StreamHandle current_stream(int index) = 0;  // of the calling thread
  virtual void set_current_stream(int index, StreamHandle stream) = 0;
  virtual StreamHandle new_stream(int index, int priority) = 0;  // from a pool: never destroyed
  virtual bool stream_done(int index, StreamHandle stream) = 0;
  virtual void synchronize_stream(int index, StreamHandle stream) = 0;
  virtual EventHandle new_event(int index, bool timing, bool blocking) = 0;
  virtual void free_event(EventHandle event) noexcept = 0;
  virtual void record_event(EventHandle event, int index, StreamHandle stream) = 0;
  virtual void wait_event(int index, StreamHandle stream, EventHandle event) = 0;
  virtual bool event_done(EventHandle event) = 0;
  virtual void synchronize_event(EventHandle event) = 0;
  virtual double elapsed_ms(EventHandle start, EventHandle end) = 0;

  // ---- graphs: what the current stream is given between begin and end is recorded instead of run ----
  // Memory taken meanwhile comes from the pool of that number, and stays the graph's until it is freed.
  virtual uint64_t new_pool() = 0;
  virtual void begin_capture(int index, uint64_t pool, const char* mode) = 0;
  virtual GraphHandle end_capture(int index) = 0;
  virtual bool is_capturing() = 0;  // the current stream of the calling thread
  virtual void replay(GraphHandle graph) = 0;
  virtual void free_graph(GraphHandle graph) noexcept = 0;

  // ---- switches of the libraries, by PyTorch's names: "cuda.matmul.allow_tf32", "cudnn.allow_tf32",
  // "cudnn.benchmark", ...; ValueError for one that there is not ----
  virtual bool get_switch(const char* name) = 0;
  virtual void set_switch(const char* name, bool on) = 0;

  // ---- what devices did (CUPTI), for a profile; DeviceError where that library is missing ----
  virtual void start_activities() = 0;
  virtual std::vector<DeviceActivity> stop_activities() = 0;  // waits for all devices
  // What this thread launches until pop_event() belongs to that number.
  virtual void push_event(uint64_t number) = 0;
  virtual void pop_event() = 0;

  // ---- ranges for profilers (NVTX) ----
  virtual int range_push(const char* text) = 0;
  virtual int range_pop() = 0;
  virtual void mark(const char* text) = 0;
};

// Called by a plugin from warptape_plugin_init(abi), which it exports beside the text warptape_plugin_build.
WT_API void register_device_runtime(DeviceType type, DeviceRuntime* runtime);
WT_API void register_kernels(const kernels::KernelEntry* begin, const kernels::KernelEntry* end);
// Opens the plugin on first use; DeviceError that says what is missing.
WT_API DeviceRuntime& runtime_of(DeviceType type);
// The runtime if it can be used here, else null and why.
WT_API DeviceRuntime* find_runtime(DeviceType type, std::string* why = nullptr);
// Whether something other than a question has been asked of the device's runtime.
WT_API bool device_in_use(DeviceType type);
// A switch of the libraries (see DeviceRuntime::set_switch), kept until the runtime is there.
WT_API void set_library_switch(DeviceType type, const char* name, bool on);
// What the device's plugin was built with, such as "13.0.88 for sm_80+PTX sm_90a"; empty without a plugin.
WT_API std::string plugin_build(DeviceType type);
// Folder in which plugins lie, set by the bindings at import.
WT_API void set_plugin_folder(const char* path);
// Folders that packages are installed in (Python's sys.path), where plugins look for the vendor's libraries.
WT_API void set_package_folders(std::vector<std::string> folders);
WT_API std::vector<std::string> package_folders();
// Opens libwarptape_<name>.so of that folder, a plugin that is no device's: it registers what it brings.
// Empty, or why it cannot be used; `absent` where there is no such file.
WT_API std::string open_plugin(const std::string& name, const std::string& absent);

}  // namespace warptape
