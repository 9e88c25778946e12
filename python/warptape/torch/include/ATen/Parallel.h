// Loops on the runtime's threads.
#pragma once

#include <algorithm>
#include <exception>
#include <mutex>

#include "c10/util/Exception.h"

namespace at {
namespace internal {
constexpr int64_t GRAIN_SIZE = 32768;
}

inline int64_t divup(int64_t x, int64_t y) { return (x + y - 1) / y; }
inline int get_num_threads() { return wtx::api().num_threads(); }

// f(begin, end) for ranges of at least `grain_size` items that cover [begin, end). What f throws reaches the
// caller.
template <class F>
void parallel_for(const int64_t begin, const int64_t end, const int64_t grain_size, const F& f) {
  if (begin >= end) return;
  struct Work {
    const F& f;
    int64_t begin;
    std::mutex mutex;
    std::exception_ptr error;
  } work{f, begin, {}, nullptr};
  const auto body = [](void* p, int64_t first, int64_t last) {
    auto& w = *static_cast<Work*>(p);
    try {
      w.f(w.begin + first, w.begin + last);
    } catch (...) {
      std::lock_guard<std::mutex> lock(w.mutex);
      if (!w.error) w.error = std::current_exception();
    }
    return 0;
  };
  const int64_t each = divup(end - begin, get_num_threads());
  wtx::check(wtx::api().parallel_chunks(end - begin, std::max(grain_size, each), body, &work));
  if (work.error) std::rethrow_exception(work.error);
}

template <class T, class F, class Join>
T parallel_reduce(const int64_t begin, const int64_t end, const int64_t grain_size, const T identity,
                  const F& f, const Join& join) {
  const int64_t grain = std::max<int64_t>(grain_size, 1),
                chunks = divup(std::max<int64_t>(end - begin, 0), grain);
  std::vector<T> parts(static_cast<size_t>(chunks), identity);
  parallel_for(0, chunks, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      parts[static_cast<size_t>(i)] = f(begin + i * grain, std::min(begin + (i + 1) * grain, end), identity);
  });
  T out = identity;
  for (const T& part : parts) out = join(out, part);
  return out;
}

}  // namespace at
