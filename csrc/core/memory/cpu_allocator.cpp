// The CPU's caching allocator. Fresh pages cost more than many kernels, so freed blocks are kept by size
// class and handed out again; what is cached beyond the limit goes back to the system, oldest class first.
#include <pthread.h>
#include <sys/mman.h>

#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "core/errors.h"
#include "core/limits.h"
#include "core/memory/allocator.h"
#include "core/memory/guard_pages.h"
#include "core/memory/memory_plan.h"

namespace warptape {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kLargeRequest = size_t{256} << 20;  // bytes from which free memory is asked about first
constexpr size_t kHugePage = size_t{2} << 20;
constexpr int kClasses = 64 * 8;

// Eight classes per power of two: at most 12.5 % is wasted.
struct SizeClass {
  int index;
  size_t bytes;
};
SizeClass size_class(size_t bytes) {
  if (bytes <= 512) {
    size_t units = (bytes + kAlign - 1) / kAlign;
    return {static_cast<int>(units), units * kAlign};
  }
  int log = std::bit_width(bytes - 1) - 1;  // 2^log < bytes <= 2^(log+1)
  size_t step = size_t{1} << (log - 3);
  size_t eighth = (bytes - (size_t{1} << log) + step - 1) / step;  // 1..8
  return {log * 8 + static_cast<int>(eighth) - 1, (size_t{1} << log) + eighth * step};
}

// Linux lends more than it has and kills later: refuse what cannot be backed.
bool exceeds_available(size_t bytes) {
  FILE* f = std::fopen("/proc/meminfo", "r");
  if (!f) return false;
  char line[128];
  unsigned long long kib = 0;
  bool found = false;
  while (!found && std::fgets(line, sizeof line, f))
    found = std::sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
  std::fclose(f);
  return found && bytes / 1024 > kib;
}

std::mutex allocator_mutex;

class CpuAllocator final : public Allocator {
 public:
  CpuAllocator() {
    if (const char* mb = std::getenv("WARPTAPE_CPU_CACHE_MB")) limit_ = std::strtoull(mb, nullptr, 10) << 20;
  }

  void* allocate(size_t bytes) override {
    if (bytes == 0) return nullptr;
    if (bytes > PTRDIFF_MAX / 2) fail(bytes);
    if (__builtin_expect(guarded_, 0)) return allocate_between_guards(bytes);
    PlannedRun* run = PlannedRun::current();
    if (__builtin_expect(run == nullptr, 1)) return allocate_cached(bytes);
    if (void* planned = run->allocate(bytes)) return planned;
    void* p = allocate_cached(bytes);
    run->note(p, bytes);
    return p;
  }
  void* allocate_cached(size_t bytes) {
    auto [index, size] = size_class(bytes);
    {
      std::lock_guard lock(allocator_mutex);
      ++stats_.allocations;
      if (Block* b = free_[index]) {
        free_[index] = b->next;
        cached_ -= size;
        ++stats_.cache_hits;
        count(size);
        return b;
      }
    }
    void* p = is_over(size) ? nullptr : fresh(size);
    if (!p) {
      empty_cache();
      p = is_over(size) ? nullptr : fresh(size);
      if (!p) fail(bytes);
    }
    std::lock_guard lock(allocator_mutex);
    count(size);
    return p;
  }

  void deallocate(void* p, size_t bytes) noexcept override {
    if (__builtin_expect(guarded_, 0)) return p ? free_guarded(p, bytes) : void();
    if (!p || PlannedRun::release(p)) return;
    if (PlannedRun* run = PlannedRun::current()) run->note_freed(p);
    auto [index, size] = size_class(bytes);
    std::lock_guard lock(allocator_mutex);
    stats_.allocated -= static_cast<int64_t>(size);
    if (cached_ + size > limit_) {
      std::free(p);
      return;
    }
    Block* b = static_cast<Block*>(p);
    b->next = free_[index];
    free_[index] = b;
    cached_ += size;
  }

  void empty_cache() override {
    std::lock_guard lock(allocator_mutex);
    for (Block*& head : free_)
      while (Block* b = head) {
        head = b->next;
        std::free(b);
      }
    cached_ = 0;
  }

  void set_most(size_t bytes) {
    std::lock_guard lock(allocator_mutex);
    most_ = bytes;
  }

  MemoryStats stats() const override {
    std::lock_guard lock(allocator_mutex);
    MemoryStats s = stats_;
    s.reserved = s.allocated + static_cast<int64_t>(cached_);
    return s;
  }

  void reset_peak() override {
    std::lock_guard lock(allocator_mutex);
    stats_.peak_allocated = stats_.allocated;
    stats_.peak_reserved = stats_.allocated + static_cast<int64_t>(cached_);
  }

 private:
  struct Block {
    Block* next;
  };

  // Whether `size` bytes more are over the limit that a user set.
  bool is_over(size_t size) const {
    std::lock_guard lock(allocator_mutex);
    return most_ && static_cast<size_t>(stats_.allocated) + cached_ + size > most_;
  }

  static void* fresh(size_t size) {
    if (size >= kLargeRequest && exceeds_available(size)) return nullptr;
    bool huge = size >= 2 * kHugePage;
    void* p = std::aligned_alloc(huge ? kHugePage : kAlign,
                                 huge ? (size + kHugePage - 1) / kHugePage * kHugePage : size);
    if (p && huge) madvise(p, size, MADV_HUGEPAGE);
    return p;
  }

  void count(size_t size) {
    stats_.allocated += static_cast<int64_t>(size);
    stats_.peak_allocated = std::max(stats_.peak_allocated, stats_.allocated);
    stats_.peak_reserved = std::max(stats_.peak_reserved, stats_.allocated + static_cast<int64_t>(cached_));
  }

  void* allocate_between_guards(size_t bytes) {
    void* p = bytes >= kLargeRequest && exceeds_available(bytes) ? nullptr : allocate_guarded(bytes);
    if (!p) fail(bytes);
    return p;
  }

  [[noreturn]] void fail(size_t bytes) const {
    MemoryStats s = stats();
    throw OutOfMemoryError(message("cpu allocator: cannot allocate ", bytes, " bytes; tensors hold ",
                                   s.allocated, " bytes, the cache ", s.reserved - s.allocated, " (emptied)",
                                   most_ ? message(", the limit is ", most_) : std::string(),
                                   "; free tensors or use smaller sizes"));
  }

  std::array<Block*, kClasses> free_{};
  const bool guarded_ = has_guard_pages();
  size_t cached_ = 0;
  size_t limit_ = size_t{1} << 30;
  size_t most_ = 0;  // of tensors and cache; 0 for no limit
  MemoryStats stats_;
};

CpuAllocator& only_allocator() {
  // Never destroyed: tensors may outlive static destruction. A fork waits for the lock, or the child would
  // find it taken by a thread that it does not have.
  static auto* allocator = [] {
    pthread_atfork([] { allocator_mutex.lock(); }, [] { allocator_mutex.unlock(); },
                   [] { allocator_mutex.unlock(); });
    return new CpuAllocator;
  }();
  return *allocator;
}

}  // namespace

Allocator& cpu_allocator() { return only_allocator(); }
void set_cpu_memory_limit(size_t bytes) { only_allocator().set_most(bytes); }

}  // namespace warptape
