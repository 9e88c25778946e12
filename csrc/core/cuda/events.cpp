#include "core/cuda/devices.h"
#include "core/cuda/error.h"
#include "core/cuda/runtime.h"
#include "core/errors.h"

namespace warptape::cuda {
namespace {

cudaEvent_t as_event(EventHandle event) { return static_cast<cudaEvent_t>(event); }

bool done(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return true;
  if (error != cudaErrorNotReady) raise_error(error, what);
  (void)cudaGetLastError();
  return false;
}

}  // namespace

StreamHandle CudaRuntime::current_stream(int index) { return cuda::current_stream(index); }
void CudaRuntime::set_current_stream(int index, StreamHandle stream) {
  cuda::set_current_stream(index, stream);
}
StreamHandle CudaRuntime::new_stream(int index, int priority) { return cuda::new_stream(index, priority); }

bool CudaRuntime::stream_done(int index, StreamHandle stream) {
  kernels::cuda::use_device(index);
  return done(cudaStreamQuery(as_stream(stream)), "Stream.query");
}

void CudaRuntime::synchronize_stream(int index, StreamHandle stream) {
  cuda::synchronize_stream(index, stream, "Stream.synchronize");
}

EventHandle CudaRuntime::new_event(int index, bool timing, bool blocking) {
  kernels::cuda::use_device(index);
  unsigned flags = (timing ? 0u : cudaEventDisableTiming) | (blocking ? cudaEventBlockingSync : 0u);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, flags), "Event");
  return event;
}

void CudaRuntime::free_event(EventHandle event) noexcept {
  if (event) succeeded(cudaEventDestroy(as_event(event)));
}

void CudaRuntime::record_event(EventHandle event, int index, StreamHandle stream) {
  kernels::cuda::use_device(index);
  check(cudaEventRecord(as_event(event), as_stream(stream)), "Event.record");
}

void CudaRuntime::wait_event(int index, StreamHandle stream, EventHandle event) {
  kernels::cuda::use_device(index);
  check(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0), "Event.wait");
}

bool CudaRuntime::event_done(EventHandle event) {
  return done(cudaEventQuery(as_event(event)), "Event.query");
}

void CudaRuntime::synchronize_event(EventHandle event) {
  check(cudaEventSynchronize(as_event(event)), "Event.synchronize");
  raise_any_fault("Event.synchronize");
}

double CudaRuntime::elapsed_ms(EventHandle start, EventHandle end) {
  float ms = 0;
  cudaError_t error = cudaEventElapsedTime(&ms, as_event(start), as_event(end));
  if (error == cudaErrorNotReady || error == cudaErrorInvalidResourceHandle) {
    (void)cudaGetLastError();
    WT_CHECK(error != cudaErrorNotReady, DeviceError,
             "Event.elapsed_time: both events must have happened; call synchronize() on the later one first");
    throw DeviceError(
        "Event.elapsed_time: expected two events made with enable_timing=True and recorded on one device");
  }
  check(error, "Event.elapsed_time");
  return ms;
}

}  // namespace warptape::cuda
