// The caching allocator of one device. cudaMalloc is slow and cudaFree waits for the device, so memory is
// taken in segments, cut into blocks and kept. A block belongs to the stream it was allocated on: when it is
// freed, that stream may have it again at once, for its work runs in order; other streams may not.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "core/cuda/memory_counts.h"
#include "core/cuda/memory_history.h"
#include "core/cuda/segments.h"
#include "core/cuda/streams.h"

namespace warptape::cuda {

class DeviceAllocator final : public Allocator {
 public:
  DeviceAllocator(int device, std::unique_ptr<SegmentSource> source);

  void* allocate(size_t bytes) override;  // for the calling thread's current stream
  void deallocate(void* p, size_t bytes) noexcept override;
  void empty_cache() override;
  MemoryStats stats() const override;
  void reset_peak() override;
  NamedStats named_stats() const;
  void record_history(const MemoryHistoryOptions& options);
  MemorySnapshot snapshot();

  // See DeviceRuntime; memory that is not this allocator's is left to whoever owns it.
  void record_stream(const void* data, StreamHandle stream);
  void set_memory_fraction(double fraction);

  // From begin to end, what the calling thread allocates comes from the pool of that number; the pool's
  // memory goes back to the others when it was released as often as it was begun.
  void begin_capture(uint64_t pool);
  void end_capture();
  void release_pool(uint64_t pool) noexcept;

 private:
  struct Pool;
  struct Block {
    char* p;
    size_t size;
    StreamHandle stream;
    Pool* pool;
    Block *prev = nullptr, *next = nullptr;  // neighbours within the segment
    bool in_use = false;                     // by a tensor, or by work of another stream
    size_t requested = 0;
    CallStack stack = {};                    // of who took it
    std::vector<StreamHandle> used_on = {};  // other streams
    int pending = 0;                         // events of those streams that have not happened yet
    bool split() const { return prev || next; }
  };
  struct Key {
    StreamHandle stream;
    size_t size;
  };
  struct Order {
    using is_transparent = void;
    bool operator()(const Block* a, const Block* b) const;
    bool operator()(const Block* a, const Key& b) const;
  };
  struct PrivatePool;
  struct Pool {
    bool small;
    PrivatePool* owner = nullptr;
    std::set<Block*, Order> free = {};
  };
  struct PrivatePool {  // of captured graphs
    Pool small{true, this}, large{false, this};
    uint64_t number = 0;
    int users = 0;
    size_t segments = 0;
  };
  // A call: knows Python's stack where somebody asks for it, and holds the lock. Memory may be freed under
  // locks of others, so that a free does not wait for Python.
  struct Call {
    Call(DeviceAllocator& a, MemoryHistory::Stacks stacks, bool waits = true)
        : stack(a.history_.stack_of(stacks, waits)), lock(a.mutex_) {}
    const CallStack stack;
    std::lock_guard<std::mutex> lock;
  };
  struct Captures {  // of a thread
    const DeviceAllocator* allocator = nullptr;
    PrivatePool* pool = nullptr;
  };

  void forget(void* p);
  Pool& pool_for(size_t size);
  // Otherwise each tensor has a segment of its very size, which is given back with it.
  bool cuts(const Pool& pool) const { return caches_ || pool.owner; }
  Block* take_free(Pool& pool, size_t size, StreamHandle stream);
  Block* grow(Pool& pool, size_t size, StreamHandle stream, const CallStack& stack);
  void* new_segment(size_t bytes);
  void cut(Block* block, size_t size);
  void release(Block* block, const CallStack& stack);
  Block* absorb_next(Block* block);
  void guard(Block* block);
  void reap();
  void wait_for_other_streams();
  void free_cached(const CallStack& stack);
  void free_segments(Pool& pool, const CallStack& stack);
  void free_segment(Block* block, const CallStack& stack);
  void drop_unused_pools();
  Block* find(const void* data);
  [[noreturn]] void fail(size_t bytes, StreamHandle stream, const CallStack& stack);
  static uint64_t number_of(const Pool& pool) { return pool.owner ? pool.owner->number : 0; }
  // Of a block, for the history.
  void note(MemoryAction action, const Block& block, size_t bytes, const CallStack& stack) noexcept {
    history_.add(action, block.p, bytes, block.stream, number_of(*block.pool), stack);
  }

  static thread_local Captures captures_;
  const int device_;
  const bool caches_;
  const std::unique_ptr<SegmentSource> source_;
  mutable std::mutex mutex_;
  Pool small_{true}, large_{false};
  std::map<uint64_t, PrivatePool> private_pools_;
  std::unordered_map<const void*, Block*> live_;  // by address: what tensors hold
  std::map<const char*, Block*> segments_;        // their first blocks
  struct Pending {
    cudaEvent_t event;
    Block* block;
  };
  std::map<StreamHandle, std::deque<Pending>> pending_;
  std::vector<Block*> deferred_;  // freed during a capture and used on other streams
  EventPool events_;
  size_t limit_ = SIZE_MAX;
  MemoryCounts counts_;
  MemoryHistory history_;
  int64_t allocations_ = 0, cache_hits_ = 0, retries_ = 0, failures_ = 0;
};

}  // namespace warptape::cuda
