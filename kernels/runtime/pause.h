// What a loop does between two looks at a word that another thread is about to write.
#pragma once

namespace warptape::kernels::cpu {

inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // "yield" does nothing on most cores; this takes about as long as x86's pause
#endif
}

}  // namespace warptape::kernels::cpu
