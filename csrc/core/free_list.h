// Per-thread free lists for the small objects that every op makes: tensors, storages, nodes.
#pragma once

#include <cstddef>
#include <new>
#include <utility>

#include "core/export.h"

namespace warptape {

template <class T, int kKeep = 256>
class FreeList {
 public:
  static void* allocate(size_t size) {
    Lists& l = lists_;
    if (size != sizeof(T) || !l.head) return ::operator new(size);
    void* p = l.head;
    l.head = *static_cast<void**>(p);
    --l.count;
    return p;
  }
  static void deallocate(void* p) {
    Lists& l = lists_;
    if (static_cast<unsigned>(l.count) >= kKeep && !begin()) return ::operator delete(p);
    *static_cast<void**>(p) = l.head;
    l.head = p;
    ++l.count;
  }

 private:
  struct Lists {
    void* head;
    int count;
  };
  // Frees the list when the thread ends. What other objects of the thread release after that is not kept.
  struct Drain {
    ~Drain() {
      Lists& l = lists_;
      for (l.count = kKeep; l.head;) ::operator delete(std::exchange(l.head, *static_cast<void**>(l.head)));
    }
  };
  // Whether this is the thread's first release, after which there is a list to free.
  [[gnu::cold, gnu::noinline]] static bool begin() {
    if (lists_.count >= 0) return false;
    static thread_local Drain drain;
    lists_.count = 0;
    return true;
  }
  // Trivial and constant-initialised, so that it is usable before and after every other object of the thread.
  static inline constinit thread_local Lists lists_ WT_INITIAL_EXEC = {nullptr, -1};
};

}  // namespace warptape
