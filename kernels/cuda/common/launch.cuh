// The one way to launch a kernel, and what every kernel needs of its context. Code that is compiled at run
// time (chain.cuh) has the device's part.
#pragma once

#include <type_traits>

#include "kernels/types.h"
#if !defined(__CUDACC_RTC__)
#include <cuda_runtime.h>

#include "kernels/cuda/common/runtime.h"
#endif

#define WT_DEVICE __device__ __forceinline__

namespace warptape::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kMaxGridY = 65535;

// Blocks of `per` elements each for n elements.
constexpr int64_t ceil_div(int64_t n, int64_t per) { return (n + per - 1) / per; }

#if !defined(__CUDACC_RTC__)
// The blocks of a launch. `cluster` neighbours along x run together (compute capability 9.0), and their
// number is a multiple of it.
struct Grid {
  dim3 blocks;
  unsigned cluster;
  Grid(dim3 all, unsigned together = 1) : blocks(all), cluster(together) {}
};

// Runs kernel(args...) on the context's stream. Arguments are copied: what they point to must be device
// memory. An empty grid runs nothing. `op` is what an error will name.
template <class... P, class... A>
void launch(const LaunchContext& ctx, const char* op, void (*kernel)(P...), Grid grid, dim3 block,
            size_t shared_bytes, A&&... args) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  use_device(ctx.device_index);
  if (shared_bytes > 48 * 1024)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
          op);
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(ctx.stream);
  cudaLaunchAttribute cluster{};
  if (grid.cluster > 1) {
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {grid.cluster, 1, 1};
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
#if defined(WARPTAPE_CUDA_EMULATED)
  emulator::name_next_launch(op);
#endif
  check(cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...), op);
  if (launch_blocking) finish_blocking(ctx, op);
}
#endif

// The block's dynamic shared memory, 16-byte aligned.
#if defined(WARPTAPE_CUDA_EMULATED)
template <class T>
WT_DEVICE T* dynamic_shared() {
  return static_cast<T*>(emulated_dynamic_shared());
}
#else
template <class T>
WT_DEVICE T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char wt_dynamic_shared[];
  return reinterpret_cast<T*>(wt_dynamic_shared);
}
#endif

// How a kernel reports a bad index: it keeps the first one seen and goes on without the access. The record
// lies in host memory that the device sees; the next synchronisation raises it.
struct FaultSink {
  IndexFault* record;
  const char* op;  // a host pointer that the device only passes on

  WT_DEVICE void report(int64_t index, int64_t bound) const {
    volatile IndexFault* f = record;
    if (f->set) return;
    f->index = index;
    f->bound = bound;
    f->op = op;
    __threadfence_system();
    f->set = true;
  }
};
inline FaultSink fault_sink(const LaunchContext& ctx, const char* op) { return {ctx.fault, op}; }

}  // namespace warptape::kernels::cuda
