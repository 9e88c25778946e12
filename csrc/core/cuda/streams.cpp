#include "core/cuda/streams.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "core/cuda/devices.h"
#include "core/cuda/error.h"
#include "core/errors.h"

namespace warptape::cuda {
namespace {

constexpr int kStreamsPerPool = 32;
constexpr int kMaxPriorities = 8;

thread_local StreamHandle current_streams[kMaxDevices];  // null is the device's default stream
std::atomic<int> captures{0};

// Streams are made when first asked for and then handed out in turn; never destroyed, for nobody can tell
// who still holds one.
struct StreamPool {
  std::mutex mutex;
  std::array<StreamHandle, kStreamsPerPool> streams{};
  size_t next = 0;
};
using DevicePools = std::array<StreamPool, kMaxPriorities>;

StreamPool& pool_of(int index, int priority_rank) {
  static auto* pools = new std::array<DevicePools, kMaxDevices>;
  return (*pools)[static_cast<size_t>(index)][static_cast<size_t>(priority_rank)];
}

}  // namespace

StreamHandle current_stream(int index) {
  check_device(index, "current_stream");
  return current_streams[index];
}

void set_current_stream(int index, StreamHandle stream) {
  check_device(index, "set_stream");
  current_streams[index] = stream;
}

// Lower numbers are more urgent, and 0 is the usual one; what the device does not have is clamped.
StreamHandle new_stream(int index, int priority) {
  check_device(index, "Stream");
  kernels::cuda::use_device(index);
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "Stream");
  priority = std::clamp(priority, std::max(greatest, least - kMaxPriorities + 1), least);
  StreamPool& pool = pool_of(index, least - priority);
  std::lock_guard lock(pool.mutex);
  StreamHandle& stream = pool.streams[pool.next++ % kStreamsPerPool];
  if (!stream) {
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, priority), "Stream");
    stream = made;
  }
  return stream;
}

void synchronize_stream(int index, StreamHandle stream, const char* what) {
  kernels::cuda::use_device(index);
  check(cudaStreamSynchronize(as_stream(stream)), what);
  raise_fault(index, what);
}

bool any_capture() { return captures.load(std::memory_order_acquire) > 0; }
void count_capture(int change) { captures.fetch_add(change, std::memory_order_acq_rel); }

cudaEvent_t EventPool::record(StreamHandle stream) noexcept {
  try {
    kernels::cuda::use_device(device_);  // the default stream is the current device's
  } catch (const Error&) {
    return nullptr;
  }
  cudaEvent_t event = nullptr;
  if (!free_.empty()) {
    event = free_.back();
    free_.pop_back();
  } else if (!succeeded(cudaEventCreateWithFlags(&event, cudaEventDisableTiming))) {
    return nullptr;
  }
  if (succeeded(cudaEventRecord(event, as_stream(stream)))) return event;
  succeeded(cudaEventDestroy(event));
  return nullptr;
}

}  // namespace warptape::cuda
