#include "core/cuda/allocator.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "core/cuda/error.h"
#include "core/errors.h"

namespace warptape::cuda {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kRound = 512;   // sizes of blocks are multiples of it
constexpr size_t kSmall = kMiB;  // blocks up to here come from the small pool
constexpr size_t kSmallSegment = 2 * kMiB;
constexpr size_t kLargeSegment = 20 * kMiB;  // for blocks below half of it
constexpr size_t kSegmentRound = 2 * kMiB;   // of segments that hold one larger block

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// WARPTAPE_NO_CUDA_MEMORY_CACHING=1, also by PyTorch's name: for tools that watch each cudaMalloc.
bool caching_wanted() {
  for (const char* name : {"WARPTAPE_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_CUDA_MEMORY_CACHING"})
    if (const char* text = std::getenv(name); text && std::strcmp(text, "1") == 0) return false;
  return true;
}

size_t segment_size(size_t size) {
  if (size <= kSmall) return kSmallSegment;
  if (size < kLargeSegment / 2) return kLargeSegment;
  return round_up(size, kSegmentRound);
}

std::string human(size_t bytes) {
  constexpr const char* units[] = {"bytes", "KiB", "MiB", "GiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 3; ++unit) value /= 1024;
  char text[48];
  std::snprintf(text, sizeof text, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
  return text;
}

}  // namespace

thread_local DeviceAllocator::Captures DeviceAllocator::captures_;

// By stream, then size: the lower bound of (stream, size) is the best fit. By address last, so that equal
// calls get equal addresses.
bool DeviceAllocator::Order::operator()(const Block* a, const Block* b) const {
  if (a->stream != b->stream) return std::less<>()(a->stream, b->stream);
  if (a->size != b->size) return a->size < b->size;
  return std::less<>()(a->p, b->p);
}
bool DeviceAllocator::Order::operator()(const Block* a, const Key& b) const {
  if (a->stream != b.stream) return std::less<>()(a->stream, b.stream);
  return a->size < b.size;
}

DeviceAllocator::DeviceAllocator(int device, std::unique_ptr<SegmentSource> source)
    : device_(device), caches_(caching_wanted()), source_(std::move(source)), events_(device) {}

void* DeviceAllocator::allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  StreamHandle stream = current_stream(device_);
  const Call call(*this, MemoryHistoryOptions::kHeld);
  ++allocations_;
  if (bytes > PTRDIFF_MAX / 2) fail(bytes, stream, call.stack);
  reap();
  Pool& pool = pool_for(round_up(bytes, kRound));
  const size_t size = cuts(pool) ? round_up(bytes, kRound) : bytes;
  Block* block = take_free(pool, size, stream);
  if (block) {
    ++cache_hits_;
  } else {
    block = grow(pool, size, stream, call.stack);
    if (!block) fail(bytes, stream, call.stack);
  }
  cut(block, size);
  block->in_use = true;
  block->requested = bytes;
  block->stack = call.stack;
  note(MemoryAction::Alloc, *block, bytes, call.stack);
  live_.emplace(block->p, block);
#if defined(WARPTAPE_CUDA_EMULATED)
  emulator::begin_life(block->p, bytes, static_cast<cudaStream_t>(stream));
#endif
  counts_.add(MemoryCounts::kAllocated, pool.small, block->size);
  counts_.add(MemoryCounts::kActive, pool.small, block->size);
  counts_.add(MemoryCounts::kRequested, pool.small, bytes);
  return block->p;
}

void DeviceAllocator::deallocate(void* p, size_t) noexcept {
  if (p) try {
      forget(p);
    } catch (const std::bad_alloc&) {
      // The host has no memory to keep books: the block is not handed out again, which is safe.
    }
}

void DeviceAllocator::forget(void* p) {
  const Call call(*this, MemoryHistoryOptions::kAll, false);
  auto it = live_.find(p);
  if (it == live_.end()) return;
  Block* block = it->second;
  live_.erase(it);
  const CallStack stack = call.stack ? call.stack : block->stack;
  note(MemoryAction::FreeRequested, *block, block->requested, stack);
  counts_.remove(MemoryCounts::kAllocated, block->pool->small, block->size);
  counts_.remove(MemoryCounts::kRequested, block->pool->small, block->requested);
  if (block->used_on.empty()) {
    release(block, stack);
  } else if (any_capture()) {
    deferred_.push_back(block);
  } else {
    guard(block);
  }
}

DeviceAllocator::Pool& DeviceAllocator::pool_for(size_t size) {
  if (captures_.allocator == this) return size <= kSmall ? captures_.pool->small : captures_.pool->large;
  return size <= kSmall ? small_ : large_;
}

DeviceAllocator::Block* DeviceAllocator::take_free(Pool& pool, size_t size, StreamHandle stream) {
  auto it = pool.free.lower_bound(Key{stream, size});
  if (it == pool.free.end() || (*it)->stream != stream) return nullptr;
  Block* block = *it;
  pool.free.erase(it);
  if (block->split()) counts_.remove(MemoryCounts::kInactiveSplit, pool.small, block->size);
  return block;
}

// A free block of at least `size` bytes by a new segment; null when that cannot be had even after all that is
// cached was given back. While a graph is captured nothing can be given back.
DeviceAllocator::Block* DeviceAllocator::grow(Pool& pool, size_t size, StreamHandle stream,
                                              const CallStack& stack) {
  size_t bytes = cuts(pool) ? segment_size(size) : size;
  void* p = new_segment(bytes);
  if (!p && !any_capture()) {
    ++retries_;
    wait_for_other_streams();
    if (Block* block = take_free(pool, size, stream)) return block;
    free_cached(stack);
    p = new_segment(bytes);
  }
  if (!p) return nullptr;
  auto* block = new Block{static_cast<char*>(p), bytes, stream, &pool};
  segments_.emplace(block->p, block);
  if (pool.owner) ++pool.owner->segments;
  counts_.add(MemoryCounts::kReserved, pool.small, bytes);
  note(MemoryAction::SegmentAlloc, *block, bytes, stack);
  return block;
}

void* DeviceAllocator::new_segment(size_t bytes) {
  auto reserved = static_cast<size_t>(counts_.bytes(MemoryCounts::kReserved).current);
  if (reserved > limit_ || bytes > limit_ - reserved) return nullptr;
  return source_->allocate(bytes);
}

// Gives the end of the block back if it is worth keeping: a sliver of a large segment would only fragment it.
void DeviceAllocator::cut(Block* block, size_t size) {
  size_t rest = block->size - size;
  Pool& pool = *block->pool;
  if (!cuts(pool)) return;
  if (pool.small ? rest < kRound : rest <= kSmall) return;
  auto* tail = new Block{block->p + size, rest, block->stream, &pool, block, block->next};
  if (tail->next) tail->next->prev = tail;
  block->next = tail;
  block->size = size;
  pool.free.insert(tail);
  counts_.add(MemoryCounts::kInactiveSplit, pool.small, rest);
}

void DeviceAllocator::release(Block* block, const CallStack& stack) {
  Pool& pool = *block->pool;
  note(MemoryAction::FreeCompleted, *block, block->requested, stack);
  block->requested = 0;
  block->stack = nullptr;
  counts_.remove(MemoryCounts::kActive, pool.small, block->size);
  block->in_use = false;
  if (block->next && !block->next->in_use) {
    counts_.remove(MemoryCounts::kInactiveSplit, pool.small, block->next->size);
    pool.free.erase(block->next);
    block = absorb_next(block);
  }
  if (block->prev && !block->prev->in_use) {
    counts_.remove(MemoryCounts::kInactiveSplit, pool.small, block->prev->size);
    pool.free.erase(block->prev);
    block = absorb_next(block->prev);
  }
  if (!cuts(pool) && !any_capture()) return free_segment(block, stack);
  pool.free.insert(block);
  if (block->split()) counts_.add(MemoryCounts::kInactiveSplit, pool.small, block->size);
}

DeviceAllocator::Block* DeviceAllocator::absorb_next(Block* block) {
  Block* gone = block->next;
  block->size += gone->size;
  block->next = gone->next;
  if (block->next) block->next->prev = block;
  delete gone;
  return block;
}

// Puts an event behind the work of each other stream that uses the freed block. Where that fails (the driver
// is gone, or broken) the block stays pending for ever, which is safe.
void DeviceAllocator::guard(Block* block) {
  for (StreamHandle stream : block->used_on) {
    ++block->pending;
    if (cudaEvent_t event = events_.record(stream)) pending_[stream].push_back({event, block});
  }
  block->used_on.clear();
}

// Releases the blocks that other streams have finished with. Queries are illegal during a capture.
void DeviceAllocator::reap() {
  if ((pending_.empty() && deferred_.empty()) || any_capture()) return;
  for (Block* block : deferred_) guard(block);
  deferred_.clear();
  for (auto queue = pending_.begin(); queue != pending_.end();) {
    std::deque<Pending>& waiting = queue->second;
    while (!waiting.empty() && succeeded(cudaEventQuery(waiting.front().event))) {
      auto [event, block] = waiting.front();
      waiting.pop_front();
      events_.give_back(event);
      if (--block->pending == 0) release(block, CallStack(block->stack));
    }
    queue = waiting.empty() ? pending_.erase(queue) : std::next(queue);
  }
}

void DeviceAllocator::wait_for_other_streams() {
  reap();
  for (auto& [stream, waiting] : pending_)
    check(cudaEventSynchronize(waiting.back().event), "cuda allocator");
  reap();
}

void DeviceAllocator::empty_cache() {
  const Call call(*this, MemoryHistoryOptions::kAll);
  if (any_capture()) return;
  wait_for_other_streams();
  free_cached(call.stack);
}

void DeviceAllocator::free_cached(const CallStack& stack) {
  free_segments(small_, stack);
  free_segments(large_, stack);
  for (auto& [number, pool] : private_pools_) {
    if (pool.users) continue;
    free_segments(pool.small, stack);
    free_segments(pool.large, stack);
  }
  drop_unused_pools();
}

void DeviceAllocator::free_segments(Pool& pool, const CallStack& stack) {
  for (auto it = pool.free.begin(); it != pool.free.end();) {
    Block* block = *it;
    if (block->split()) {
      ++it;
      continue;
    }
    it = pool.free.erase(it);
    free_segment(block, stack);
  }
}

void DeviceAllocator::free_segment(Block* block, const CallStack& stack) {
  Pool& pool = *block->pool;
  note(MemoryAction::SegmentFree, *block, block->size, stack);
  segments_.erase(block->p);
  source_->free(block->p, block->size);
  counts_.remove(MemoryCounts::kReserved, pool.small, block->size);
  if (pool.owner) --pool.owner->segments;
  delete block;
}

void DeviceAllocator::drop_unused_pools() {
  std::erase_if(private_pools_,
                [](const auto& entry) { return entry.second.users == 0 && entry.second.segments == 0; });
}

void DeviceAllocator::record_stream(const void* data, StreamHandle stream) {
  std::lock_guard lock(mutex_);
  Block* block = find(data);
  if (!block || stream == block->stream) return;
  for (StreamHandle known : block->used_on)
    if (known == stream) return;
  block->used_on.push_back(stream);
}

// The block in which the address lies, if a tensor holds it.
DeviceAllocator::Block* DeviceAllocator::find(const void* data) {
  auto it = live_.find(data);
  if (it != live_.end()) return it->second;
  auto* p = static_cast<const char*>(data);
  auto after = segments_.upper_bound(p);
  if (after == segments_.begin()) return nullptr;
  Block* block = std::prev(after)->second;
  while (block && p >= block->p + block->size) block = block->next;
  return block && live_.count(block->p) ? block : nullptr;
}

void DeviceAllocator::set_memory_fraction(double fraction) {
  WT_CHECK(fraction >= 0 && fraction <= 1, ValueError,
           "set_per_process_memory_fraction: expected a fraction from 0 to 1, got ", fraction);
  kernels::cuda::use_device(device_);
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "set_per_process_memory_fraction");
  std::lock_guard lock(mutex_);
  limit_ = fraction == 1 ? SIZE_MAX : static_cast<size_t>(fraction * static_cast<double>(total));
}

void DeviceAllocator::begin_capture(uint64_t pool) {
  std::lock_guard lock(mutex_);
  PrivatePool& used = private_pools_[pool];
  used.number = pool;
  ++used.users;
  captures_ = {this, &used};
}

void DeviceAllocator::end_capture() { captures_ = {}; }

void DeviceAllocator::release_pool(uint64_t pool) noexcept {
  std::lock_guard lock(mutex_);
  auto it = private_pools_.find(pool);
  if (it == private_pools_.end()) return;
  --it->second.users;
  drop_unused_pools();
}

MemoryStats DeviceAllocator::stats() const {
  std::lock_guard lock(mutex_);
  const Counter& allocated = counts_.bytes(MemoryCounts::kAllocated);
  const Counter& reserved = counts_.bytes(MemoryCounts::kReserved);
  return {allocated.current, allocated.peak, reserved.current, reserved.peak, allocations_, cache_hits_};
}

NamedStats DeviceAllocator::named_stats() const {
  std::lock_guard lock(mutex_);
  NamedStats out;
  counts_.append_to(out);
  const Counter& segments = counts_.number(MemoryCounts::kReserved);
  out.emplace_back("num_alloc_retries", retries_);
  out.emplace_back("num_ooms", failures_);
  out.emplace_back("num_device_alloc", segments.allocated);
  out.emplace_back("num_device_free", segments.freed);
  return out;
}

void DeviceAllocator::reset_peak() {
  std::lock_guard lock(mutex_);
  counts_.reset_peaks();
}

void DeviceAllocator::record_history(const MemoryHistoryOptions& options) {
  std::lock_guard lock(mutex_);
  history_.start(options);
}

MemorySnapshot DeviceAllocator::snapshot() {
  std::lock_guard lock(mutex_);
  const int64_t active = counts_.bytes(MemoryCounts::kActive).current;
  history_.add(MemoryAction::Snapshot, nullptr, static_cast<size_t>(active), nullptr, 0, nullptr);
  MemorySnapshot out{{}, history_.entries()};
  for (const auto& [start, first] : segments_) {
    MemorySegmentState segment{reinterpret_cast<uintptr_t>(first->p),
                               0,
                               first->stream,
                               first->pool->small,
                               number_of(*first->pool),
                               {}};
    for (const Block* b = first; b; b = b->next) {
      segment.bytes += b->size;
      // "active_awaiting_free" in PyTorch's documentation; its code and memory_viz have this name.
      const char* state = live_.count(b->p) ? "active_allocated"
                          : b->in_use       ? "active_pending_free"
                                            : "inactive";
      segment.blocks.push_back({reinterpret_cast<uintptr_t>(b->p), b->size, b->requested, state, b->stack});
    }
    out.segments.push_back(std::move(segment));
  }
  return out;
}

void DeviceAllocator::fail(size_t bytes, StreamHandle stream, const CallStack& stack) {
  ++failures_;
  size_t free = 0, total = 0, largest = 0, in_graphs = 0;
  kernels::cuda::use_device(device_);
  check(cudaMemGetInfo(&free, &total), "cuda allocator");
  history_.out_of_memory(free, bytes, stream, stack);
  for (const auto& [start, first] : segments_)
    for (const Block* b = first; b; b = b->next) {
      if (b->pool->owner)
        in_graphs += b->size;
      else if (!b->in_use)
        largest = std::max(largest, b->size);
    }
  auto reserved = static_cast<size_t>(counts_.bytes(MemoryCounts::kReserved).current);
  auto held = static_cast<size_t>(counts_.bytes(MemoryCounts::kAllocated).current);
  size_t others = total > free + reserved ? total - free - reserved : 0;
  std::string limit;
  if (limit_ != SIZE_MAX)
    limit = message("; set_per_process_memory_fraction limits this process to ", human(limit_));
  // It begins as PyTorch's does: programs look for that to retry with less.
  throw OutOfMemoryError(
      message("CUDA out of memory. Tried to allocate ", human(bytes), " (", bytes,
              " bytes) on cuda:", device_, ", which has ", human(free), " free of ", human(total),
              ": tensors of this process hold ", human(held), ", ", human(reserved - held),
              " is reserved but unused (largest free block ", human(largest), "), of both ", human(in_graphs),
              " in pools of captured graphs; other processes and CUDA itself hold ", human(others), limit,
              ". Use a smaller batch, free tensors, or, if much is reserved but unused, allocate large "
              "tensors first"));
}

}  // namespace warptape::cuda
