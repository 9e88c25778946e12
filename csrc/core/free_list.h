// Per-thread free lists for the small objects that every op makes: tensors, storages, nodes.
#pragma once

#include <cstddef>
#include <new>

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
    if (l.count >= kKeep) return ::operator delete(p);
    *static_cast<void**>(p) = l.head;
    l.head = p;
    ++l.count;
  }

 private:
  struct Lists {
    void* head;
    int count;
  };
  // Trivial and constant-initialised, so that it is usable before and after every other object of the thread;
  // what a thread leaves on its list at its end is bounded by kKeep.
  static inline constinit thread_local Lists lists_ __attribute__((tls_model("initial-exec"))) = {nullptr, 0};
};

}  // namespace warptape
