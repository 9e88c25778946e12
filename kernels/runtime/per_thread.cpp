#include "kernels/per_thread.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

namespace warptape {

void ThreadLocals::keep(Variable* v, void* at, std::atomic<int>& index) {
  static std::mutex mutex;
  static int last = 0;
  v->slot = index.load(std::memory_order_relaxed);
  if (!v->slot) {
    std::lock_guard lock(mutex);
    if (!index.load(std::memory_order_relaxed)) {
      if (++last == kSlots) {
        std::fputs("warptape: more PerThread variables than ThreadLocals::kSlots\n", stderr);
        std::abort();
      }
      index.store(last, std::memory_order_relaxed);
    }
    v->slot = index.load(std::memory_order_relaxed);
  }
  slots[v->slot] = at;
  v->older = std::exchange(newest, v);
}

void ThreadLocals::destroy_variables() {
  while (newest) {
    Variable* v = std::exchange(newest, newest->older);
    slots[v->slot] = nullptr;
    delete v;
  }
}

}  // namespace warptape
