// Long work can be interrupted: the calling thread asks now and then, between chunks and between nodes of the
// tape.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels::cpu {

// Calls Services::check_interrupt (services.h) if the thread's last call was 50 ms ago or more. In a thread
// of the pool it throws as soon as the work that the thread helps with has failed elsewhere.
WT_API void poll_interrupt();

// Calls f(begin, end) for pieces that cover [0, n), in order, and polls between them. For loops within one
// chunk of work that may be long.
template <class F>
WT_INLINE void in_pieces(int64_t n, F&& f) {
  constexpr int64_t kPiece = 1 << 16;
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    if (begin) poll_interrupt();
    f(begin, n - begin > kPiece ? begin + kPiece : n);
  }
}

// Nothing is asked in its scope. For whoever holds a lock: the check may wait for other threads and run
// user's code.
class WT_API Uninterrupted {
 public:
  Uninterrupted();
  ~Uninterrupted();
  Uninterrupted(const Uninterrupted&) = delete;
  Uninterrupted& operator=(const Uninterrupted&) = delete;
};

}  // namespace warptape::kernels::cpu
