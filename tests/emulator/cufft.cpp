// In place of cuFFT: one-dimensional plans, computed by the CPU's kernel in stream order. What cuFFT's manual
// asks for is checked, and ends the process: own work memory, large enough; a stream of the plan's device;
// pointers that are multiples of a complex number's size; different memory for both sides. What makes real
// numbers writes over its input, as cuFFT may.
#include "kernels/cuda/libraries/cufft.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "internal.h"
#include "kernels/fft/fft.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/slot.h"

namespace {

using namespace warptape;
using namespace warptape::kernels;

struct Side {
  DType dtype;
  int64_t size, stride, distance;
  bool operator==(const Side&) const = default;
};
struct Plan {
  int device = 0;
  bool own_memory = true, stream_set = false;
  cudaStream_t stream = nullptr;
  size_t work_bytes = 0;
  void* work = nullptr;
  int64_t lines = 0;
  Side in{}, out{};
};

std::mutex g_mutex;
std::map<int, Plan> g_plans;
int g_next = 1;
Slot<FftFn> g_fft{"fft"};

Plan& plan_of(int handle) {
  const auto found = g_plans.find(handle);
  if (found == g_plans.end()) emulator::die("cuFFT: there is no plan %d", handle);
  return found->second;
}

DType dtype_of_library(FftType t) {
  switch (t) {
    case FftType::Real32:
      return DType::Float32;
    case FftType::Real64:
      return DType::Float64;
    case FftType::Complex64:
      return DType::Complex64;
    case FftType::Complex128:
      return DType::Complex128;
    default:
      emulator::die("cuFFT: type %d is not known here", int(t));
  }
}

void check_side(const Plan& p, const Side& s, const void* data) {
  const size_t pair = itemsize(s.dtype) * (is_complex(s.dtype) ? 1 : 2);
  if (reinterpret_cast<uintptr_t>(data) % pair) emulator::die("cuFFT: %p is not aligned to %zu", data, pair);
  const emulator::Place place = emulator::place_of(data);
  const auto last = size_t((s.size - 1) * s.stride + (p.lines - 1) * s.distance + 1);
  if (place.device != p.device || place.bytes < last * itemsize(s.dtype))
    emulator::die("cuFFT: %p is not %zu elements of memory of device %d", data, last, p.device);
}

// The lines of a side as the CPU's kernel takes them: one behind the other, or side by side.
View view_of(const Plan& p, const Side& s, void* data, int64_t (&sizes)[2], int64_t (&strides)[2], int& dim) {
  const bool across = s.stride != 1;
  if (s.stride != (across ? p.lines : 1) || s.distance != (across ? 1 : s.size))
    emulator::die("cuFFT: the stand-in takes dense lines only");
  dim = across ? 0 : 1;
  sizes[dim] = s.size, sizes[1 - dim] = p.lines;
  strides[0] = sizes[1], strides[1] = 1;
  return {data, sizes, strides, 2, s.dtype};
}

void* allocate(void* self, size_t bytes) {
  constexpr size_t kAlign = 64;
  auto& blocks = *static_cast<std::vector<void*>*>(self);
  blocks.push_back(std::aligned_alloc(kAlign, (bytes / kAlign + 1) * kAlign));
  return blocks.back();
}

void transform(const Plan& p, void* in, void* out, bool forward) {
  cpu::Uninterrupted uninterrupted;
  std::vector<void*> blocks;
  LaunchContext host;
  host.allocate = allocate, host.allocator = &blocks;
  int64_t sizes[2][2], strides[2][2];
  int dim = 0;
  const View from = view_of(p, p.in, in, sizes[0], strides[0], dim),
             to = view_of(p, p.out, out, sizes[1], strides[1], dim);
  g_fft(host, to, from, dim, forward, 1.0);
  if (p.work_bytes) std::memset(p.work, 0xff, p.work_bytes);
  if (!is_complex(p.out.dtype)) std::memset(in, 0xff, size_t(p.lines * p.in.size) * itemsize(p.in.dtype));
  for (void* b : blocks) std::free(b);
}

}  // namespace

extern "C" {

cufftResult cufftCreate(cufftHandle* plan) {
  std::lock_guard lock(g_mutex);
  *plan = g_next++;
  cudaGetDevice(&g_plans[*plan].device);
  return 0;
}
cufftResult cufftDestroy(cufftHandle plan) {
  std::lock_guard lock(g_mutex);
  plan_of(plan);
  g_plans.erase(plan);
  return 0;
}
cufftResult cufftSetAutoAllocation(cufftHandle plan, int on) {
  std::lock_guard lock(g_mutex);
  plan_of(plan).own_memory = on != 0;
  return 0;
}
cufftResult cufftSetStream(cufftHandle plan, cudaStream_t stream) {
  std::lock_guard lock(g_mutex);
  Plan& p = plan_of(plan);
  p.stream = stream, p.stream_set = true;
  return 0;
}
cufftResult cufftSetWorkArea(cufftHandle plan, void* memory) {
  std::lock_guard lock(g_mutex);
  plan_of(plan).work = memory;
  return 0;
}
cufftResult cufftXtMakePlanMany(cufftHandle plan, int rank, long long* n, long long* in_sizes,
                                long long in_stride, long long in_distance, FftType in, long long* out_sizes,
                                long long out_stride, long long out_distance, FftType out, long long batch,
                                size_t* work_bytes, FftType compute) {
  if (auto held = emulator::lock(); emulator::unsafe_call() != cudaSuccess) return 2;  // ALLOC_FAILED
  std::lock_guard lock(g_mutex);
  Plan& p = plan_of(plan);
  if (rank != 1 || *n < 1 || batch < 1 || p.own_memory) emulator::die("cuFFT: a plan that is not expected");
  p.in = {dtype_of_library(in), *in_sizes, in_stride, in_distance};
  p.out = {dtype_of_library(out), *out_sizes, out_stride, out_distance};
  const bool half_in = is_complex(p.in.dtype) && !is_complex(p.out.dtype),
             half_out = !is_complex(p.in.dtype) && is_complex(p.out.dtype);
  if (p.in.size != (half_in ? *n / 2 + 1 : *n) || p.out.size != (half_out ? *n / 2 + 1 : *n) ||
      !is_complex(dtype_of_library(compute)))
    emulator::die("cuFFT: the sizes are not those of a transform of %lld", *n);
  p.lines = batch;
  p.work_bytes = *work_bytes = size_t(*n) * 16;
  return 0;
}
cufftResult cufftXtExec(cufftHandle plan, void* in, void* out, int direction) {
  std::lock_guard lock(g_mutex);
  Plan& p = plan_of(plan);
  int device = 0;
  cudaGetDevice(&device);
  if (device != p.device || !p.stream_set)
    emulator::die("cuFFT: a plan of another device, or without a stream");
  if (direction != CUFFT_FORWARD && direction != CUFFT_INVERSE)
    emulator::die("cuFFT: direction %d", direction);
  if (in == out) emulator::die("cuFFT: in place, which no plan was made for");
  check_side(p, p.in, in);
  check_side(p, p.out, out);
  const emulator::Place place = emulator::place_of(p.work);
  if (place.device != p.device || place.bytes < p.work_bytes)
    emulator::die("cuFFT: %p is not %zu bytes of work memory", p.work, p.work_bytes);
  const bool forward = direction == CUFFT_FORWARD;
  p.stream_set = false;  // every call says where it runs
  return emulator::enqueue(
      p.stream, [copy = p, in, out, forward] { transform(copy, in, out, forward); }, {in, out, p.work},
      "cuFFT");
}

}  // extern "C"
