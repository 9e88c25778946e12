// The ladder as a shared library with C's calls, without the rest of warptape: gemm_ladder.py makes and calls
// it. It has a copy of the device's runtime of its own, and the memory and streams of the process' GPU are
// the same.
#include <cstring>
#include <stdexcept>
#include <string>

#include "examples/gemm_ladder/steps.h"
#include "kernels/cuda/common/runtime.h"

namespace warptape::kernels {

// ---- what kernels ask of warptape's runtime ----
void unhandled_dtype(const char* op, DType) {
  throw std::runtime_error(std::string(op) + ": no kernel for this dtype");
}

namespace cuda {

bool launch_blocking = false;
void use_device(int index) { check(cudaSetDevice(index), "use_device"); }
int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, index), "attribute");
  return value;
}
int multi_processor_count(int index) { return attribute(cudaDevAttrMultiProcessorCount, index); }
int capability(int index) {
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor, index) +
         attribute(cudaDevAttrComputeCapabilityMinor, index);
}
void finish_blocking(const LaunchContext&, const char*) {}
void raise_error(cudaError_t error, const char* op) {
  throw std::runtime_error(std::string(op) + ": " + cudaGetErrorName(error));
}
void raise_library_error(const std::string& text) { throw std::runtime_error(text); }

namespace {

// A copy of the host's numbers on the device.
struct OnDevice {
  void* at = nullptr;
  OnDevice(const void* host, size_t bytes) {
    if (!host) return;
    check(cudaMalloc(&at, bytes), "malloc");
    check(cudaMemcpy(at, host, bytes, cudaMemcpyHostToDevice), "copy to the device");
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(at); }
};

void run(const LaunchContext& ctx, const GemmStepPlan& p) {
  const GemmStep& step = kGemmSteps[static_cast<int>(p.step)];
  const int has = capability(ctx.device_index);
  if (step.capability == 90 ? has != 90 : has < step.capability)
    raise_library_error(std::string("step '") + step.name + "' needs a GPU of compute capability " +
                        (step.capability == 90 ? "9.0" : "8.0 or higher") + ", this one has " +
                        std::to_string(has / 10) + "." + std::to_string(has % 10) + "; take another step");
  kRunGemmStep[static_cast<int>(p.step)](ctx, p);
}

void run_on_host(GemmStepPlan p) {
  const size_t item = itemsize(p.dtype), bytes = size_t(p.m * p.n) * item;
  const OnDevice a(p.a, size_t(p.m * p.k) * item), b(p.b, size_t(p.k * p.n) * item),
      bias(p.bias, size_t(p.n) * item), c(p.c, bytes);
  void* host = p.c;
  p.a = a.at, p.b = b.at, p.bias = bias.at, p.c = c.at;
  LaunchContext ctx{};
  ctx.device = DeviceType::CUDA;
  run(ctx, p);
  check(cudaDeviceSynchronize(), "product");
  check(cudaMemcpy(host, c.at, bytes, cudaMemcpyDeviceToHost), "copy from the device");
}

thread_local std::string g_error;

template <class Call>
const char* caught(Call&& call) {
  try {
    call();
    return nullptr;
  } catch (const std::exception& e) {
    g_error = e.what();
    return g_error.c_str();
  }
}

std::string text_of(const GemmTile& t) {
  return std::to_string(t.m) + "," + std::to_string(t.n) + "," + std::to_string(t.k);
}
std::string table() {
  std::string text;
  for (const GemmStep& s : kGemmSteps) {
    text += std::string(s.name) + "\t" + s.adds + "\t" + text_of(s.block) + "\t" + text_of(s.warp) + "\t" +
            text_of(s.fragment);
    for (int number : {s.threads, s.stages, int(s.tensor_cores), s.multiple_n, s.multiple_k, s.capability,
                       int(s.epilogue)})
      text += "\t" + std::to_string(number);
    text += "\n";
  }
  return text;
}

}  // namespace
}  // namespace cuda
}  // namespace warptape::kernels

// ---- what gemm_ladder.py calls ----
#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace warptape;
using namespace warptape::kernels;

// A line a step, fields apart by tabs, in the order of GemmStep in gemm_ladder.py.
EXPORT const char* gemm_ladder_table() {
  static const std::string text = cuda::table();
  return text.c_str();
}

EXPORT bool gemm_ladder_is_emulated() {
#if defined(WARPTAPE_CUDA_EMULATED)
  return true;
#else
  return false;
#endif
}

// What was wrong, or null. `dtype` is 0 for float32, 1 for float16, 2 for bfloat16. Matrices lie on the host
// when `device` is negative: they are copied there and back. `stream` is a cudaStream_t of that device.
EXPORT const char* gemm_ladder_run(int step, int dtype, int64_t m, int64_t n, int64_t k, const void* a,
                                   const void* b, const void* bias, bool gelu, void* c, int device,
                                   void* stream) {
  constexpr DType kDtypes[] = {DType::Float32, DType::Float16, DType::BFloat16};
  const cuda::GemmStepPlan plan{
      static_cast<cuda::GemmStepId>(step), kDtypes[dtype], m, n, k, a, b, bias, gelu, c};
  return cuda::caught([&] {
    if (device < 0) return cuda::run_on_host(plan);
    LaunchContext ctx{};
    ctx.device = DeviceType::CUDA, ctx.device_index = device, ctx.stream = stream;
    cuda::run(ctx, plan);
  });
}
