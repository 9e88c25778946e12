// What a device's allocator notes of its actions while somebody asks for it. Off, it costs an allocation one
// load.
#pragma once

#include <atomic>

#include "core/memory/memory_history.h"

namespace warptape::cuda {

class MemoryHistory {
 public:
  using Stacks = MemoryHistoryOptions::Stacks;

  // Python's stack if stacks of `what` are kept. Where the thread has let go of the GIL, it is taken back if
  // `waits`, so the allocator's lock must not be held.
  CallStack stack_of(Stacks what, bool waits) const noexcept;

  // ---- under the allocator's lock ----
  void start(const MemoryHistoryOptions& options);
  void add(MemoryAction action, const void* p, size_t bytes, void* stream, uint64_t pool,
           const CallStack& stack) noexcept {
    if (__builtin_expect(on_, 0)) append(action, reinterpret_cast<uintptr_t>(p), bytes, stream, pool, stack);
  }
  void out_of_memory(size_t free, size_t bytes, void* stream, const CallStack& stack) noexcept {
    if (on_) append(MemoryAction::OutOfMemory, free, bytes, stream, 0, stack);
  }
  std::vector<MemoryHistoryEntry> entries() const;  // the oldest first

 private:
  void append(MemoryAction action, uint64_t address, size_t bytes, void* stream, uint64_t pool,
              const CallStack& stack) noexcept;

  std::atomic<Stacks> stacks_{MemoryHistoryOptions::kNone};
  bool on_ = false;  // the actions are noted
  MemoryHistoryOptions options_;
  std::vector<MemoryHistoryEntry> entries_;  // a ring once it is full
  size_t oldest_ = 0;
};

}  // namespace warptape::cuda
