#include "core/memory/guard_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace warptape {
namespace {

constexpr size_t kPage = 4096, kAlign = 64;
constexpr unsigned char kUnwritten = 0xa5;

// A guard page, pages with the block at their end, a guard page.
struct Mapping {
  explicit Mapping(size_t bytes)
      : block((bytes + kAlign - 1) / kAlign * kAlign),
        pages((block + kPage - 1) / kPage * kPage),
        all(pages + 2 * kPage) {}
  size_t block, pages, all;
  size_t begin() const { return kPage + pages - block; }  // of the block
};

}  // namespace

bool has_guard_pages() {
  static const bool on = [] {
    const char* set = std::getenv("WARPTAPE_GUARD_PAGES");
    return set && *set == '1';
  }();
  return on;
}

void* allocate_guarded(size_t bytes) {
  const Mapping m(bytes);
  void* all = mmap(nullptr, m.all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  auto* base = static_cast<unsigned char*>(all);
  if (mprotect(base + kPage, m.pages, PROT_READ | PROT_WRITE)) {
    munmap(all, m.all);
    return nullptr;
  }
  std::memset(base + kPage, kUnwritten, m.begin() - kPage);
  std::memset(base + m.begin() + bytes, kUnwritten, m.block - bytes);
  return base + m.begin();
}

void free_guarded(void* p, size_t bytes) noexcept {
  const Mapping m(bytes);
  auto* const begin = static_cast<unsigned char*>(p);
  auto* const base = begin - m.begin();
  const auto is_unwritten = [](unsigned char c) { return c == kUnwritten; };
  if (!std::all_of(base + kPage, begin, is_unwritten) ||
      !std::all_of(begin + bytes, begin + m.block, is_unwritten)) {
    std::fprintf(stderr, "warptape: something wrote outside of a block of %zu bytes\n", bytes);
    std::abort();
  }
  munmap(base, m.all);
}

}  // namespace warptape
