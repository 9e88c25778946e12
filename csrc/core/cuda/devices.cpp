#include "core/cuda/devices.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <set>

#include "core/cuda/error.h"
#include "core/errors.h"

namespace warptape::cuda {
namespace {

int count = 0;
thread_local int current = 0;        // the device that Python code means by "cuda"
thread_local int bound_device = -1;  // the one that the CUDA runtime has for this OS thread

// What is asked of every launch, found out on the first use of a device.
struct DeviceInfo {
  std::once_flag once;
  cudaDeviceProp properties{};
  std::atomic<kernels::IndexFault*> fault{nullptr};
  std::atomic<bool> failed{false};
  std::mutex failure_mutex;
  std::string failure;
};
using Devices = std::array<DeviceInfo, kMaxDevices>;

Devices& devices() {
  static auto* all = new Devices;
  return *all;
}

DeviceInfo& info(int index) {
  check_device(index, "cuda");
  DeviceInfo& d = devices()[static_cast<size_t>(index)];
  if (d.fault.load(std::memory_order_acquire)) return d;  // what is set last
  std::call_once(d.once, [&] {
    kernels::cuda::use_device(index);
    check(cudaGetDeviceProperties(&d.properties, index), "cuda properties");
    void* record = nullptr;
    check(cudaHostAlloc(&record, sizeof(kernels::IndexFault), cudaHostAllocPortable | cudaHostAllocMapped),
          "cuda fault record");
    d.fault = new (record) kernels::IndexFault;
  });
  return d;
}

std::string uuid_text(const cudaDeviceProp& p) {
  std::string out = "GPU";
  for (int i = 0; i < 16; ++i) {
    char hex[4];
    std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(p.uuid.bytes[i]));
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += hex;
  }
  return out;
}

}  // namespace

void set_device_count(int n) { count = std::min(n, kMaxDevices); }
int device_count() { return count; }

void check_device(int index, const char* what) {
  WT_CHECK(index >= 0 && index < count, DeviceError, what, ": there is no device cuda:", index, "; expected ",
           count == 1 ? "cuda:0, the only one here" : message("an ordinal from 0 to ", count - 1));
}

int current_device() { return current; }
void set_current_device(int index) {
  check_device(index, "set_device");
  current = index;
}

int used_device() {
  if (bound_device >= 0) return bound_device;
  for (int i = 0; i < count; ++i)
    if (devices()[static_cast<size_t>(i)].fault) return i;
  return -1;
}

DeviceProperties properties(int index) {
  const cudaDeviceProp& p = info(index).properties;
  DeviceProperties out;
  out.name = p.name;
  out.uuid = uuid_text(p);
  out.major = p.major;
  out.minor = p.minor;
  out.multi_processor_count = p.multiProcessorCount;
  out.max_threads_per_multi_processor = p.maxThreadsPerMultiProcessor;
  out.warp_size = p.warpSize;
  out.total_memory = static_cast<int64_t>(p.totalGlobalMem);
  out.l2_cache_size = p.l2CacheSize;
  out.shared_memory_per_block = static_cast<int64_t>(p.sharedMemPerBlock);
  out.shared_memory_per_block_optin = static_cast<int64_t>(p.sharedMemPerBlockOptin);
  out.shared_memory_per_multiprocessor = static_cast<int64_t>(p.sharedMemPerMultiprocessor);
  out.regs_per_multiprocessor = p.regsPerMultiprocessor;
  out.is_integrated = p.integrated != 0;
  out.is_multi_gpu_board = p.isMultiGpuBoard != 0;
  return out;
}

bool can_access_peer(int index, int peer) {
  check_device(index, "can_device_access_peer");
  check_device(peer, "can_device_access_peer");
  int can = 0;
  if (index != peer) check(cudaDeviceCanAccessPeer(&can, index, peer), "can_device_access_peer");
  return can != 0;
}

void enable_peer_access(int index, int peer) {
  static std::mutex mutex;
  static auto* tried = new std::set<std::pair<int, int>>;
  std::lock_guard lock(mutex);
  if (!tried->insert({index, peer}).second || !can_access_peer(index, peer)) return;
  kernels::cuda::use_device(index);
  succeeded(cudaDeviceEnablePeerAccess(peer, 0));  // already enabled, or copies go through the host
}

kernels::IndexFault* fault_record(int index) { return info(index).fault; }

void report_failure(int index, const std::string& text) {
  DeviceInfo& d = devices()[static_cast<size_t>(index)];
  std::lock_guard lock(d.failure_mutex);
  d.failure = text;
  d.failed = true;
}

void drop_failure(int index) { devices()[static_cast<size_t>(index)].failed = false; }

void raise_fault(int index, const char* op) {
  DeviceInfo& d = devices()[static_cast<size_t>(index)];
  if (d.failed.load(std::memory_order_acquire) && d.failed.exchange(false)) {
    std::lock_guard lock(d.failure_mutex);
    throw DistBackendError(d.failure);
  }
  kernels::IndexFault* record = d.fault;
  if (!record || !__atomic_load_n(&record->set, __ATOMIC_ACQUIRE)) return;
  kernels::IndexFault fault = *record;
  __atomic_store_n(&record->set, false, __ATOMIC_RELEASE);
  throw IndexError(message(fault.op ? fault.op : op, ": index ", fault.index,
                           " is out of bounds for dimension with size ", fault.bound));
}

void raise_any_fault(const char* op) {
  for (int i = 0; i < count; ++i) raise_fault(i, op);
}

}  // namespace warptape::cuda

namespace warptape::kernels::cuda {

// With one device the thread's own note suffices. With several, another library in the process may have
// bound this thread to another device meanwhile, so CUDA is asked.
void use_device(int index) {
  using namespace warptape::cuda;
  if (__builtin_expect(bound_device == index, 1)) {
    int actual = index;
    if (count == 1 || (cudaGetDevice(&actual) == cudaSuccess && actual == index)) return;
  }
  check_device(index, "cuda");
  check(cudaSetDevice(index), "set_device");
  bound_device = index;
}

int multi_processor_count(int index) { return warptape::cuda::info(index).properties.multiProcessorCount; }
int capability(int index) {
  const cudaDeviceProp& p = warptape::cuda::info(index).properties;
  return p.major * 10 + p.minor;
}

}  // namespace warptape::kernels::cuda
