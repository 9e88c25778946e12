// Checks of the stand-in for cuFFT: transforms are right, and each planted mistake of a caller ends the
// process. Run with the mistake's name, or "none".
#include <cmath>
#include <complex>
#include <cstdio>
#include <string>
#include <vector>

#include "cuda_runtime.h"
#include "kernels/cuda/libraries/cufft.h"

namespace {

using Number = std::complex<float>;
constexpr long long kSize = 6, kLines = 4;
constexpr size_t kBytes = size_t(kSize * kLines) * sizeof(Number);

// A forward transform of complex lines that follow each other; a mistake changes some of it.
struct Call {
  long long n = kSize, in_size = kSize, out_size = kSize, stride = 1, distance = kSize, lines = kLines;
  FftType type = FftType::Complex64, compute = FftType::Complex64;
  int rank = 1, direction = CUFFT_FORWARD, own_memory = 0, runs = 1, device = 0;
  size_t in_offset = 0, out_offset = 0, less_work = 0, bytes = kBytes;
  bool host = false, in_place = false, stream = true, work = true;
};

void plant(Call& c, const std::string& mistake) {
  if (mistake == "stride") c.stride = 2, c.bytes *= 4;  // more memory, so that the stride alone is wrong
  if (mistake == "distance") c.distance = kSize + 1, c.bytes *= 4;
  if (mistake == "small-work") c.less_work = 8;
  if (mistake == "no-work") c.work = false;
  if (mistake == "own-memory") c.own_memory = 1;
  if (mistake == "no-stream") c.stream = false;
  if (mistake == "stream-of-before") c.runs = 2;
  if (mistake == "misaligned") c.in_offset = 4;
  if (mistake == "beyond") c.out_offset = 8;
  if (mistake == "host") c.host = true;
  if (mistake == "in-place") c.in_place = true;
  if (mistake == "direction") c.direction = 0;
  if (mistake == "size") c.out_size = kSize / 2 + 1;
  if (mistake == "lines") c.lines = kLines + 1;
  if (mistake == "rank") c.rank = 2;
  if (mistake == "compute") c.compute = FftType::Real32;
  if (mistake == "device") c.device = 1;
}

std::vector<Number> run(const Call& c, const std::vector<Number>& given) {
  cufftHandle plan;
  cufftCreate(&plan);
  cufftSetAutoAllocation(plan, c.own_memory);
  long long n = c.n, in_size = c.in_size, out_size = c.out_size;
  size_t work_bytes = 0;
  cufftXtMakePlanMany(plan, c.rank, &n, &in_size, c.stride, c.distance, c.type, &out_size, c.stride,
                      c.distance, c.type, c.lines, &work_bytes, c.compute);
  char *in, *out, *work;
  cudaMalloc(reinterpret_cast<void**>(&in), c.bytes);
  cudaMalloc(reinterpret_cast<void**>(&out), c.bytes);
  cudaMalloc(reinterpret_cast<void**>(&work), work_bytes - c.less_work);
  cudaMemcpy(in, given.data(), kBytes, cudaMemcpyHostToDevice);
  static std::vector<Number> on_host(given.size());
  if (c.stream) cufftSetStream(plan, nullptr);
  if (c.work) cufftSetWorkArea(plan, work);
  cudaSetDevice(c.device);
  char* from = c.host ? reinterpret_cast<char*>(on_host.data()) : in + c.in_offset;
  for (int i = 0; i < c.runs; ++i)
    cufftXtExec(plan, from, c.in_place ? from : out + c.out_offset, c.direction);
  cudaDeviceSynchronize();
  std::vector<Number> result(given.size());
  cudaMemcpy(result.data(), out, kBytes, cudaMemcpyDeviceToHost);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  Call call;
  const std::string mistake = argc > 1 ? argv[1] : "none";
  plant(call, mistake);
  std::vector<Number> given;
  for (int i = 0; i < kSize * kLines; ++i) given.emplace_back(float(i * 7 % 11) - 5, float(i * 5 % 7) - 3);
  const std::vector<Number> out = run(call, given);
  for (int line = 0; line < kLines; ++line)
    for (int k = 0; k < kSize; ++k) {
      std::complex<double> sum = 0;
      for (int j = 0; j < kSize; ++j)
        sum += std::complex<double>(given[size_t(line * kSize + j)]) *
               std::polar(1.0, -2 * M_PI * double(j * k) / double(kSize));
      if (std::abs(sum - std::complex<double>(out[size_t(line * kSize + k)])) < 1e-4) continue;
      fprintf(stderr, "line %d, frequency %d is wrong\n", line, k);
      return 1;
    }
  return 0;
}
