// Runs the grouped product on the emulated device, without the rest of warptape, so that a test can also
// compile it with a planted fault: test_grouped DTYPE [mma_]rows|transposed|along_k CUT OTHER N ENDS.... CUT
// is what the ends cut (m, or k), OTHER the other one. Prints the largest error against sums in double and
// exits with 1 where it is more than the dtype's rounding explains, with 3 where the kernel reports a bad
// end.
#include WARPTAPE_TEST_SOURCE
#include "tests/emulator/test_program.h"

namespace warptape::kernels::cuda {
namespace {

struct Case {
  DType dtype;
  bool along_k, transposed;
  int64_t m, n, k;
  std::vector<int32_t> ends;
};

struct Result {
  std::vector<char> c;
  std::vector<double> a, b;
  bool faulty;
};

Result run(const Case& x) {
  const size_t groups = x.ends.size();
  const size_t out = size_t(x.m * x.n) * (x.along_k ? groups : 1), bytes = out * itemsize(x.dtype);
  Result r{std::vector<char>(bytes), {}, {}, false};
  void *c = nullptr, *ends = nullptr, *record = nullptr;
  check(cudaMalloc(&c, bytes), "test");
  check(cudaMemset(c, 0xff, bytes), "test");
  check(cudaMalloc(&ends, groups * sizeof(int32_t)), "test");
  check(cudaMemcpy(ends, x.ends.data(), groups * sizeof(int32_t), cudaMemcpyHostToDevice), "test");
  check(cudaHostAlloc(&record, sizeof(IndexFault), cudaHostAllocMapped), "test");
  LaunchContext ctx{};
  ctx.device = DeviceType::CUDA;
  ctx.fault = new (record) IndexFault;
  GroupedMmPlan p{};
  p.dtype = x.dtype, p.along_k = x.along_k, p.b_transposed = x.transposed;
  p.groups = int64_t(groups), p.m = x.m, p.n = x.n, p.k = x.k;
  p.ends = static_cast<const int32_t*>(ends);
  p.a = filled(size_t(x.m * x.k), x.dtype, 1, r.a);
  p.b = filled(size_t(x.k * x.n) * (x.along_k ? 1 : groups), x.dtype, 2, r.b);
  p.c = c;
  grouped_mm(ctx, p);
  check(cudaDeviceSynchronize(), "test");
  check(cudaMemcpy(r.c.data(), c, bytes, cudaMemcpyDeviceToHost), "test");
  r.faulty = ctx.fault->set;
  return r;
}

// C [group, i, j]; of groups of rows i counts all rows.
double expected(const Case& x, const Result& r, size_t g, int64_t i, int64_t j) {
  const int64_t first = g ? x.ends[g - 1] : 0;
  double sum = 0;
  if (x.along_k) {
    for (int64_t q = first; q < x.ends[g]; ++q) sum += r.a[size_t(q * x.m + i)] * r.b[size_t(q * x.n + j)];
    return sum;
  }
  for (int64_t q = 0; q < x.k; ++q)
    sum += r.a[size_t(i * x.k + q)] *
           r.b[g * size_t(x.n * x.k) + size_t(x.transposed ? j * x.k + q : q * x.n + j)];
  return sum;
}

int compare(const Case& x, const Result& r) {
  const double tolerance = x.dtype == DType::Float64   ? 1e-12
                           : x.dtype == DType::Float32 ? 1e-6 * double(x.k)
                           : x.dtype == DType::Float16 ? 1e-3
                                                       : 8e-3;
  double worst = 0;
  auto note = [&](size_t at, double sum) {
    const double error = std::abs(number_at(r.c.data(), x.dtype, at) - sum) / std::max(1.0, std::abs(sum));
    worst = error <= worst ? worst : error == error ? error : INFINITY;
  };
  for (size_t g = 0; g <= x.ends.size(); ++g) {
    const bool rest = g == x.ends.size();
    if (x.along_k && rest) break;
    const int64_t first = x.along_k || g == 0 ? 0 : x.ends[g - 1], last = x.along_k || rest ? x.m : x.ends[g];
    for (int64_t i = first; i < last; ++i)
      for (int64_t j = 0; j < x.n; ++j)
        note((x.along_k ? g * size_t(x.m * x.n) : 0) + size_t(i * x.n + j),
             rest ? 0 : expected(x, r, g, i, j));
  }
  printf("error %g, at most %g\n", worst, tolerance);
  return worst <= tolerance ? 0 : 1;
}

}  // namespace
}  // namespace warptape::kernels::cuda

int main(int argc, char** argv) {
  using namespace warptape::kernels::cuda;
  if (argc < 7) return 2;
  std::string form = argv[2];
  if (form.starts_with("mma_")) form = form.substr(4), g_capability = 80;
  const int64_t cut = atol(argv[3]), other = atol(argv[4]);
  Case x{dtype_named(argv[1]), form == "along_k", form == "transposed", 0, atol(argv[5]), 0, {}};
  x.m = x.along_k ? other : cut, x.k = x.along_k ? cut : other;
  for (int i = 6; i < argc; ++i) x.ends.push_back(atoi(argv[i]));
  const Result r = run(x);
  return r.faulty ? 3 : compare(x, r);
}
