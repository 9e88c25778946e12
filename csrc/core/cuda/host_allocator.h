// Page-locked host memory, which the device copies from and to on its own. Locking pages costs a fraction of
// a millisecond, so blocks are kept, by powers of two.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/cuda/streams.h"

namespace warptape::cuda {

class HostAllocator final : public Allocator {
 public:
  void* allocate(size_t bytes) override;
  void deallocate(void* p, size_t bytes) noexcept override;
  void empty_cache() override;
  MemoryStats stats() const override;
  void reset_peak() override;

  // A copy queued on `stream` reads or writes at `p`: its block is not handed out again before that is done.
  // Other memory is left to whoever owns it.
  void record_use(const void* p, int device, StreamHandle stream);
  bool owns(const void* p) const;

 private:
  struct Use {
    int device;
    StreamHandle stream;
    cudaEvent_t event = nullptr;  // set when the block is freed
  };
  struct Block {
    char* p = nullptr;
    int size_log = 0;
    bool live = false;
    std::vector<Use> uses = {};
    size_t size() const { return size_t{1} << size_log; }
  };

  Block* find(const void* p) const;
  bool finished(Block* block);
  void reap();
  void release(Block* block);
  void free_cached();
  EventPool& events(int device);

  mutable std::mutex mutex_;
  std::map<const char*, std::unique_ptr<Block>> blocks_;  // by address
  std::array<std::vector<Block*>, 64> free_;              // by the logarithm of the size
  std::vector<Block*> waiting_;                           // freed, with copies under way
  std::map<int, EventPool> events_;
  MemoryStats stats_;
};

}  // namespace warptape::cuda
