// Checks of the emulator itself. Run with a check's name; prints what it says it prints or fails.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "test_device.h"

namespace {

// ---- kernels ----
__global__ void set_value(int* out, int value) { *out = value; }
__global__ void add_value(int* out, int value) { *out += value; }
__global__ void copy_value(int* out, const int* in) { *out = *in; }

// Sum of a block over shared memory, in halves: 2 barriers and more.
__global__ void sum_block(const int* in, int* out) {
  __shared__ int part[256];
  unsigned t = threadIdx.x;
  part[t] = in[blockIdx.x * 256 + t];
  for (unsigned half = 128; half; half /= 2) {
    __syncthreads();
    if (t < half) part[t] += part[t + half];
  }
  if (!t) out[blockIdx.x] = part[0];
}
__global__ void rotate_without_barrier(int* out) {
  __shared__ int values[64];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = values[(threadIdx.x + 1) % 64];
}

// Planted races, and their like without one.
__global__ void exchange_in_warp(int* out, int synced) {
  __shared__ int values[32];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (synced) __syncwarp();
  out[threadIdx.x] = values[threadIdx.x ^ 1];
}
__global__ void write_after_read(int* out, int synced) {
  __shared__ int values[64];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  const int taken = values[(threadIdx.x + 33) % 64];
  if (synced) __syncthreads();
  values[threadIdx.x] = taken;
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x];
}
__global__ void blocks_add(int* out, int atomic) {
  if (threadIdx.x) return;
  if (atomic)
    atomicAdd(out, 1);
  else
    *out += 1;
}
// The last block to be done adds up what all have left, as a reduction does.
__global__ void last_block_sums(int* out, int counted) {
  if (threadIdx.x) return;
  out[blockIdx.x + 2] = static_cast<int>(blockIdx.x);
  __threadfence();
  const int done = counted ? atomicAdd(out + 1, 1) : static_cast<int>(blockIdx.x);
  if (done != static_cast<int>(gridDim.x) - 1) return;
  int sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += out[i + 2];
  *out = sum;
}
__global__ void neighbours_by_bytes(unsigned char* out, int apart) {
  out[static_cast<int>(threadIdx.x) / (apart ? 1 : 2)] = static_cast<unsigned char>(threadIdx.x);
}
__global__ void all_write(int* out, int same) { *out = same ? 7 : static_cast<int>(threadIdx.x); }
__global__ void misaligned(char* p, int by) {
  if (threadIdx.x == 0) *reinterpret_cast<double*>(p + by) = 1;
}

__global__ void warp_calls(int* out) {
  int lane = static_cast<int>(threadIdx.x % 32), total = lane;
  for (int d = 16; d; d /= 2) total += __shfl_xor_sync(~0u, total, d);
  int* mine = out + threadIdx.x * 10;
  mine[0] = total;
  mine[1] = __shfl_up_sync(~0u, lane, 3);
  mine[2] = __shfl_down_sync(~0u, lane, 3, 8);
  mine[3] = __shfl_sync(~0u, lane, 2, 16);
  mine[4] = static_cast<int>(__ballot_sync(~0u, lane % 3 == 0));
  mine[5] = __any_sync(~0u, lane == 31) + 2 * __any_sync(~0u, 0) + 4 * __all_sync(~0u, lane < 32) +
            8 * __all_sync(~0u, lane);
  mine[6] = static_cast<int>(__match_any_sync(~0u, lane / 4));
  mine[7] = static_cast<int>(__shfl_xor_sync(~0u, 1.5 * lane, 1) * 2);
  mine[8] = __reduce_min_sync(~0u, 5 - lane);
  mine[9] = __reduce_add_sync(~0u, lane) + 1000 * static_cast<int>(__reduce_max_sync(~0u, unsigned(lane)));
}
__global__ void half_warps(int* out) {  // two masks, in different branches
  int lane = static_cast<int>(threadIdx.x);
  if (lane < 16)
    out[lane] = __shfl_sync(0x0000ffffu, lane, 5);
  else
    out[lane] = __shfl_xor_sync(0xffff0000u, lane, 1);
}
__global__ void count_block(int* out) {
  int t = static_cast<int>(threadIdx.x + blockDim.x * threadIdx.y);
  int n = __syncthreads_count(t % 5 == 0), any = __syncthreads_or(t == 7), all = __syncthreads_and(t != 7);
  out[t] = n * 100 + any * 10 + all;
}
__global__ void exits_early(int* out) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  atomicAdd(out, 1);
}
__global__ void dynamic(float* out) {
  auto* values = static_cast<float*>(emulated_dynamic_shared());
  bool fresh = values[threadIdx.x] != values[threadIdx.x];
  values[threadIdx.x] = 1;
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = fresh ? values[blockDim.x - 1 - threadIdx.x] : -1;
}
__global__ void unset_shared(int* out) {
  __shared__ int values[8];
  out[threadIdx.x] = values[threadIdx.x];
  values[threadIdx.x] = 0;
}
// Not shared memory: nothing may fill it.
int launches_so_far() {
  static int count = 0;
  return ++count;
}
__global__ void write_at(int* out, int64_t i) { out[i] = 1; }
__global__ void diverged(int* out) {
  if (threadIdx.x % 2) out[threadIdx.x] = __shfl_sync(~0u, 1, 0);
}
__global__ void mixed(int* out) {
  out[threadIdx.x] = threadIdx.x % 2 ? __shfl_sync(~0u, 1, 0) : __any_sync(~0u, 1);
}
__global__ void stuck(int* out) {
  if (threadIdx.x == 40) __syncwarp();
  __syncthreads();
  *out = 1;
}

// ---- checks ----
void check_block() {
  constexpr int kBlocks = 5;
  std::vector<int> in(256 * kBlocks);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int>(i * i % 97);
  int *d_in = device_array<int>(in.size()), *d_out = device_array<int>(kBlocks);
  cudaStream_t s = new_stream();
  OK(cudaMemcpyAsync(d_in, in.data(), in.size() * 4, cudaMemcpyHostToDevice, s));
  OK(launch("sum_block", sum_block, kBlocks, 256, 0, s, d_in, d_out));
  OK(cudaStreamSynchronize(s));
  auto out = read(d_out, kBlocks);
  for (int b = 0; b < kBlocks; ++b) {
    int expect = 0;
    for (int i = 0; i < 256; ++i) expect += in[b * 256 + i];
    CHECK(out[b] == expect);
  }
  int* counts = device_array<int>(128);
  OK(launch("count_block", count_block, 1, dim3(32, 4), 0, s, counts));
  int* exited = device_array<int>(1);
  OK(cudaMemsetAsync(exited, 0, 4, s));
  OK(launch("exits_early", exits_early, 3, 64, 0, s, exited));
  OK(cudaStreamSynchronize(s));
  for (int c : read(counts, 128)) CHECK(c == 26 * 100 + 10 + 0);
  CHECK(read(exited, 1)[0] == 120);

  float* fresh = device_array<float>(96);
  OK(launch("dynamic", dynamic, 3, 32, 128, s, fresh));
  OK(cudaStreamSynchronize(s));
  for (float f : read(fresh, 96)) CHECK(f == 1);
  CHECK(launch("dynamic", dynamic, 1, 32, 64 << 10, s, fresh) == cudaErrorInvalidValue);
  OK(cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));
  OK(launch("dynamic", dynamic, 1, 32, 64 << 10, s, fresh));
  CHECK(launch("dynamic", dynamic, 1, 2048, 0, s, fresh) == cudaErrorInvalidConfiguration);
  CHECK(launch("dynamic", dynamic, dim3(1, 70000), 32, 0, s, fresh) == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration && cudaGetLastError() == cudaSuccess);
}

void check_warp() {
  int *d = device_array<int>(640), *halves = device_array<int>(32);
  OK(launch("warp_calls", warp_calls, 1, 64, 0, nullptr, d));
  OK(launch("half_warps", half_warps, 1, 32, 0, nullptr, halves));
  auto out = read(d, 640);
  for (int t = 0; t < 64; ++t) {
    int lane = t % 32;
    const int* mine = &out[t * 10];
    CHECK(mine[0] == 496);
    CHECK(mine[1] == (lane < 3 ? lane : lane - 3));
    CHECK(mine[2] == (lane % 8 < 5 ? lane + 3 : lane));
    CHECK(mine[3] == lane / 16 * 16 + 2);
    CHECK(mine[4] == 0x49249249);
    CHECK(mine[5] == 1 + 4);
    CHECK(static_cast<unsigned>(mine[6]) == 0xfu << lane / 4 * 4);
    CHECK(mine[7] == 3 * (lane ^ 1));
    CHECK(mine[8] == -26);
    CHECK(mine[9] == 31496);
  }
  auto h = read(halves, 32);
  for (int i = 0; i < 32; ++i) CHECK(h[i] == (i < 16 ? 5 : i ^ 1));
}

void check_late() {
  int* p = pinned_array<int>(2);
  p[0] = 1;
  cudaStream_t a = new_stream(), b = new_stream();
  OK(launch("set_value", set_value, 1, 1, 0, a, p, 7));
  CHECK(p[0] == 1);  // nobody has waited yet
  OK(cudaStreamSynchronize(b));
  CHECK(cudaStreamQuery(a) == cudaErrorNotReady);
  CHECK(cudaStreamQuery(a) == cudaSuccess && p[0] == 7);
  CHECK(cudaGetLastError() == cudaErrorNotReady);

  int value = 3, *d = device_array<int>(1);
  CHECK(read(d, 1)[0] == -1);  // fresh memory
  OK(cudaMemcpyAsync(d, &value, 4, cudaMemcpyHostToDevice, a));
  value = 4;  // pageable: was taken at the call
  OK(cudaMemcpyAsync(p, d, 4, cudaMemcpyDeviceToHost, a));
  CHECK(p[0] == 7);
  OK(cudaMemcpyAsync(&value, d, 4, cudaMemcpyDeviceToHost, a));
  CHECK(value == 3 && p[0] == 3);
  OK(cudaStreamSynchronize(a));
  CHECK(cudaMemcpyAsync(d, &value, 4, cudaMemcpyDeviceToHost, a) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(d, 0, 8, a) == cudaErrorInvalidValue);
}

void check_events() {
  cudaStream_t a = new_stream(), b = new_stream();
  cudaEvent_t e = new_event(), start = new_event(0), stop = new_event(0);
  int *p = device_array<int>(2), *host = pinned_array<int>(1);
  OK(cudaEventQuery(e));  // never recorded
  OK(cudaEventRecord(start, a));
  OK(launch("set_value", set_value, 1, 1, 0, a, p, 5));
  OK(cudaEventRecord(e, a));
  OK(launch("set_value", set_value, 1, 1, 0, a, p, 6));
  OK(cudaEventRecord(stop, a));
  OK(cudaStreamWaitEvent(b, e, 0));
  OK(launch("copy_value", copy_value, 1, 1, 0, b, host, p));
  float ms = -1;
  CHECK(cudaEventElapsedTime(&ms, start, stop) == cudaErrorNotReady);
  *host = 0;
  OK(cudaStreamSynchronize(b));
  CHECK(*host == 5 || *host == 6);
  if (!getenv("WARPTAPE_EMULATOR_ORDER")) CHECK(*host == 5);
  OK(cudaEventSynchronize(stop));
  OK(cudaEventElapsedTime(&ms, start, stop));
  CHECK(ms >= 0);
  CHECK(cudaEventElapsedTime(&ms, e, stop) == cudaErrorInvalidResourceHandle);
  int polls = 0;
  for (int i = 0; i < 3; ++i) OK(launch("add_value", add_value, 1, 1, 0, a, p, 1));
  OK(cudaEventRecord(e, a));
  while (cudaEventQuery(e) == cudaErrorNotReady) ++polls;
  CHECK(polls == 4 && read(p, 1)[0] == 9);

  OK(cudaSetDevice(1));
  CHECK(cudaEventRecord(e, nullptr) == cudaErrorInvalidResourceHandle);
  CHECK(launch("add_value", add_value, 1, 1, 0, a, p, 1) == cudaErrorInvalidResourceHandle);
  OK(cudaSetDevice(0));
}

void check_graph() {
  cudaStream_t a = new_stream(), b = new_stream(), other = new_stream();
  cudaEvent_t fork = new_event(), join = new_event();
  int *p = device_array<int>(1), *q = device_array<int>(1);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  OK(cudaMemset(p, 0, 4));
  OK(cudaMemset(q, 0, 4));
  OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
  OK(launch("add_value", add_value, 1, 1, 0, a, p, 2));
  OK(cudaEventRecord(fork, a));
  OK(cudaStreamWaitEvent(b, fork, 0));
  OK(launch("add_value", add_value, 1, 1, 0, b, q, 3));
  cudaStreamCaptureStatus status;
  OK(cudaStreamIsCapturing(b, &status));
  CHECK(status == cudaStreamCaptureStatusActive);
  OK(cudaEventRecord(join, b));
  OK(cudaStreamWaitEvent(a, join, 0));
  OK(cudaStreamEndCapture(a, &graph));
  OK(cudaDeviceSynchronize());
  CHECK(read(p, 1)[0] == 0);  // recorded, not run
  OK(cudaGraphInstantiate(&exec, graph, 0));
  OK(cudaGraphDestroy(graph));
  for (int i = 0; i < 3; ++i) OK(cudaGraphLaunch(exec, other));
  OK(cudaGraphExecDestroy(exec));
  OK(cudaDeviceSynchronize());
  CHECK(read(p, 1)[0] == 6 && read(q, 1)[0] == 9);

  // What a capture forbids.
  auto refused = [&](cudaStreamCaptureMode mode, auto&& call) {
    OK(cudaStreamBeginCapture(a, mode));
    cudaError_t e = call();
    CHECK(cudaStreamEndCapture(a, &graph) == (e ? cudaErrorStreamCaptureInvalidated : cudaSuccess));
    CHECK(!e == (graph != nullptr));
    return e;
  };
  auto global = cudaStreamCaptureModeGlobal, relaxed = cudaStreamCaptureModeRelaxed;
  void* memory = nullptr;
  int value = 0;
  CHECK(refused(global, [&] { return cudaStreamSynchronize(a); }) == cudaErrorStreamCaptureUnsupported);
  CHECK(refused(relaxed, [&] { return cudaDeviceSynchronize(); }) == cudaErrorStreamCaptureUnsupported);
  CHECK(refused(global, [&] { return cudaMalloc(&memory, 4); }) == cudaErrorStreamCaptureUnsupported);
  CHECK(refused(relaxed, [&] { return cudaMalloc(&memory, 4); }) == cudaSuccess);
  CHECK(refused(global, [&] {
          auto mode = relaxed;
          OK(cudaThreadExchangeStreamCaptureMode(&mode));
          cudaError_t e = cudaMalloc(&memory, 4);
          OK(cudaThreadExchangeStreamCaptureMode(&mode));
          return e;
        }) == cudaSuccess);
  CHECK(refused(global, [&] { return cudaMemcpyAsync(p, &value, 4, cudaMemcpyHostToDevice, a); }) ==
        cudaErrorStreamCaptureUnsupported);
  OK(cudaEventRecord(fork, other));
  CHECK(refused(global, [&] { return cudaStreamWaitEvent(a, fork, 0); }) == cudaErrorStreamCaptureIsolation);
  OK(cudaStreamBeginCapture(a, global));
  OK(cudaEventRecord(fork, a));
  OK(cudaStreamWaitEvent(b, fork, 0));
  OK(launch("add_value", add_value, 1, 1, 0, b, q, 3));
  CHECK(cudaStreamEndCapture(a, &graph) == cudaErrorStreamCaptureUnjoined);
  CHECK(cudaStreamBeginCapture(nullptr, global) == cudaErrorStreamCaptureUnsupported);
}

void check_memory() {
  size_t free = 0, total = 0;
  OK(cudaMemGetInfo(&free, &total));
  CHECK(free == total);
  void *p = nullptr, *rest = nullptr, *peer = nullptr;
  OK(cudaMalloc(&p, total / 2));
  CHECK(cudaMalloc(&rest, total / 2 + 1) == cudaErrorMemoryAllocation && !rest);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  OK(cudaSetDevice(1));
  OK(cudaMalloc(&peer, total));
  OK(cudaMemset(peer, 3, 64));
  OK(cudaDeviceSynchronize());
  OK(cudaMemcpyPeerAsync(p, 0, peer, 1, 64, nullptr));
  CHECK(cudaMemcpyPeerAsync(p, 1, peer, 1, 64, nullptr) == cudaErrorInvalidValue);
  OK(cudaDeviceSynchronize());
  OK(cudaSetDevice(0));
  CHECK(read(static_cast<char*>(p), 64)[63] == 3);
  cudaPointerAttributes a;
  OK(cudaPointerGetAttributes(&a, static_cast<char*>(peer) + total - 1));
  CHECK(a.type == cudaMemoryTypeDevice && a.device == 1);
  OK(cudaPointerGetAttributes(&a, &free));
  CHECK(a.type == cudaMemoryTypeUnregistered);
  OK(cudaPointerGetAttributes(&a, pinned_array<char>(10)));
  CHECK(a.type == cudaMemoryTypeHost);
  OK(cudaFree(p));
  OK(cudaFree(peer));
  CHECK(cudaFree(p) == cudaErrorInvalidValue);
  OK(cudaMemGetInfo(&free, &total));
  CHECK(free == total);
}

// PTX's cvt: rounding, what is out of range, and NaN by the types of source and result.
void check_conversions() {
  constexpr auto kLow = std::numeric_limits<long long>::min(), kHigh = std::numeric_limits<long long>::max();
  CHECK(__float2uint_rn(-1.0f) == 0 && __float2uint_rz(5e9f) == 4294967295u);
  CHECK(__float2int_rz(INFINITY) == 2147483647 && __float2int_rz(-INFINITY) == -2147483647 - 1);
  CHECK(__double2int_rd(-2147483648.5) == -2147483647 - 1 && __double2int_ru(2147483646.5) == 2147483647);
  CHECK(__float2ll_rz(9.3e18f) == kHigh && __float2ll_rz(-9.3e18f) == kLow && __float2ll_rz(9e18f) < kHigh);
  CHECK(__double2ull_rz(2e19) == ~0ull && __double2ull_rz(1.8e19) == 18000000000000000000ull);
  CHECK(__double2ull_rz(-3.0) == 0 && __double2ll_rz(9223372036854775808.0) == kHigh);
  // NaN: 0 unless the source has 64 bits or the result has, then the highest bit.
  CHECK(__float2int_rn(NAN) == 0 && __float2uint_rn(NAN) == 0);
  CHECK(__double2int_rn(NAN) == -2147483647 - 1 && __double2uint_rn(NAN) == 0x80000000u);
  CHECK(__float2ll_rn(NAN) == kLow && __float2ull_rn(NAN) == 1ull << 63);
  CHECK(__double2ll_rn(NAN) == kLow && __double2ull_rn(NAN) == 1ull << 63);
}

void check_math() {
  for (double x : {-0.9999999, -0.7, -0.2, 1e-12, 0.3, 0.6, 0.95, 0.999999999}) {
    double y = erfinv(x);
    CHECK(std::fabs(std::erf(y) - x) <= 2e-16 + 4e-16 * std::fabs(x));
  }
  CHECK(std::isinf(erfinv(1.0)) && std::isnan(erfinv(1.5)) && erfinv(0.0) == 0);
  CHECK(sinpi(0.5) == 1 && sinpi(7.0) == 0 && cospi(0.5) == 0 && cospi(1.0) == -1 && cospif(-2.0f) == 1);
  CHECK(std::fabs(sinpi(0.25) - std::sqrt(0.5)) < 1e-15 && std::fabs(cospi(-1.75) - std::sqrt(0.5)) < 1e-15);
  CHECK(rsqrtf(4.0f) == 0.5f && __float2int_rn(2.5f) == 2 && __float2int_rz(-2.9f) == -2);
  CHECK(__float2int_rn(3e9f) == 2147483647 && __double2ll_rd(-1e30) == std::numeric_limits<long long>::min());
  check_conversions();
  CHECK(min(NAN, 1.0f) == 1 && max(1.0f, NAN) == 1 && min(3, 2u) == 2);
  CHECK(__brev(1) == 0x80000000u && __clz(0) == 32 && __ffs(8) == 4 && __umulhi(0x80000000u, 6) == 3);
  CHECK(__byte_perm(0x33221100, 0x77665544, 0x7531) == 0x77553311);
  CHECK(__funnelshift_l(0x80000000u, 1, 1) == 3 && __funnelshift_r(0, 1, 1) == 0x80000000u);
  unsigned n = 5;
  CHECK(atomicCAS(&n, 5, 9) == 5 && atomicMax(&n, 3) == 9 && atomicExch(&n, 1) == 9 && n == 1);
}

// Needs the linker's script shared.ld.
void check_shared() {
  int* d = device_array<int>(8);
  for (int i = 0; i < 2; ++i) {
    OK(launch("unset_shared", unset_shared, 1, 8, 0, nullptr, d));
    for (int v : read(d, 8)) CHECK(v == -1);
    CHECK(launches_so_far() == i + 1);
  }
}

void check_fault() {
  int* p = device_array<int>(1);
  OK(launch("doomed", set_value, 1, 1, 0, nullptr, p, 1));
  CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress && cudaGetLastError() == cudaErrorIllegalAddress);
  CHECK(launch("set_value", set_value, 1, 1, 0, nullptr, p, 1) == cudaErrorIllegalAddress);
}

void check_driver() {
  int count = -1, device = 0;
  cudaError_t e = cudaGetDeviceCount(&count);
  printf("%s %d %s\n", cudaGetErrorName(e), count, cudaGetErrorName(cudaSetDevice(device)));
}

// Prints what a kernel without its barrier computes: it depends on the order of threads.
void check_race() {
  int* d = device_array<int>(64);
  OK(launch("rotate", rotate_without_barrier, 1, 64, 0, nullptr, d));
  for (int v : read(d, 64)) printf("%d ", v);
}

// Runs a kernel with a race, or aligned badly, or with `right` its like without.
bool check_races(const std::string& name, int right) {
  auto run = [&](auto kernel, dim3 grid, unsigned threads, auto* p) {
    OK(cudaMemset(p, 0, 4096));
    OK(launch(name.c_str(), kernel, grid, threads, 0, nullptr, p, right));
    OK(cudaDeviceSynchronize());
    return true;
  };
  auto ints = [] { return device_array<int>(1024); };
  if (name == "exchange_in_warp") return run(exchange_in_warp, 1, 32, ints());
  if (name == "write_after_read") return run(write_after_read, 1, 64, ints());
  if (name == "blocks_add") return run(blocks_add, 3, 32, ints());
  if (name == "last_block_sums") return run(last_block_sums, 4, 32, ints());
  if (name == "all_write") return run(all_write, 1, 64, ints());
  if (name == "neighbours_by_bytes")
    return run(neighbours_by_bytes, 1, 64, device_array<unsigned char>(4096));
  if (name != "misaligned") return false;
  OK(launch("misaligned", misaligned, 1, 32, 0, nullptr, device_array<char>(64), right ? 8 : 4));
  OK(cudaDeviceSynchronize());
  return true;
}

template <class... P>
void check_death(const char* name, void (*kernel)(P...), unsigned threads) {
  int* d = device_array<int>(1024);
  OK(launch(name, kernel, dim3(2, 3), threads, 0, nullptr, d));
  cudaDeviceSynchronize();
  fprintf(stderr, "%s was not noticed\n", name);
}

}  // namespace

int main(int argc, char** argv) {
  std::string name = argc > 1 ? argv[1] : "";
  if (name == "block") check_block();
  if (name == "warp") check_warp();
  if (name == "late") check_late();
  if (name == "events") check_events();
  if (name == "graph") check_graph();
  if (name == "memory") check_memory();
  if (name == "math") check_math();
  if (name == "shared") check_shared();
  if (name == "fault") check_fault();
  if (name == "driver") check_driver();
  if (name == "race") check_race();
  const bool right = name.ends_with(":right");
  if (check_races(right ? name.substr(0, name.size() - 6) : name, right)) return g_failures ? 1 : 0;
  if (name == "diverged") check_death("diverged", diverged, 64);
  if (name == "mixed") check_death("mixed", mixed, 32);
  if (name == "partial") check_death("partial", warp_calls, 40);
  if (name == "stuck") check_death("stuck", stuck, 64);
  if (name == "touch") device_array<int>(4)[0] = 1;
  if (name == "host heap" || name == "host stack") {
    int on_stack = 0;
    auto* on_heap = new int[4];  // leaked: the process dies
    OK(launch("follows", write_at, 1, 1, 0, nullptr, name == "host heap" ? on_heap + 1 : &on_stack,
              int64_t(0)));
    fprintf(stderr, "the host's memory was not noticed\n");
  }
  if (name == "outside") {
    OK(launch("outside", write_at, 1, 1, 0, nullptr, device_array<int>(512 / 4), int64_t(512 / 4)));
    cudaDeviceSynchronize();
  }
  return g_failures ? 1 : 0;
}
