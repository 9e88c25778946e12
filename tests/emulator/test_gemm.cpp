// Runs one step of the GEMM ladder on the emulated device, without the rest of warptape, so that a test can
// also compile it with a planted fault: test_gemm STEP DTYPE M N K [epilogue]. Prints the largest error
// against sums in double and exits with 1 where it is more than the dtype's rounding explains.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "kernels/cuda/gemm/steps.h"
#include "kernels/cuda/runtime.h"

namespace warptape::kernels {
void unhandled_dtype(const char*, DType) { throw std::runtime_error("dtype"); }

namespace cuda {
bool launch_blocking = false;
void use_device(int) {}
int multi_processor_count(int) { return 4; }
int capability(int) { return 90; }
void finish_blocking(const LaunchContext&, const char*) {}
void raise_error(cudaError_t error, const char* op) {
  throw std::runtime_error(std::string(op) + ": " + cudaGetErrorName(error));
}
void raise_library_error(const std::string& text) { throw std::runtime_error(text); }

namespace {
using Step = void (*)(const LaunchContext&, const GemmStepPlan&);
constexpr Step kRun[] = {gemm_naive,      gemm_coalesced,  gemm_shared_tile, gemm_register_tile,
                         gemm_vectorised, gemm_async_copy, gemm_warp_tiles,  gemm_wmma,
                         gemm_mma,        gemm_wgmma};

double number_at(const char* p, DType dtype, size_t i) {
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
    if (dtype == DType::Float32) memcpy(host.data() + 4 * i, &x, 4);
    const uint16_t bits = dtype == DType::BFloat16 ? BFloat16(x).bits : Half(x).bits;
    if (dtype != DType::Float32) memcpy(host.data() + 2 * i, &bits, 2);
  }
  values.resize(n);
  for (size_t i = 0; i < n; ++i) values[i] = number_at(host.data(), dtype, i);
  void* p = nullptr;
  check(cudaMalloc(&p, host.size()), "test");
  check(cudaMemcpy(p, host.data(), host.size(), cudaMemcpyHostToDevice), "test");
  return static_cast<char*>(p);
}

int run(int step, DType dtype, int64_t m, int64_t n, int64_t k, bool epilogue) {
  std::vector<double> a, b, bias;
  void* c = nullptr;
  const size_t bytes = size_t(m * n) * itemsize(dtype);
  check(cudaMalloc(&c, bytes), "test");
  const GemmStepPlan p{static_cast<GemmStepId>(step),
                       dtype,
                       m,
                       n,
                       k,
                       filled(size_t(m * k), dtype, 1, a),
                       filled(size_t(k * n), dtype, 2, b),
                       epilogue ? filled(size_t(n), dtype, 3, bias) : nullptr,
                       epilogue,
                       c};
  LaunchContext ctx{};
  ctx.device = DeviceType::CUDA;
  kRun[step](ctx, p);
  std::vector<char> host(bytes);
  check(cudaDeviceSynchronize(), "test");
  check(cudaMemcpy(host.data(), c, bytes, cudaMemcpyDeviceToHost), "test");
  const double tolerance = dtype == DType::Float32 ? 1e-6 * double(k) : dtype == DType::Float16 ? 1e-3 : 8e-3;
  double worst = 0;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t q = 0; q < k; ++q) sum += a[size_t(i * k + q)] * b[size_t(q * n + j)];
      if (epilogue) {
        sum += bias[size_t(j)];
        sum = 0.5 * sum * (1 + std::tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
      }
      const double got = number_at(host.data(), dtype, size_t(i * n + j));
      const double error = std::abs(got - sum) / std::max(1.0, std::abs(sum));
      worst = error <= worst ? worst : error;  // a NaN stays
      if (error != error) worst = INFINITY;
    }
  printf("error %g, at most %g\n", worst, tolerance);
  return worst <= tolerance ? 0 : 1;
}
}  // namespace
}  // namespace cuda
}  // namespace warptape::kernels

int main(int argc, char** argv) {
  using warptape::DType;
  if (argc < 6) return 2;
  const DType dtype = !strcmp(argv[2], "float32")   ? DType::Float32
                      : !strcmp(argv[2], "float16") ? DType::Float16
                                                    : DType::BFloat16;
  return warptape::kernels::cuda::run(atoi(argv[1]), dtype, atol(argv[3]), atol(argv[4]), atol(argv[5]),
                                      argc > 6);
}
