// Ranges and marks that profilers show. The header opens the profiler's library by itself, if there is one.
#include "core/cuda/runtime.h"

#if !defined(WARPTAPE_CUDA_EMULATED)
#include <nvtx3/nvToolsExt.h>
#endif

namespace warptape::cuda {

#if defined(WARPTAPE_CUDA_EMULATED)
int CudaRuntime::range_push(const char*) { return -1; }
int CudaRuntime::range_pop() { return -1; }
void CudaRuntime::mark(const char*) {}
#else
int CudaRuntime::range_push(const char* text) { return nvtxRangePushA(text); }
int CudaRuntime::range_pop() { return nvtxRangePop(); }
void CudaRuntime::mark(const char* text) { nvtxMarkA(text); }
#endif

}  // namespace warptape::cuda
