// Per-thread free lists for the small objects that every op makes: tensors, storages, nodes.
#pragma once

#include <cstddef>
#include <new>

#include "core/context.h"

namespace warptape {

template <class T, Pooled kind, int kKeep = 256>
class FreeList {
 public:
  static void* allocate(size_t size) {
    FreeObjects& l = objects();
    if (size != sizeof(T) || !l.head) return ::operator new(size);
    void* p = l.head;
    l.head = *static_cast<void**>(p);
    --l.count;
    return p;
  }
  static void deallocate(void* p) {
    FreeObjects& l = objects();
    if (__builtin_expect(l.count >= kKeep, 0)) return overflow(p);
    *static_cast<void**>(p) = l.head;
    l.head = p;
    ++l.count;
  }

 private:
  [[gnu::cold, gnu::noinline]] static void overflow(void* p) {
    if (thread_locals().begun) return ::operator delete(p);
    begin_thread_locals();
    deallocate(p);
  }
  static FreeObjects& objects() { return core_locals().free_objects[static_cast<int>(kind)]; }
};

}  // namespace warptape
