// Linear layers on packed weights. A block has one panel and a tile of rows; each thread keeps 4 outputs of
// every row, for which it loads 16 bytes of the weight a step.
//
// An output element is the sum of kChains chains of fused multiply-adds, chain c over the steps c, c +
// kChains, ..., joined in a fixed order. Neither depends on the number of rows: tiles differ only in how many
// rows share a load.
#include "kernels/quant/packed_linear.h"

#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/memory.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

inline constexpr int kThreads = 256, kWarps = kThreads / kWarp;
inline constexpr int kQuads = int(kPanelOutputs) / 4;  // threads that share a step
inline constexpr int kChains = kThreads / kQuads;

// ---- packing: one thread an element of the packed weight ----

template <class T, int kPair>
__global__ void pack_kernel(const T* weight, T* packed, int64_t outputs, int64_t inputs, int64_t steps,
                            int64_t count) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const int64_t within = i % (kPanelOutputs * kPair), step = i / (kPanelOutputs * kPair);
    const int64_t k = step % steps * kPair + within % kPair;
    const int64_t output = step / steps * kPanelOutputs + within / kPair;
    packed[i] = output < outputs && k < inputs ? weight[output * inputs + k] : narrow<T>(0.f);
  }
}

template <class T, int kPair>
void pack(const LaunchContext& ctx, int64_t outputs, int64_t inputs, const void* weight, void* packed) {
  const int64_t steps = ceil_div(inputs, kPair);
  const int64_t count = ceil_div(outputs, kPanelOutputs) * steps * kPanelOutputs * kPair;
  const int64_t blocks = ceil_div(count, kThreads), most = 32 * multi_processor_count(ctx.device_index);
  launch(ctx, "pack_linear_weight", pack_kernel<T, kPair>, dim3(unsigned(blocks < most ? blocks : most)),
         kThreads, 0, static_cast<const T*>(weight), static_cast<T*>(packed), outputs, inputs, steps, count);
}

void pack_linear_weight(const LaunchContext& ctx, DType dtype, int64_t outputs, int64_t inputs,
                        const void* weight, void* packed) {
  if (dtype == DType::Float32) return pack<float, 1>(ctx, outputs, inputs, weight, packed);
  if (dtype != DType::BFloat16) unhandled_dtype("pack_linear_weight", dtype);
  pack<BFloat16, 2>(ctx, outputs, inputs, weight, packed);
}

// ---- the product ----

template <class T>
struct LinearArgs {
  const T *x, *packed, *bias;  // [M, K], [P, steps, 16, kPair], [N] or null
  T* out;                      // [M, N]
  int64_t rows, inputs, outputs, steps;
};

// Adds a step to the sums of 4 outputs. `left`: values of x from there on.
WT_DEVICE void add_step(const float* x, int64_t, const Packed<float, 4>& w, float (&sums)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) sums[j] = fma(*x, w[j], sums[j]);
}
WT_DEVICE void add_step(const BFloat16* x, int64_t left, const Packed<BFloat16, 8>& w, float (&sums)[4]) {
  const float first = float(x[0]), second = left > 1 ? float(x[1]) : 0.f;
#pragma unroll
  for (int j = 0; j < 4; ++j)
    sums[j] = fma(second, float(w[2 * j + 1]), fma(first, float(w[2 * j]), sums[j]));
}

template <class T, int kPair, int R>
__global__ void __launch_bounds__(kThreads) linear_kernel(const __grid_constant__ LinearArgs<T> a) {
  __shared__ float shared[kWarps][R][kPanelOutputs];
  const int warp = threadIdx.x / kWarp, quad = threadIdx.x % kQuads;
  // Blocks of one panel follow each other, so that its weight is read from memory once.
  const int64_t tiles = ceil_div(a.rows, R), panel = blockIdx.x / tiles;
  const int64_t first = blockIdx.x % tiles * R, left = a.rows - first;
  const T* w = a.packed + (panel * a.steps * kPanelOutputs + quad * 4) * kPair;
  float sums[R][4] = {};
  for (int64_t s = threadIdx.x / kQuads; s < a.steps; s += kChains) {
    const auto four = load_packed<4 * kPair>(w + s * kPanelOutputs * kPair);
    const int64_t k = s * kPair;
#pragma unroll
    for (int r = 0; r < R; ++r)
      if (r < left) add_step(a.x + (first + r) * a.inputs + k, a.inputs - k, four, sums[r]);
  }
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float sum = sums[r][j];
#pragma unroll
      for (int lanes = kQuads; lanes < kWarp; lanes *= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
      if (int(threadIdx.x) % kWarp < kQuads) shared[warp][r][quad * 4 + j] = sum;
    }
  __syncthreads();
  for (int i = threadIdx.x; i < R * int(kPanelOutputs); i += kThreads) {
    const int r = i / int(kPanelOutputs), lane = i % int(kPanelOutputs);
    const int64_t output = panel * kPanelOutputs + lane;
    if (r >= left || output >= a.outputs) continue;
    float sum = shared[0][r][lane];
#pragma unroll
    for (int other = 1; other < kWarps; ++other) sum += shared[other][r][lane];
    if (a.bias) sum += widen<float>(a.bias[output]);
    a.out[(first + r) * a.outputs + output] = narrow<T>(sum);
  }
}

template <class T, int kPair>
void multiply(const LaunchContext& ctx, const PackedLinearPlan& p) {
  const LinearArgs<T> a{static_cast<const T*>(p.x),
                        static_cast<const T*>(p.packed),
                        static_cast<const T*>(p.bias),
                        static_cast<T*>(p.out),
                        p.rows,
                        p.inputs,
                        p.outputs,
                        ceil_div(p.inputs, kPair)};
  auto run = [&](auto rows) {
    constexpr int R = decltype(rows)::value;
    const int64_t blocks = ceil_div(p.rows, R) * ceil_div(p.outputs, kPanelOutputs);
    launch(ctx, "packed_linear", linear_kernel<T, kPair, R>, dim3(unsigned(blocks)), kThreads, 0, a);
  };
  if (p.rows == 1)
    run(std::integral_constant<int, 1>{});
  else if (p.rows <= 4)
    run(std::integral_constant<int, 4>{});
  else
    run(std::integral_constant<int, 16>{});
}

void packed_linear(const LaunchContext& ctx, const PackedLinearPlan& p) {
  if (p.dtype == DType::Float32) return multiply<float, 1>(ctx, p);
  if (p.dtype != DType::BFloat16) unhandled_dtype("packed_linear", p.dtype);
  multiply<BFloat16, 2>(ctx, p);
}

}  // namespace

WT_KERNEL(pack_linear_weight, pack_linear_weight);
WT_KERNEL(packed_linear, packed_linear);

}  // namespace warptape::kernels::cuda
