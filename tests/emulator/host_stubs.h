// What stands for the host in a program with a device's runtime alone: memory that can be full.
#pragma once

#include <cstdlib>
#include <new>

namespace warptape::kernels::cpu {
void bind_num_threads(int*) {}  // the pool of the CPU's kernels is not part of this program
}  // namespace warptape::kernels::cpu

namespace {
thread_local bool host_is_full = false;

template <class F>
void with_full_host(F&& f) {
  host_is_full = true;
  f();
  host_is_full = false;
}
}  // namespace

void* operator new(size_t bytes) {
  void* p = host_is_full ? nullptr : std::malloc(bytes ? bytes : 1);
  if (!p) throw std::bad_alloc();
  return p;
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
