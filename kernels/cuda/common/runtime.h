// What host code of kernels/cuda asks of the device runtime. Declared here, for kernels include nothing of
// csrc; defined in csrc/core/cuda, which lies in the same plugin.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/types.h"

namespace warptape::kernels::cuda {

// Throws what the code means: OutOfMemoryError or DeviceError, naming `op`. After an error that no later call
// of the process survives, every further one says so.
[[noreturn]] void raise_error(cudaError_t error, const char* op);
inline void check(cudaError_t error, const char* op) {
  if (__builtin_expect(error != cudaSuccess, 0)) raise_error(error, op);
}

// Throws a DeviceError with that text: a library is missing, or refuses a call.
[[noreturn]] void raise_library_error(const std::string& text);

// Makes the device current for the calling OS thread; one comparison when it is so already.
void use_device(int index);
// Multiprocessors of a device: what grids that fill it are cut by.
int multi_processor_count(int index);
// Compute capability, 90 for 9.0.
int capability(int index);

// WARPTAPE_LAUNCH_BLOCKING or CUDA_LAUNCH_BLOCKING: after each launch finish_blocking waits for it and names
// `op` in what it raises. Does nothing while the stream is captured.
extern bool launch_blocking;
void finish_blocking(const LaunchContext& ctx, const char* op);

// Folders that packages are installed in, such as site-packages.
std::vector<std::string> package_folders();

// What users choose by PyTorch's names under torch.backends. Written by whoever holds the GIL, read by any
// thread.
struct Switches {
  bool matmul_allow_tf32 = false;
  bool matmul_allow_bf16_reduced_precision_reduction = true;
  bool matmul_allow_fp16_reduced_precision_reduction = true;
  bool cudnn_enabled = true;
  bool cudnn_allow_tf32 = true;
  bool cudnn_benchmark = false;
  bool cudnn_deterministic = false;
};
Switches& switches();

// Names and versions of the libraries that this build calls (cuBLASLt, cuDNN), "not found: why" for one that
// does not open. Defined by whoever opens them; a build without libraries has no such function.
using Versions = std::vector<std::pair<std::string, std::string>>;
[[gnu::weak]] void append_library_versions(Versions& versions);

}  // namespace warptape::kernels::cuda
