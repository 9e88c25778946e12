// What devices did, as CUPTI records it: kernels, copies and fills, each with the event that launched it.
#include "core/cuda/runtime.h"
#include "core/errors.h"

#if !__has_include(<cupti.h>)

namespace warptape::cuda {
void CudaRuntime::start_activities() {
  throw DeviceError("profile: this build has no CUPTI, so what CUDA devices do is not recorded");
}
std::vector<DeviceActivity> CudaRuntime::stop_activities() { return {}; }
void CudaRuntime::push_event(uint64_t) {}
void CudaRuntime::pop_event() {}
}  // namespace warptape::cuda

#else

#include <cupti.h>
#include <cxxabi.h>

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include "kernels/cuda/libraries/library.h"

namespace warptape::cuda {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr CUpti_ActivityKind kKinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,    CUPTI_ACTIVITY_KIND_MEMCPY,  CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER};

#define WT_CUPTI(NAME) \
  reinterpret_cast<decltype(&::NAME)>(kernels::cuda::library_symbol(kernels::cuda::Library::Cupti, #NAME))

struct Cupti {
  decltype(&::cuptiGetResultString) text = WT_CUPTI(cuptiGetResultString);
  decltype(&::cuptiActivityRegisterCallbacks) register_callbacks = WT_CUPTI(cuptiActivityRegisterCallbacks);
  decltype(&::cuptiActivityRegisterTimestampCallback) register_clock =
      WT_CUPTI(cuptiActivityRegisterTimestampCallback);
  decltype(&::cuptiActivityEnable) enable = WT_CUPTI(cuptiActivityEnable);
  decltype(&::cuptiActivityDisable) disable = WT_CUPTI(cuptiActivityDisable);
  decltype(&::cuptiActivityFlushAll) flush = WT_CUPTI(cuptiActivityFlushAll);
  decltype(&::cuptiActivityGetNextRecord) next = WT_CUPTI(cuptiActivityGetNextRecord);
  decltype(&::cuptiActivityPushExternalCorrelationId) push = WT_CUPTI(cuptiActivityPushExternalCorrelationId);
  decltype(&::cuptiActivityPopExternalCorrelationId) pop = WT_CUPTI(cuptiActivityPopExternalCorrelationId);

  void check(CUptiResult result, const char* what) const {
    if (result == CUPTI_SUCCESS) return;
    const char* why = "unknown error";
    text(result, &why);
    throw DeviceError(message("profile: CUPTI: ", what, ": ", why));
  }
};
#undef WT_CUPTI

const Cupti& cupti() {
  static const Cupti all;
  return all;
}

std::mutex mutex;
std::vector<DeviceActivity> found;                 // under the mutex, as are the two below
std::vector<uint32_t> calls;                       // of `found`: the number of the call that launched it
std::unordered_map<uint32_t, uint64_t> events_of;  // a call's event

uint64_t CUPTIAPI now() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *bytes = *buffer ? kBufferBytes : 0;
  *records = 0;
}

std::string demangled(const char* name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string out = status == 0 && text ? text : name;
  std::free(text);
  return out;
}

const char* copy_name(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "Memcpy HtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "Memcpy DtoH";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "Memcpy DtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "Memcpy PtoP";
    default:
      return "Memcpy";
  }
}

template <class Record>
void keep(const Record& r, std::string name, const char* category, int64_t bytes) {
  found.push_back({std::move(name), category, static_cast<int>(r.deviceId), r.streamId,
                   static_cast<int64_t>(r.start), static_cast<int64_t>(r.end), bytes, 0});
  calls.push_back(r.correlationId);
}

void keep(CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
    case CUPTI_ACTIVITY_KIND_KERNEL: {
      auto& r = *reinterpret_cast<CUpti_ActivityKernel10*>(record);
      return keep(r, demangled(r.name), "kernel", 0);
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      auto& r = *reinterpret_cast<CUpti_ActivityMemcpy6*>(record);
      return keep(r, copy_name(r.copyKind), "gpu_memcpy", static_cast<int64_t>(r.bytes));
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      auto& r = *reinterpret_cast<CUpti_ActivityMemset4*>(record);
      return keep(r, "Memset", "gpu_memset", static_cast<int64_t>(r.bytes));
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      auto& r = *reinterpret_cast<CUpti_ActivityExternalCorrelation*>(record);
      events_of[r.correlationId] = r.externalId;
      return;
    }
    default:
      return;  // the calls themselves
  }
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cupti().next(buffer, valid, &record) == CUPTI_SUCCESS) keep(record);
  std::free(buffer);
}

}  // namespace

void CudaRuntime::start_activities() {
  const Cupti& c = cupti();
  static const bool registered = [&] {
    c.check(c.register_clock(&now), "cuptiActivityRegisterTimestampCallback");
    c.check(c.register_callbacks(&give_buffer, &take_buffer), "cuptiActivityRegisterCallbacks");
    return true;
  }();
  static_cast<void>(registered);
  for (CUpti_ActivityKind kind : kKinds) c.check(c.enable(kind), "cuptiActivityEnable");
}

std::vector<DeviceActivity> CudaRuntime::stop_activities() {
  const Cupti& c = cupti();
  for (int i = 0; i < device_count(); ++i) synchronize(i);
  c.check(c.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  for (CUpti_ActivityKind kind : kKinds) c.disable(kind);
  std::lock_guard lock(mutex);
  for (size_t i = 0; i < found.size(); ++i)
    if (const auto at = events_of.find(calls[i]); at != events_of.end()) found[i].event = at->second;
  calls.clear();
  events_of.clear();
  return std::exchange(found, {});
}

void CudaRuntime::push_event(uint64_t number) {
  cupti().push(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, number);
}

void CudaRuntime::pop_event() {
  uint64_t number = 0;
  cupti().pop(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &number);
}

}  // namespace warptape::cuda

#endif
