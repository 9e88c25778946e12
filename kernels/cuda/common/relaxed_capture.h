// What host code may do while somebody captures a graph.
#pragma once

#include <cuda_runtime_api.h>

namespace warptape::kernels::cuda {

// Within this scope the calling thread may do what a capture in a stricter mode forbids: allocate, load
// code, open a library.
class RelaxedCapture {
 public:
  RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace warptape::kernels::cuda
