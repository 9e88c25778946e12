// What the emulator's own test programs share.
#pragma once

#include <cstdio>
#include <vector>

#include "cuda_runtime.h"

inline int g_failures = 0;
#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++g_failures;                                                   \
    }                                                                 \
  } while (0)
#define OK(call) CHECK((call) == cudaSuccess)

template <class... P, class... A>
cudaError_t launch(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                   cudaStream_t stream, A... args) {
  emulator::name_next_launch(name);
  cudaLaunchConfig_t config{grid, block, shared, stream, nullptr, 0};
  return cudaLaunchKernelEx(&config, kernel, args...);
}
template <class T>
T* device_array(size_t n) {
  void* p = nullptr;
  OK(cudaMalloc(&p, n * sizeof(T)));
  return static_cast<T*>(p);
}
template <class T>
T* pinned_array(size_t n) {
  void* p = nullptr;
  OK(cudaHostAlloc(&p, n * sizeof(T), cudaHostAllocMapped));
  return static_cast<T*>(p);
}
template <class T>
std::vector<T> read(const T* p, size_t n) {
  std::vector<T> v(n);
  OK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
  return v;
}
inline cudaStream_t new_stream() {
  cudaStream_t s = nullptr;
  OK(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, 0));
  return s;
}
inline cudaEvent_t new_event(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t e = nullptr;
  OK(cudaEventCreateWithFlags(&e, flags));
  return e;
}
