// What a device other than the CPU supplies, as one table that its plugin fills in. The CPU is built in; the
// meta device needs none of it.
#pragma once

#include "core/allocator.h"
#include "kernels/slot.h"

namespace warptape {

inline constexpr int kPluginAbi = 1;

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual int device_count() = 0;
  virtual Allocator& allocator(int index) = 0;
  // Queued on the current stream; a copy from or to pageable host memory returns when the host side may be
  // reused.
  virtual void copy(void* dst, Device dst_device, const void* src, Device src_device, size_t bytes) = 0;
  virtual void* current_stream(int index) = 0;
  virtual void synchronize(int index) = 0;
};

// Called by a plugin from its one exported function, warptape_plugin_init(abi).
WT_API void register_device_runtime(DeviceType type, DeviceRuntime* runtime);
WT_API void register_kernels(const kernels::KernelEntry* begin, const kernels::KernelEntry* end);
// Opens the plugin on first use; DeviceError that says what is missing.
WT_API DeviceRuntime& runtime_of(DeviceType type);
// Folder in which plugins lie, set by the bindings at import.
WT_API void set_plugin_folder(const char* path);

}  // namespace warptape
