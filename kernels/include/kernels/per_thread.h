// Variables of which each thread has its own. Host only.
//
// glibc leaves some 1,600 bytes of static thread-local storage to all libraries together that are loaded
// after the program's start. A `thread_local` that one instruction finds (initial-exec) puts all of its
// library's into that room, and either this library or the next one then fails to load. So libwarptape.so has
// one word of it, the pointer below; all else lies behind it, and a test refuses `thread_local` in what
// the library is made of.
#pragma once

#include <atomic>

#include "kernels/types.h"

namespace warptape {

// The variables of one thread. Whoever has those that each op looks at derives from it (core/context.h).
struct ThreadLocals {
  static constexpr int kSlots = 64;

  // A variable that exists: made at its first use, destroyed as the thread ends, the newest first.
  struct Variable {
    Variable* older = nullptr;
    int slot = 0;
    virtual ~Variable() = default;
  };

  void* slots[kSlots] = {};  // by PerThread's index; none has index 0
  Variable* newest = nullptr;
  bool begun = false;  // false of the one that all threads share which have changed nothing yet

  // Takes over `v`, whose value lies at `at`. An index of 0 becomes one that no other PerThread has.
  WT_API void keep(Variable* v, void* at, std::atomic<int>& index);
  // Destructors may use variables that are destroyed already: these are made again, and destroyed again.
  WT_API void destroy_variables();
};

#if defined(__x86_64__)
#define WT_INITIAL_EXEC __attribute__((tls_model("initial-exec")))
#else
#define WT_INITIAL_EXEC  // descriptors do nearly as well
#endif
// Never null, so that a read needs no test: see ThreadLocals::begun. Defined by core/context.cpp.
extern WT_API constinit thread_local ThreadLocals* thread_locals_pointer WT_INITIAL_EXEC;

// To read.
inline ThreadLocals& thread_locals() { return *thread_locals_pointer; }

// The thread's own, to be changed.
[[gnu::cold, gnu::noinline]] WT_API ThreadLocals& begin_thread_locals();
inline ThreadLocals& own_thread_locals() {
  ThreadLocals& l = thread_locals();
  return __builtin_expect(l.begun, 1) ? l : begin_thread_locals();
}

// A static object that stands for one T per thread, default-constructed at the thread's first use.
template <class T>
class PerThread {
 public:
  constexpr PerThread() = default;
  PerThread(const PerThread&) = delete;

  T& operator*() {
    void* at = thread_locals().slots[index_.load(std::memory_order_relaxed)];
    return __builtin_expect(at != nullptr, 1) ? *static_cast<T*>(at) : make();
  }
  T* operator->() { return &**this; }

 private:
  struct Holder : ThreadLocals::Variable {
    T value{};
  };
  [[gnu::cold, gnu::noinline]] T& make() {
    Holder* made = new Holder;
    own_thread_locals().keep(made, &made->value, index_);
    return made->value;
  }

  std::atomic<int> index_{0};
};

}  // namespace warptape
