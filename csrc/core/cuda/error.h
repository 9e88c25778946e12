// CUDA's error codes as typed errors.
#pragma once

#include "kernels/cuda/common/runtime.h"

namespace warptape::cuda {

using kernels::cuda::check;
using kernels::cuda::raise_error;

// For destructors and queries: drops the error that the runtime keeps for the next caller.
inline bool succeeded(cudaError_t error) {
  if (error == cudaSuccess) return true;
  (void)cudaGetLastError();
  return false;
}
// "an illegal memory access was encountered (cudaErrorIllegalAddress)"
std::string describe(cudaError_t error);
std::string version_text(int version);  // CUDA's 13010 is "13.1"

}  // namespace warptape::cuda
