// Errors, devices, copies and launches of the emulated CUDA runtime. See Note [Emulated CUDA].
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "internal.h"

namespace emulator {
namespace {

constexpr int kMultiProcessors = 4;  // few, so that loops over the grid's stride are walked
constexpr int kSharedDefault = 48 << 10, kSharedMost = 227 << 10, kSharedOfProcessor = 228 << 10;

thread_local int t_device = 0;
thread_local cudaError_t t_error = cudaSuccess;
thread_local const char* t_launch_name = nullptr;
auto& g_shared_limit = *new std::map<const void*, int>;  // by kernel, where it was raised
auto& g_peers = *new std::set<std::pair<int, int>>;      // device, peer

bool old_driver() {
  const char* text = getenv("WARPTAPE_EMULATED_DRIVER");
  return text && !strcmp(text, "old");
}

// Compute capability of the devices, 90 for 9.0.
int capability() {
  static const int number = [] {
    const char* text = getenv("WARPTAPE_EMULATED_CAPABILITY");
    return text ? atoi(text) : 90;
  }();
  return number;
}
constexpr int kOldestCode = 80;  // kernels are compiled for it and, as PTX, for what came later

// How the environment wants this kernel to end.
cudaError_t planted_fault(const std::string& name) {
  const char* text = getenv("WARPTAPE_EMULATED_FAULT");
  if (!text) return cudaSuccess;
  const std::string all = text;
  const size_t colon = all.find(':');
  if (name != all.substr(0, colon)) return cudaSuccess;
  if (colon == std::string::npos) return cudaErrorIllegalAddress;
  const std::string kind = all.substr(colon + 1);
  if (kind == "misaligned") return cudaErrorMisalignedAddress;
  if (kind == "assert") return cudaErrorAssert;
  if (kind == "image") return cudaErrorNoKernelImageForDevice;
  if (kind == "resources") return cudaErrorLaunchOutOfResources;
  die("WARPTAPE_EMULATED_FAULT: there is no fault '%s'", kind.c_str());
}

std::string name_of(const void* kernel) {
  if (const char* given = std::exchange(t_launch_name, nullptr)) return given;
  Dl_info info;
  if (!dladdr(kernel, &info) || !info.dli_sname) return "(unnamed)";
  char* text = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, nullptr);
  std::string name = text ? text : info.dli_sname;
  free(text);
  return name;
}

bool fits(dim3 d, unsigned x, unsigned y, unsigned z) {
  return d.x && d.y && d.z && d.x <= x && d.y <= y && d.z <= z;
}

// Whether the pointers are what the direction says and the bytes lie in one allocation.
cudaError_t check_copy(const Place& to, const Place& from, size_t bytes, cudaMemcpyKind kind) {
  if ((to.device != kPageable && to.bytes < bytes) || (from.device != kPageable && from.bytes < bytes))
    return cudaErrorInvalidValue;
  if (kind == cudaMemcpyDefault) return cudaSuccess;
  bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  // Mapped memory of the host is also the device's.
  if (to_device ? to.device == kPageable : to.device >= 0) return cudaErrorInvalidValue;
  if (from_device ? from.device == kPageable : from.device >= 0) return cudaErrorInvalidValue;
  return cudaSuccess;
}

// From pageable memory the bytes are taken now; to pageable memory the copy is done on return.
cudaError_t copy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind, CUstream_st* stream) {
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (!bytes) return cudaSuccess;
  Place to = place_of(dst), from = place_of(src);
  if (auto e = check_copy(to, from, bytes, kind); e != cudaSuccess) return e;
  bool pageable = to.device == kPageable || from.device == kPageable;
  if (pageable && stream->capture) return invalidate(stream);
  std::shared_ptr<char[]> staged;
  if (from.device == kPageable) {
    staged = std::make_shared_for_overwrite<char[]>(bytes);
    memcpy(staged.get(), src, bytes);
  }
  Activity did{Activity::Kind::Copy, begin_activity(), 0, stream->device, stream->number(), "", bytes,
               from.device,          to.device};
  auto e = push(stream, {[=]() mutable {
                           did.start = activity_clock();
                           memmove(dst, staged ? staged.get() : src, bytes);
                           end_activity(did);
                         },
                         nullptr});
  note_uses(stream, {dst, src}, "a copy");
  if (to.device == kPageable) drain(stream);
  return e;
}

cudaError_t set(void* dst, int value, size_t bytes, CUstream_st* stream) {
  if (!stream) return cudaErrorInvalidResourceHandle;
  Place to = place_of(dst);
  if (bytes && (to.device == kPageable || to.bytes < bytes)) return cudaErrorInvalidValue;
  Activity did{Activity::Kind::Fill, begin_activity(), 0, stream->device, stream->number(), "", bytes};
  auto e = push(stream, {[=]() mutable {
                           did.start = activity_clock();
                           memset(dst, value, bytes);
                           end_activity(did);
                         },
                         nullptr});
  note_uses(stream, {dst}, "a fill");
  return e;
}

}  // namespace

static Mutex& mutex() {
  static Mutex it;
  return it;
}
std::unique_lock<Mutex> lock() { return std::unique_lock(mutex()); }
void pause() {
  const int depth = mutex().depth();
  for (int i = 0; i < depth; ++i) mutex().unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(100));
  for (int i = 0; i < depth; ++i) mutex().lock();
}
cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) t_error = error;
  return error;
}
int device_count() {
  static const int count = [] {
    const char* text = getenv("WARPTAPE_EMULATED_DEVICES");
    return text ? atoi(text) : 2;
  }();
  return count;
}
int current_device() { return t_device; }
cudaError_t& device_fault(int device) {
  static auto& faults = *new std::map<int, cudaError_t>;
  return faults[device];
}
cudaError_t usable(bool needs_device) {
  if (old_driver()) return cudaErrorInsufficientDriver;
  if (!device_count()) return cudaErrorNoDevice;
  return needs_device ? device_fault(t_device) : cudaSuccess;
}

void name_next_launch(const char* name) { t_launch_name = name; }
const char* next_launch_name() { return t_launch_name ? t_launch_name : "(unnamed)"; }

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, Work body) {
  const std::vector<const void*> used = taken_addresses();
  return call([&] {
    std::string name = name_of(kernel);
    CUstream_st* stream = resolve(config.stream);
    dim3 block = config.blockDim, grid = config.gridDim;
    size_t shared = config.dynamicSmemBytes;
    unsigned cluster = 1;
    for (unsigned i = 0; i < config.numAttrs; ++i)
      if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) {
        const auto& dim = config.attrs[i].val.clusterDim;
        if (dim.y != 1 || dim.z != 1) die("the emulator has clusters along x alone");
        cluster = dim.x;
      }
    if (!stream || stream->device != t_device) return cudaErrorInvalidResourceHandle;
    if (!fits(block, 1024, 1024, 64) || !fits(grid, 0x7fffffff, 65535, 65535) ||
        block.x * block.y * block.z > 1024)
      return cudaErrorInvalidConfiguration;
    if (cluster < 1 || cluster > 8 || grid.x % cluster) return cudaErrorInvalidConfiguration;
    if (capability() < kOldestCode) return cudaErrorNoKernelImageForDevice;
    const cudaError_t planted = planted_fault(name);
    if (planted == cudaErrorLaunchOutOfResources || planted == cudaErrorNoKernelImageForDevice)
      return planted;
    auto limit = g_shared_limit.find(kernel);
    if (shared > static_cast<size_t>(limit == g_shared_limit.end() ? kSharedDefault : limit->second))
      return cudaErrorInvalidValue;
    count_launch(kernel, block.x * block.y * block.z, shared);
    int device = t_device;
    Activity did{Activity::Kind::Kernel, begin_activity(), 0, device, stream->number(), name};
    const cudaError_t e = push(stream, {[=, body = std::move(body)]() mutable {
                                          if (device_fault(device) != cudaSuccess) return;
                                          did.start = activity_clock();
                                          if (planted != cudaSuccess)
                                            device_fault(device) = planted;
                                          else
                                            run_grid(name.c_str(), grid, block, shared, cluster, body);
                                          end_activity(did);
                                        },
                                        nullptr});
    note_uses(stream, used, name);
    return e;
  });
}

}  // namespace emulator

using namespace emulator;

// ---- errors ----
#define EMULATOR_ERRORS(X)                                                                          \
  X(cudaSuccess, "no error")                                                                        \
  X(cudaErrorInvalidValue, "invalid argument")                                                      \
  X(cudaErrorMemoryAllocation, "out of memory")                                                     \
  X(cudaErrorInitializationError, "initialization error")                                           \
  X(cudaErrorInvalidConfiguration, "invalid configuration argument")                                \
  X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")    \
  X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                        \
  X(cudaErrorInvalidDevice, "invalid device ordinal")                                               \
  X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                      \
  X(cudaErrorIllegalState, "the operation cannot be performed in the present state")                \
  X(cudaErrorNotReady, "device not ready")                                                          \
  X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                            \
  X(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device")    \
  X(cudaErrorMisalignedAddress, "misaligned address")                                               \
  X(cudaErrorAssert, "device-side assert triggered")                                                \
  X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")                       \
  X(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled")                            \
  X(cudaErrorLaunchFailure, "unspecified launch failure")                                           \
  X(cudaErrorNotSupported, "operation not supported")                                               \
  X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")          \
  X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")   \
  X(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences") \
  X(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began")        \
  X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                           \
  X(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream")     \
  X(cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capture")   \
  X(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capture")       \
  X(cudaErrorStreamCaptureWrongThread, "capture was ended by another thread than began it")
const char* cudaGetErrorName(cudaError_t error) {
#define EMULATOR_NAME(name, text) \
  if (error == name) return #name;
  EMULATOR_ERRORS(EMULATOR_NAME)
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) {
#define EMULATOR_TEXT(name, text) \
  if (error == name) return text;
  EMULATOR_ERRORS(EMULATOR_TEXT)
  return "unrecognized error code";
}
cudaError_t cudaPeekAtLastError() { return t_error; }
cudaError_t cudaGetLastError() {
  auto held = lock();
  return std::exchange(t_error, usable());  // a dead kernel's error does not go away
}

// ---- devices ----
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (auto e = usable(false); e != cudaSuccess) return remember(e);
  *count = device_count();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (auto e = usable(false); e != cudaSuccess) return remember(e);
  if (device < 0 || device >= device_count()) return remember(cudaErrorInvalidDevice);
  t_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  if (auto e = usable(false); e != cudaSuccess) return remember(e);
  *device = t_device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (auto e = usable(false); e != cudaSuccess) return remember(e);
  if (device < 0 || device >= device_count()) return remember(cudaErrorInvalidDevice);
  *p = {};
  snprintf(p->name, sizeof p->name, "Emulated CUDA device");
  for (int i = 0; i < 16; ++i) p->uuid.bytes[i] = static_cast<char>(i == 15 ? device : 0xe0 + i);
  p->totalGlobalMem = device_limit();
  p->sharedMemPerBlock = kSharedDefault;
  p->sharedMemPerBlockOptin = kSharedMost;
  p->sharedMemPerMultiprocessor = kSharedOfProcessor;
  p->major = capability() / 10, p->minor = capability() % 10;
  p->multiProcessorCount = kMultiProcessors;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->l2CacheSize = 1 << 20;
  p->memoryBusWidth = 64;
  p->canMapHostMemory = p->unifiedAddressing = p->concurrentKernels = 1;
  p->pciBusID = device;
  for (int i = 0; i < 3; ++i) {
    p->maxThreadsDim[i] = i == 2 ? 64 : 1024;
    p->maxGridSize[i] = i ? 65535 : 0x7fffffff;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  if (auto e = cudaGetDeviceProperties(&p, device); e != cudaSuccess) return e;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = p.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = kSharedDefault;
      break;
    case cudaDevAttrWarpSize:
      *value = p.warpSize;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = p.multiProcessorCount;
      break;
    case cudaDevAttrL2CacheSize:
      *value = p.l2CacheSize;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = p.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = p.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = p.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = kSharedOfProcessor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kSharedMost;
      break;
    default:
      return remember(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = !device_count() ? 0 : old_driver() ? 11080 : 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return call([&] {
    if (device < 0 || device >= device_count() || peer < 0 || peer >= device_count())
      return cudaErrorInvalidDevice;
    *can = device != peer;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return call([&] {
    if (peer < 0 || peer >= device_count() || peer == t_device) return cudaErrorInvalidDevice;
    return g_peers.insert({t_device, peer}).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
  });
}
cudaError_t cudaDeviceSynchronize() {
  return call([] {
    if (capturing(t_device)) return cudaErrorStreamCaptureUnsupported;
    drain_device(t_device);
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

// ---- memory ----
cudaError_t cudaMalloc(void** p, size_t bytes) {
  return call([&] {
    if (auto e = unsafe_call(); e != cudaSuccess) return e;
    return allocate_device(t_device, p, bytes);
  });
}
cudaError_t cudaFree(void* p) {
  return call([&] {
    if (!p) return cudaSuccess;
    if (auto e = unsafe_call(); e != cudaSuccess) return e;
    Place place = place_of(p);
    if (place.device < 0) return cudaErrorInvalidValue;
    drain_device(place.device);  // CUDA waits too
    return free_device(p);
  });
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return call([&] {
    *total = device_limit();
    *free = *total - device_used(t_device);
    return cudaSuccess;
  });
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  return call([&] {
    if (auto e = unsafe_call(); e != cudaSuccess) return e;
    return allocate_host(p, bytes);
  });
}
cudaError_t cudaMallocHost(void** p, size_t bytes, unsigned flags) { return cudaHostAlloc(p, bytes, flags); }
cudaError_t cudaFreeHost(void* p) {
  return call([&] {
    if (!p) return cudaSuccess;
    if (auto e = unsafe_call(); e != cudaSuccess) return e;
    for (int i = 0; i < device_count(); ++i) drain_device(i);
    return free_host(p);
  });
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  return call([&] {
    if (place_of(host).device != kPageLocked) return cudaErrorInvalidValue;
    *device = host;
    return cudaSuccess;
  });
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  return call([&] {
    Place place = place_of(p);
    void* pointer = const_cast<void*>(p);
    *a = {cudaMemoryTypeUnregistered, -2, nullptr, nullptr};
    if (place.device == kPageLocked) *a = {cudaMemoryTypeHost, 0, pointer, pointer};
    if (place.device >= 0) *a = {cudaMemoryTypeDevice, place.device, pointer, nullptr};
    return cudaSuccess;
  });
}
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call([&] { return copy(dst, src, bytes, kind, resolve(stream)); });
}
cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  return call([&] {
    if (auto e = unsafe_call(); e != cudaSuccess) return e;
    auto e = copy(dst, src, bytes, kind, default_stream(t_device));
    drain(default_stream(t_device));
    return e;
  });
}
cudaError_t cudaMemcpyPeerAsync(void* dst, int dst_device, const void* src, int src_device, size_t bytes,
                                cudaStream_t stream) {
  return call([&] {
    if (bytes && (place_of(dst).device != dst_device || place_of(src).device != src_device))
      return cudaErrorInvalidValue;
    return copy(dst, src, bytes, cudaMemcpyDeviceToDevice, resolve(stream));
  });
}
cudaError_t cudaMemsetAsync(void* dst, int value, size_t bytes, cudaStream_t stream) {
  return call([&] { return set(dst, value, bytes, resolve(stream)); });
}
cudaError_t cudaMemset(void* dst, int value, size_t bytes) { return cudaMemsetAsync(dst, value, bytes); }

// ---- kernels ----
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return call([&] {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > kSharedMost) return cudaErrorInvalidValue;
    g_shared_limit[kernel] = value;
    return cudaSuccess;
  });
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads,
                                                          size_t shared_bytes) {
  int warps = (threads + 31) / 32;
  if (warps < 1 || warps > 32) return remember(cudaErrorInvalidValue);
  *blocks = min(64 / warps, 32);
  if (shared_bytes) *blocks = min(*blocks, static_cast<int>(kSharedOfProcessor / (shared_bytes + 1024)));
  return cudaSuccess;
}
