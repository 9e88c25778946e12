// Memory between pages that nobody may touch, by which tests find who leaves a tensor's memory.
#pragma once

#include <cstddef>

namespace warptape {

// Whether all of the CPU's memory is such: WARPTAPE_GUARD_PAGES=1 in the environment. For tests, as each
// allocation is a call of the system.
bool has_guard_pages();
// 64-byte aligned, and ends at most 63 bytes before such a page; null where there is no memory.
void* allocate_guarded(size_t bytes);
// Ends the process, with what it writes to stderr, where the bytes up to that page were written.
void free_guarded(void* p, size_t bytes) noexcept;

}  // namespace warptape
