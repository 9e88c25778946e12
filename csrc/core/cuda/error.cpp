#include "core/cuda/error.h"

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "core/cuda/devices.h"
#include "core/errors.h"

namespace warptape {
namespace {

bool environment_says(const char* name) {
  const char* value = std::getenv(name);
  return value && *value && std::strcmp(value, "0") != 0;
}

// Errors of work that ran earlier; they destroy the context, which a process has but one of. The numbers are
// part of CUDA's documentation: uncorrectable memory, link and containment errors, then those of kernels.
bool is_sticky(cudaError_t error) {
  int code = static_cast<int>(error);
  return code == 214 || code == 220 || code == 226 || code == 700 || code == 702 || code == 710 ||
         (code >= 714 && code <= 719) || code == 721;
}
bool is_capture_error(cudaError_t error) {
  int code = static_cast<int>(error);
  return code >= 900 && code <= 908;
}

// What made CUDA unusable in this process; empty while all is well.
struct FatalError {
  std::mutex mutex;
  std::string text;
};
FatalError& fatal_error() {
  static auto* words = new FatalError;
  return *words;
}

// What a kernel did wrong, and what finds the place.
std::string cause(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
      return "; compute-sanitizer, with WARPTAPE_NO_CUDA_MEMORY_CACHING=1, names the access";
    case cudaErrorMisalignedAddress:
      return "; a kernel moved several bytes at once at an address that is no multiple of them: memory that "
             "comes from another library or starts inside of a tensor may begin anywhere";
    case cudaErrorAssert:
      return "; an assert() in a kernel failed, and has printed where";
    default:
      return "";
  }
}

// The current device and how to compile for it; it may be one that cannot be asked.
std::string missing_code() {
  int device = 0;
  cudaDeviceProp p{};
  if (!warptape::cuda::succeeded(cudaGetDevice(&device)) ||
      !warptape::cuda::succeeded(cudaGetDeviceProperties(&p, device)))
    return "; this build has no code for this GPU: build with its architecture";
  const std::string here =
      message("cuda:", device, ", ", p.name, " of compute capability ", p.major, ".", p.minor);
  if (p.major < 8) return message("; kernels need compute capability 8.0 or later, and this is ", here);
  return message("; this build has no code for ", here,
                 ": build with -DWARPTAPE_CUDA_ARCHITECTURES=", p.major, p.minor);
}

std::string advice(cudaError_t error) {
  if (is_sticky(error)) {
    std::string text =
        kernels::cuda::launch_blocking
            ? cause(error)
            : cause(error) +
                  "; an earlier op may be the cause, for ops return before the device has run them: set "
                  "WARPTAPE_LAUNCH_BLOCKING=1 and run again to see its name";
    return text + "; CUDA cannot be used any more in this process: only a new process helps";
  }
  if (is_capture_error(error))
    return "; not everything can be recorded while a graph is captured: what waits for the device (item, "
           "cpu, synchronize, blocking copies) and work on streams that did not join the capture have to "
           "stay outside";
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "; free tensors or call warptape.cuda.empty_cache()";
    case cudaErrorInitializationError:
      return "; a forked child cannot use CUDA: start processes with the 'spawn' method";
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoKernelImageForDevice:
      return missing_code();
    case cudaErrorLaunchOutOfResources:
      return "; a block of this size has not registers or shared memory enough: launch smaller blocks, or "
             "compile the kernel with __launch_bounds__";
    default:
      return "";
  }
}

}  // namespace

namespace kernels::cuda {

bool launch_blocking =
    environment_says("WARPTAPE_LAUNCH_BLOCKING") || environment_says("CUDA_LAUNCH_BLOCKING");

void raise_library_error(const std::string& text) { throw DeviceError(text); }
std::vector<std::string> package_folders() { return warptape::package_folders(); }

void raise_error(cudaError_t error, const char* op) {
  (void)cudaGetLastError();
  FatalError& words = fatal_error();
  std::lock_guard lock(words.mutex);
  if (!words.text.empty())
    throw DeviceError(message(op, ": CUDA failed earlier in this process: ", words.text));
  std::string text = message(op, ": CUDA error: ", warptape::cuda::describe(error), advice(error));
  if (is_sticky(error)) words.text = text;
  if (error == cudaErrorMemoryAllocation) throw OutOfMemoryError(text);
  throw DeviceError(text);
}

void finish_blocking(const LaunchContext& ctx, const char* op) {
  auto stream = static_cast<cudaStream_t>(ctx.stream);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (!warptape::cuda::succeeded(cudaStreamIsCapturing(stream, &status))) return;
  if (status != cudaStreamCaptureStatusNone) return;
  check(cudaStreamSynchronize(stream), op);
  warptape::cuda::raise_fault(ctx.device_index, op);
}

}  // namespace kernels::cuda

std::string cuda::version_text(int version) { return message(version / 1000, ".", version % 1000 / 10); }

std::string cuda::describe(cudaError_t error) {
  return message(cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

}  // namespace warptape
