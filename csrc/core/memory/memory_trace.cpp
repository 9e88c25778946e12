#include "core/memory/memory_trace.h"

#include <chrono>
#include <mutex>
#include <new>
#include <utility>

namespace warptape {
namespace {

std::mutex trace_mutex;
std::vector<MemoryEvent>& events() {
  static auto* all = new std::vector<MemoryEvent>;  // tensors may outlive static destruction
  return *all;
}

}  // namespace

std::atomic<bool> traces_memory = false;

bool start_memory_trace() {
  const std::lock_guard lock(trace_mutex);
  if (traces_memory.exchange(true)) return false;
  events().clear();
  return true;
}

std::vector<MemoryEvent> end_memory_trace() {
  const std::lock_guard lock(trace_mutex);
  traces_memory = false;
  return std::exchange(events(), {});
}

size_t memory_trace_length() {
  const std::lock_guard lock(trace_mutex);
  return events().size();
}

void note_memory(const void* data, int64_t bytes, Device device) noexcept {
  if (!data) return;
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  const std::lock_guard lock(trace_mutex);
  if (!traces_memory) return;
  try {
    events().push_back({now, data, bytes, device});
  } catch (const std::bad_alloc&) {  // the trace ends early
    traces_memory = false;
  }
}

}  // namespace warptape
