// Long work can be interrupted: the calling thread asks now and then, between chunks and between nodes of the
// tape.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels::cpu {

// `check` throws to end the work. Null (the default) never asks. It is not called in threads of the pool.
WT_API void set_interrupt_check(void (*check)());
// Calls the check if the thread's last call was 50 ms ago or more.
WT_API void poll_interrupt();

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
