#include "core/cuda/memory_history.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "core/frontend.h"

namespace warptape::cuda {

CallStack MemoryHistory::stack_of(Stacks what, bool waits) const noexcept {
  if (__builtin_expect(stacks_.load(std::memory_order_relaxed) < what, 1)) return nullptr;
  try {
    std::string stack = frontend().stack(waits);
    return stack.empty() ? nullptr : std::make_shared<const std::string>(std::move(stack));
  } catch (...) {  // an action without its stack; freeing must not fail
    return nullptr;
  }
}

void MemoryHistory::start(const MemoryHistoryOptions& options) {
  if (!options.on || options.clears) entries_.clear(), oldest_ = 0;
  if (entries_.size() > options.max_actions || oldest_) {
    std::vector<MemoryHistoryEntry> kept = entries();
    if (kept.size() > options.max_actions)
      kept.erase(kept.begin(), kept.end() - static_cast<ptrdiff_t>(options.max_actions));
    entries_ = std::move(kept);
    oldest_ = 0;
  }
  options_ = options;
  on_ = options.on && options.max_actions;
  stacks_ = options.on ? options.stacks : MemoryHistoryOptions::kNone;
}

void MemoryHistory::append(MemoryAction action, uint64_t address, size_t bytes, void* stream, uint64_t pool,
                           const CallStack& stack) noexcept {
  if (options_.skipped >> static_cast<int>(action) & 1) return;
  const int64_t now = std::chrono::duration_cast<std::chrono::microseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  const bool keeps = options_.stacks >= MemoryHistoryOptions::kAllocs;
  MemoryHistoryEntry entry{action, address, bytes, stream, pool, now, keeps ? stack : nullptr};
  if (entries_.size() >= options_.max_actions) {
    entries_[oldest_] = std::move(entry);
    oldest_ = (oldest_ + 1) % entries_.size();
    return;
  }
  try {
    entries_.push_back(std::move(entry));
  } catch (const std::bad_alloc&) {  // the history ends early
    on_ = false;
  }
}

std::vector<MemoryHistoryEntry> MemoryHistory::entries() const {
  std::vector<MemoryHistoryEntry> out = entries_;
  std::rotate(out.begin(), out.begin() + static_cast<ptrdiff_t>(oldest_), out.end());
  return out;
}

}  // namespace warptape::cuda
