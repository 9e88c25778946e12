// What programs that run one family of kernels on the emulated device need of the rest of warptape. Each
// program has one source, which includes this.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/runtime.h"

namespace warptape::kernels {
void unhandled_dtype(const char*, DType) { throw std::runtime_error("dtype"); }

namespace cuda {
bool launch_blocking = false;
void use_device(int) {}
int multi_processor_count(int) { return 4; }
int g_capability = 90;
int capability(int) { return g_capability; }
void finish_blocking(const LaunchContext&, const char*) {}
void raise_error(cudaError_t error, const char* op) {
  throw std::runtime_error(std::string(op) + ": " + cudaGetErrorName(error));
}
void raise_library_error(const std::string& text) { throw std::runtime_error(text); }

double number_at(const char* p, DType dtype, size_t i) {
  if (dtype == DType::Float64) return reinterpret_cast<const double*>(p)[i];
  if (dtype == DType::Float32) return reinterpret_cast<const float*>(p)[i];
  if (dtype == DType::BFloat16) return float(reinterpret_cast<const BFloat16*>(p)[i]);
  return float(reinterpret_cast<const Half*>(p)[i]);
}
// Values in [-1, 1) on the device, equal in every run.
char* filled(size_t n, DType dtype, uint64_t state, std::vector<double>& values) {
  std::vector<char> host(n * itemsize(dtype));
  for (size_t i = 0; i < n; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const float x = float(int32_t(state >> 32)) / 2147483648.f;
    const double wide = x;
    const uint16_t bits = dtype == DType::BFloat16 ? BFloat16(x).bits : Half(x).bits;
    const void* from = dtype == DType::Float64   ? static_cast<const void*>(&wide)
                       : dtype == DType::Float32 ? static_cast<const void*>(&x)
                                                 : &bits;
    memcpy(host.data() + itemsize(dtype) * i, from, itemsize(dtype));
  }
  values.resize(n);
  for (size_t i = 0; i < n; ++i) values[i] = number_at(host.data(), dtype, i);
  void* p = nullptr;
  check(cudaMalloc(&p, host.size()), "test");
  check(cudaMemcpy(p, host.data(), host.size(), cudaMemcpyHostToDevice), "test");
  return static_cast<char*>(p);
}

DType dtype_named(const char* name) {
  if (!strcmp(name, "float64")) return DType::Float64;
  if (!strcmp(name, "float32")) return DType::Float32;
  return strcmp(name, "float16") ? DType::BFloat16 : DType::Float16;
}
}  // namespace cuda
}  // namespace warptape::kernels
