// Kernels that only the runtime's tests use, launched and registered as all others are.
#include "internal.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/libraries/library.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

__global__ void add_to(uint64_t* p, int64_t n, uint64_t value, FaultSink fault) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) p[i] += value;
  if (i == n) fault.report(i, n);  // with more threads than elements
}

void probe(const LaunchContext& ctx, uint64_t* p, int64_t n, int threads, uint64_t value) {
  launch(ctx, "probe", add_to, dim3(1), dim3(static_cast<unsigned>(threads)), 0, p, n, value,
         fault_sink(ctx, "probe"));
}

WT_KERNEL(probe, probe);

}  // namespace

void* library_symbol(Library, const char* name) { return emulator::cupti_symbol(name); }

}  // namespace warptape::kernels::cuda
