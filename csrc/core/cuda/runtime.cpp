#include "core/cuda/runtime.h"

#include "core/context.h"
#include "core/cuda/devices.h"
#include "core/cuda/error.h"
#include "core/errors.h"

namespace warptape::cuda {
CudaRuntime::CudaRuntime(int count) {
  set_device_count(count);
  for (int i = 0; i < cuda::device_count(); ++i)
    allocators_.push_back(std::make_unique<DeviceAllocator>(i, malloc_segments(i)));
}

int CudaRuntime::device_count() { return cuda::device_count(); }
int CudaRuntime::current_device() { return cuda::current_device(); }
void CudaRuntime::set_current_device(int index) { cuda::set_current_device(index); }
DeviceProperties CudaRuntime::properties(int index) { return cuda::properties(index); }
bool CudaRuntime::can_access_peer(int index, int peer) { return cuda::can_access_peer(index, peer); }
kernels::IndexFault* CudaRuntime::fault_record(int index) { return cuda::fault_record(index); }
void CudaRuntime::raise_fault(int index) { cuda::raise_fault(index, "cuda"); }

std::vector<std::pair<std::string, std::string>> CudaRuntime::versions() {
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "versions");
  check(cudaRuntimeGetVersion(&runtime), "versions");
  kernels::cuda::Versions out{{"cuda_driver", version_text(driver)}, {"cuda_runtime", version_text(runtime)}};
  if (kernels::cuda::append_library_versions) kernels::cuda::append_library_versions(out);
  return out;
}

void CudaRuntime::synchronize(int index) {
  kernels::cuda::use_device(index);
  check(cudaDeviceSynchronize(), "synchronize");
  cuda::raise_fault(index, "synchronize");
}

// ---- memory ----

DeviceAllocator& CudaRuntime::device_allocator(int index) {
  check_device(index, "cuda");
  return *allocators_[static_cast<size_t>(index)];
}

// A mere question sets up no device, and raises nothing in a forked child.
bool CudaRuntime::is_page_locked(const void* p) {
  if (!p) return false;
  if (host_.owns(p)) return true;
  int device = used_device();
  cudaPointerAttributes attributes{};
  return device >= 0 && succeeded(cudaSetDevice(device)) &&
         succeeded(cudaPointerGetAttributes(&attributes, p)) && attributes.type == cudaMemoryTypeHost;
}

std::pair<int64_t, int64_t> CudaRuntime::memory_info(int index) {
  kernels::cuda::use_device(index);
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "mem_get_info");
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

NamedStats CudaRuntime::memory_stats(int index) { return device_allocator(index).named_stats(); }

void CudaRuntime::set_memory_fraction(int index, double fraction) {
  device_allocator(index).set_memory_fraction(fraction);
}

void CudaRuntime::record_memory_history(const MemoryHistoryOptions& options) {
  for (auto& allocator : allocators_) allocator->record_history(options);
}

MemorySnapshot CudaRuntime::memory_snapshot(int index) { return device_allocator(index).snapshot(); }

void CudaRuntime::record_stream(const void* data, int index, StreamHandle stream) {
  device_allocator(index).record_stream(data, stream);
}

void CudaRuntime::copy(void* dst, Device dst_device, const void* src, Device src_device, size_t bytes,
                       bool non_blocking) {
  if (bytes == 0) return;
  if (!dst_device.is_cuda()) return copy_with_host(dst, src, bytes, src_device.index, false, non_blocking);
  if (!src_device.is_cuda()) return copy_with_host(dst, src, bytes, dst_device.index, true, non_blocking);
  if (dst_device != src_device)
    return copy_between_devices(dst, dst_device.index, src, src_device.index, bytes);
  kernels::cuda::use_device(dst_device.index);
  cudaStream_t stream = as_stream(cuda::current_stream(dst_device.index));
  check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
}

void CudaRuntime::copy_with_host(void* dst, const void* src, size_t bytes, int index, bool to_device,
                                 bool non_blocking) {
  const void* host = to_device ? src : dst;
  if (thread_state().captured_draws)
    WT_CHECK(
        non_blocking && is_page_locked(host), DeviceError,
        "copy: while a graph is captured, only copies with non_blocking=True and page-locked host memory "
        "(pin_memory()) can be recorded; copy before or after the capture");
  kernels::cuda::use_device(index);
  StreamHandle stream = cuda::current_stream(index);
  auto kind = to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
  check(cudaMemcpyAsync(dst, src, bytes, kind, as_stream(stream)), "copy");
  if (non_blocking) {
    host_.record_use(host, index, stream);
  } else {
    cuda::synchronize_stream(index, stream, "copy");
  }
}

// Runs in the stream of the source, after what both streams were given so far; the stream of the destination
// goes on after it.
void CudaRuntime::copy_between_devices(void* dst, int dst_index, const void* src, int src_index,
                                       size_t bytes) {
  enable_peer_access(src_index, dst_index);
  cudaStream_t from = as_stream(cuda::current_stream(src_index));
  cudaStream_t to = as_stream(cuda::current_stream(dst_index));
  auto order = [](int index, cudaStream_t first, int next_index, cudaStream_t next) {
    cudaEvent_t event = nullptr;
    kernels::cuda::use_device(index);
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "copy");
    cudaError_t error = cudaEventRecord(event, first);
    kernels::cuda::use_device(next_index);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(next, event, 0);
    succeeded(cudaEventDestroy(event));  // CUDA keeps it until the wait is over
    check(error, "copy");
  };
  order(dst_index, to, src_index, from);
  check(cudaMemcpyPeerAsync(dst, dst_index, src, src_index, bytes, from), "copy");
  order(src_index, from, dst_index, to);
}

void CudaRuntime::fill_zero(void* dst, int index, size_t bytes) {
  if (bytes == 0) return;
  kernels::cuda::use_device(index);
  check(cudaMemsetAsync(dst, 0, bytes, as_stream(cuda::current_stream(index))), "zeros");
}

}  // namespace warptape::cuda
