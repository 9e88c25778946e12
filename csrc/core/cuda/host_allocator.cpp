#include "core/cuda/host_allocator.h"

#include <algorithm>
#include <bit>

#include "core/cuda/devices.h"
#include "core/cuda/error.h"
#include "core/errors.h"
#include "kernels/cuda/common/relaxed_capture.h"

namespace warptape::cuda {
namespace {

constexpr size_t kSmallest = 512;

}  // namespace

void* HostAllocator::allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  WT_CHECK(bytes <= PTRDIFF_MAX / 2, OutOfMemoryError, "pin_memory: cannot page-lock ", bytes, " bytes");
  int log = std::countr_zero(std::bit_ceil(std::max(bytes, kSmallest)));
  std::lock_guard lock(mutex_);
  ++stats_.allocations;
  reap();
  auto& cached = free_[static_cast<size_t>(log)];
  Block* block = nullptr;
  if (!cached.empty()) {
    block = cached.back();
    cached.pop_back();
    ++stats_.cache_hits;
  } else {
    kernels::cuda::use_device(current_device());  // else CUDA would set up its first device for this
    kernels::cuda::RelaxedCapture relaxed;
    void* p = nullptr;
    size_t size = size_t{1} << log;
    constexpr unsigned flags = cudaHostAllocPortable | cudaHostAllocMapped;
    if (!succeeded(cudaHostAlloc(&p, size, flags))) {
      free_cached();
      cudaError_t error = cudaHostAlloc(&p, size, flags);
      if (error != cudaSuccess && error != cudaErrorMemoryAllocation) raise_error(error, "pin_memory");
      WT_CHECK(succeeded(error), OutOfMemoryError, "pin_memory: cannot page-lock ", size,
               " bytes of host memory; page-locked tensors hold ", stats_.allocated,
               " bytes; free some, or use tensors that are not pinned");
    }
    auto made = std::make_unique<Block>(Block{static_cast<char*>(p), log});
    block = made.get();
    blocks_.emplace(block->p, std::move(made));
    stats_.reserved += static_cast<int64_t>(size);
    stats_.peak_reserved = std::max(stats_.peak_reserved, stats_.reserved);
  }
  block->live = true;
  stats_.allocated += static_cast<int64_t>(block->size());
  stats_.peak_allocated = std::max(stats_.peak_allocated, stats_.allocated);
  return block->p;
}

void HostAllocator::deallocate(void* p, size_t) noexcept {
  if (!p) return;
  std::lock_guard lock(mutex_);
  Block* block = find(p);
  if (!block || !block->live) return;
  block->live = false;
  stats_.allocated -= static_cast<int64_t>(block->size());
  if (block->uses.empty() || finished(block)) {
    release(block);
  } else {
    waiting_.push_back(block);
  }
}

// Records the events that are missing, then asks for all; false while a graph is captured, when neither is
// allowed. A use whose event cannot be recorded (the driver is gone) never ends.
bool HostAllocator::finished(Block* block) {
  if (any_capture()) return false;
  for (Use& use : block->uses)
    if (!use.event) use.event = events(use.device).record(use.stream);
  std::erase_if(block->uses, [&](Use& use) {
    if (!use.event || !succeeded(cudaEventQuery(use.event))) return false;
    events(use.device).give_back(use.event);
    return true;
  });
  return block->uses.empty();
}

void HostAllocator::reap() {
  std::erase_if(waiting_, [&](Block* block) {
    if (!finished(block)) return false;
    release(block);
    return true;
  });
}

void HostAllocator::release(Block* block) { free_[static_cast<size_t>(block->size_log)].push_back(block); }

EventPool& HostAllocator::events(int device) { return events_.try_emplace(device, device).first->second; }

void HostAllocator::record_use(const void* p, int device, StreamHandle stream) {
  std::lock_guard lock(mutex_);
  Block* block = find(p);
  if (!block) return;
  for (const Use& use : block->uses)
    if (use.stream == stream && use.device == device) return;
  block->uses.push_back({device, stream});
}

bool HostAllocator::owns(const void* p) const {
  std::lock_guard lock(mutex_);
  return find(p) != nullptr;
}

HostAllocator::Block* HostAllocator::find(const void* data) const {
  auto* p = static_cast<const char*>(data);
  auto after = blocks_.upper_bound(p);
  if (after == blocks_.begin()) return nullptr;
  Block* block = std::prev(after)->second.get();
  return p < block->p + block->size() ? block : nullptr;
}

void HostAllocator::empty_cache() {
  std::lock_guard lock(mutex_);
  reap();
  free_cached();
}

void HostAllocator::free_cached() {
  if (any_capture()) return;  // cudaFreeHost waits for the device, which would end the capture
  for (auto& cached : free_) {
    for (Block* block : cached) {
      succeeded(cudaFreeHost(block->p));
      stats_.reserved -= static_cast<int64_t>(block->size());
      blocks_.erase(block->p);
    }
    cached.clear();
  }
}

MemoryStats HostAllocator::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void HostAllocator::reset_peak() {
  std::lock_guard lock(mutex_);
  stats_.peak_allocated = stats_.allocated;
  stats_.peak_reserved = stats_.reserved;
}

}  // namespace warptape::cuda
