// What the plugin exports: how it was built, and a function that answers null when CUDA can be used, else
// what is missing.
#include "core/cuda/error.h"
#include "core/cuda/runtime.h"
#include "core/errors.h"

extern "C" {
// Borders of the section that WT_KERNEL fills in this library.
extern const warptape::kernels::KernelEntry __start_wt_kernels[] __attribute__((weak, visibility("hidden")));
extern const warptape::kernels::KernelEntry __stop_wt_kernels[] __attribute__((weak, visibility("hidden")));
}

namespace warptape::cuda {
namespace {

// Why the devices of this machine cannot be used, empty if they can.
std::string find_devices(int* count) {
  cudaError_t error = cudaGetDeviceCount(count);
  (void)cudaGetLastError();
  if (error == cudaSuccess && *count > 0) return "";
  int driver = 0, runtime = 0;
  if (!succeeded(cudaDriverGetVersion(&driver))) driver = 0;
  if (!succeeded(cudaRuntimeGetVersion(&runtime))) runtime = 0;
  if (driver == 0)
    return "there is no NVIDIA driver (libcuda.so.1 was not found); install one that supports CUDA " +
           version_text(runtime) + ", and start containers with the GPU passed in";
  if (error == cudaErrorInsufficientDriver)
    return message("the NVIDIA driver is too old: it supports CUDA ", version_text(driver),
                   ", and this build needs CUDA ", version_text(runtime),
                   "; install a newer driver, or a build for an older CUDA");
  if (error == cudaErrorNoDevice || error == cudaSuccess)
    return "the driver sees no GPU; check nvidia-smi and the environment variable CUDA_VISIBLE_DEVICES";
  return message("the driver reports: ", describe(error), "; check nvidia-smi");
}

const char* start(int abi) {
  static std::string problem;
  if (abi != kPluginAbi) {
    problem = message("libwarptape_cuda.so was built for plugin interface ", kPluginAbi,
                      ", and this warptape has ", abi, "; install both from the same release");
    return problem.c_str();
  }
  int count = 0;
  problem = find_devices(&count);
  if (!problem.empty()) return problem.c_str();
  register_kernels(__start_wt_kernels, __stop_wt_kernels);
  register_device_runtime(DeviceType::CUDA, new CudaRuntime(count));  // never destroyed: tensors outlive all
  return nullptr;
}

}  // namespace
}  // namespace warptape::cuda

// CMake defines the macro, for this file alone.
extern "C" WT_API const char warptape_plugin_build[] = WARPTAPE_CUDA_BUILT;
extern "C" WT_API const char* warptape_plugin_init(int abi) { return warptape::cuda::start(abi); }
