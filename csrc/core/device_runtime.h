// What a device other than the CPU supplies, as one table that its plugin fills in. The CPU is built in; the
// meta device needs none of it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/device/capture.h"
#include "core/device/memory.h"
#include "core/device/profiling.h"
#include "core/device/streams.h"
#include "kernels/slot.h"

namespace warptape {

inline constexpr int kPluginAbi = 5;

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

// A device other than the CPU: what it is, and its parts by subject.
class WT_API DeviceRuntime : public DeviceMemory,
                             public DeviceStreams,
                             public DeviceCapture,
                             public DeviceProfiling {
 public:
  ~DeviceRuntime() override;

  // The current device belongs to the calling thread.
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

  // Switches of the libraries, by PyTorch's names: "cuda.matmul.allow_tf32", "cudnn.allow_tf32",
  // "cudnn.benchmark", ...; ValueError for one that there is not.
  virtual bool get_switch(const char* name) = 0;
  virtual void set_switch(const char* name, bool on) = 0;
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
