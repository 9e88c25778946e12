// The CPU's worker pool. Work is cut by size, never by the number of threads, so results do not depend on it.
#pragma once

#include <cstddef>
#include <cstdint>

#include <type_traits>
#include "kernels/types.h"

namespace warptape::kernels::cpu {

// Calls body(context, begin, end) for chunks of `grain` items (the last may be shorter) that cover [0, n), on
// the pool and the calling thread. Chunk borders depend on n and grain alone. Nested calls run in the calling
// thread. Exceptions of body reach the caller.
void parallel_chunks(int64_t n, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context);

// Threads that take part, the caller included: the process's number (WARPTAPE_NUM_THREADS, OMP_NUM_THREADS or
// the cores available), or that of the rank context whose count is bound to the calling thread.
WT_API int num_threads();
WT_API void set_num_threads(int n);  // n >= 1; of the bound count where there is one
void bind_num_threads(int* count);   // null unbinds; a value of 0 means the process's number
bool in_parallel_region();

// Memory of the calling thread, aligned to 64 bytes, valid until the thread's next call of this function.
void* thread_scratch(size_t bytes);

template <class F>
[[gnu::always_inline]] inline void parallel_for(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  if (n <= grain) return f(int64_t{0}, n);
  parallel_chunks(
      n, grain, [](void* p, int64_t b, int64_t e) { (*static_cast<std::remove_reference_t<F>*>(p))(b, e); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace warptape::kernels::cpu
