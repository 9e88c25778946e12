// Runs one step of the GEMM ladder on the emulated device, without the rest of warptape, so that a test can
// also compile it with a planted fault: test_gemm STEP DTYPE M N K [bias] [gelu]. Prints the largest error
// against sums in double and exits with 1 where it is more than the dtype's rounding explains.
#include "examples/gemm_ladder/steps.h"
#include "tests/emulator/test_program.h"

namespace warptape::kernels::cuda {
namespace {

int run(int step, DType dtype, int64_t m, int64_t n, int64_t k, bool with_bias, bool gelu) {
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
                       with_bias ? filled(size_t(n), dtype, 3, bias) : nullptr,
                       gelu,
                       c};
  LaunchContext ctx{};
  ctx.device = DeviceType::CUDA;
  kRunGemmStep[step](ctx, p);
  std::vector<char> host(bytes);
  check(cudaDeviceSynchronize(), "test");
  check(cudaMemcpy(host.data(), c, bytes, cudaMemcpyDeviceToHost), "test");
  const double tolerance = dtype == DType::Float32 ? 1e-6 * double(k) : dtype == DType::Float16 ? 1e-3 : 8e-3;
  double worst = 0;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t q = 0; q < k; ++q) sum += a[size_t(i * k + q)] * b[size_t(q * n + j)];
      if (with_bias) sum += bias[size_t(j)];
      if (gelu) sum = 0.5 * sum * (1 + std::tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
      const double got = number_at(host.data(), dtype, size_t(i * n + j));
      const double error = std::abs(got - sum) / std::max(1.0, std::abs(sum));
      worst = error <= worst ? worst : error;  // a NaN stays
      if (error != error) worst = INFINITY;
    }
  printf("error %g, at most %g\n", worst, tolerance);
  return worst <= tolerance ? 0 : 1;
}
}  // namespace
}  // namespace warptape::kernels::cuda

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  const auto dtype = warptape::kernels::cuda::dtype_named(argv[2]);
  bool bias = false, gelu = false;
  for (int i = 6; i < argc; ++i) (argv[i][0] == 'b' ? bias : gelu) = true;
  return warptape::kernels::cuda::run(atoi(argv[1]), dtype, atol(argv[3]), atol(argv[4]), atol(argv[5]), bias,
                                      gelu);
}
