// Planted faults of kernels that compute the right numbers here and are wrong or slow on a GPU, each beside
// its like without. Run with a kernel's name, and `right` for the like.
#include <cmath>
#include <cstring>
#include <string>

#include "test_device.h"

namespace {

constexpr unsigned kThreads = 64;

// 32 lanes read one bank, unless a column more lies between rows.
__global__ void columns(float* out, int right) {
  __shared__ float tile[32 * 33];
  const unsigned lane = threadIdx.x % 32, step = right ? 33 : 32;
  if (threadIdx.x < 32)
    for (unsigned i = 0; i < 32; ++i) tile[i * step + lane] = out[i * 32 + lane];
  __syncthreads();
  if (threadIdx.x < 32)
    for (unsigned i = 0; i < 32; ++i) out[i * 32 + lane] = tile[lane * step + i];
}

// Each thread walks over a row of its own, or all of them over one row after the other.
__global__ void rows_of_threads(float* out, int right) {
  for (unsigned i = 0; i < kThreads; ++i)
    out[right ? i * kThreads + threadIdx.x : threadIdx.x * kThreads + i] += 1;
}

// Every second element is left out.
__global__ void every_second(float* out, int right) {
  for (unsigned i = 0; i < kThreads / 2; ++i) out[(i * kThreads + threadIdx.x) * (right ? 1 : 2)] = 1;
}

// A pass over everything for each of four things that one pass could do.
__global__ void four_passes(float* out, int right) {
  constexpr unsigned kAll = 1 << 18;
  for (unsigned pass = 0; pass < 4; ++pass)
    for (unsigned i = threadIdx.x; i < (right ? kAll / 64 : kAll); i += kThreads) out[i] += 1;
}

// 16 bytes a thread, which the host's compiler moves by parts.
struct alignas(16) Eight {
  uint16_t values[8];
};
__global__ void eight_at_once(float* out, int right) {
  auto* p = reinterpret_cast<Eight*>(out) + threadIdx.x * (right ? 1 : 4);
  Eight x = *p;
  for (uint16_t& v : x.values) v = static_cast<uint16_t>(v + 1);
  *p = x;
}

__device__ volatile float g_inputs[] = {3e9f, -3e9f, 5.5f, NAN};
template <class I, class F>
__global__ void convert(float* out, int which) {
  const F x = static_cast<F>(g_inputs[which]);
  reinterpret_cast<I*>(out)[threadIdx.x] = static_cast<I>(x);
}

__global__ void set(float* out, int value) { *out = static_cast<float>(value); }

struct Lengths {
  int64_t count = 1;
  int64_t of[4];
};
__global__ void set_lengths(Lengths lengths, float* out) { *out = static_cast<float>(lengths.of[0]); }

// A kernel is given a struct of which the host filled the part that the kernel reads, or all.
void fill(bool all) {
  Lengths lengths;
  if (all)
    for (int64_t& length : lengths.of) length = 0;
  lengths.of[0] = 5;
  OK(launch("set_lengths", set_lengths, 1, 1, 0, nullptr, lengths, device_array<float>(1)));
  OK(cudaDeviceSynchronize());
}

// Memory that a kernel of stream b has is given to stream a; `how` says what orders the two.
void give(const std::string& how) {
  cudaStream_t a = new_stream(), b = new_stream(), c = new_stream();
  cudaEvent_t done = new_event(), later = new_event();
  auto* p = device_array<float>(256);
  const bool captures = how.starts_with("capture");
  if (captures) {
    OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
    OK(cudaEventRecord(done, a));
    OK(cudaStreamWaitEvent(b, done));
  }
  OK(launch("set", set, 1, 1, 0, b, p + 100, 1));
  OK(cudaEventRecord(done, b));
  if (how == "too late") OK(launch("set", set, 1, 1, 0, b, p + 101, 1));
  if (how == "event" || how == "capture, joined" || how == "too late") OK(cudaStreamWaitEvent(a, done));
  if (how == "other's event") OK(cudaStreamWaitEvent(c, done));
  if (how == "two events") {
    OK(cudaStreamWaitEvent(c, done));
    OK(cudaEventRecord(later, c));
    OK(cudaStreamWaitEvent(a, later));
  }
  if (how == "host") OK(cudaStreamSynchronize(b));
  if (how == "host, by event") OK(cudaEventSynchronize(done));
  if (how == "host, by query")
    while (cudaEventQuery(done) == cudaErrorNotReady) {
    }
  if (how == "other memory") p = device_array<float>(256);
  emulator::begin_life(p, 1024, how == "same stream" ? b : a);
}

using Kernel = void (*)(float*, int);
Kernel kernel_named(const std::string& name) {
  if (name == "columns") return columns;
  if (name == "rows_of_threads") return rows_of_threads;
  if (name == "every_second") return every_second;
  if (name == "four_passes") return four_passes;
  if (name == "eight_at_once") return eight_at_once;
  if (name == "float_to_int") return convert<int, float>;
  if (name == "float_to_unsigned") return convert<unsigned, float>;
  if (name == "float_to_long") return convert<int64_t, float>;
  if (name == "double_to_int") return convert<int, double>;
  if (name == "float_to_byte") return convert<uint8_t, float>;
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && !strcmp(argv[1], "give")) return give(argv[2]), g_failures ? 1 : 0;
  if (argc == 3 && !strcmp(argv[1], "fill")) return fill(!strcmp(argv[2], "all")), g_failures ? 1 : 0;
  const Kernel kernel = argc == 3 ? kernel_named(argv[1]) : nullptr;
  if (!kernel) return 2;
  auto* p = device_array<float>(1 << 18);
  OK(cudaMemset(p, 0, 4 << 18));
  OK(launch(argv[1], kernel, 1, kThreads, 0, nullptr, p, atoi(argv[2])));
  OK(cudaDeviceSynchronize());
  return g_failures ? 1 : 0;
}
