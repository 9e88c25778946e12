// Products of signs: the bits that differ, counted. The input's signs are packed first, a thread a word; then
// a thread counts for one output, 16 of which lie side by side. sum of sign(x) sign(w) over K = K - 2
// popc(x ^ w). Plain: no shared memory, no tensor cores.
#include "kernels/quant/binary_linear.h"

#include "kernels/cuda/common/memory.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBits = 32;
constexpr int kSums = 16;  // of a mean: the CPU's, so that it is the same number
using Signed = Types<float, BFloat16>;

dim3 blocks_for(int64_t n) { return dim3(unsigned(ceil_div(n, kThreads))); }
WT_DEVICE int64_t own_index() { return int64_t(blockIdx.x) * kThreads + threadIdx.x; }

template <class T>
WT_DEVICE int32_t sign_word(const T* x, int64_t n) {
  uint32_t word = 0;
  for (int64_t i = 0; i < n && i < kBits; ++i) word |= uint32_t(float(x[i]) < 0) << i;
  return int32_t(word);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    signs_kernel(const T* x, int64_t inputs, int64_t steps, int64_t words, int32_t* out) {
  const int64_t i = own_index();
  if (i >= words) return;
  const int64_t row = i / steps, step = i % steps;
  out[i] = sign_word(x + row * inputs + step * kBits, inputs - step * kBits);
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    mean_kernel(const T* x, int64_t rows, int64_t inputs, float* means) {
  const int64_t row = own_index();
  if (row >= rows) return;
  float sums[kSums] = {}, sum = 0;
  for (int64_t k = 0; k < inputs; k += kSums)
#pragma unroll
    for (int i = 0; i < kSums; ++i)
      if (k + i < inputs) sums[i] += abs(float(x[row * inputs + k + i]));
  for (float s : sums) sum += s;
  means[row] = sum / float(inputs);
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    product_kernel(BinaryLinearPlan p, const int32_t* signs, const float* means, int64_t steps) {
  const int64_t i = own_index();
  if (i >= p.rows * p.outputs) return;
  const int64_t row = i / p.outputs, j = i % p.outputs;
  const int32_t* w = p.words + j / kPanelOutputs * steps * kPanelOutputs + j % kPanelOutputs;
  int64_t differ = 0;
  for (int64_t s = 0; s < steps; ++s)
    differ += __popc(uint32_t(signs[row * steps + s] ^ w[s * kPanelOutputs]));
  const float value = float(p.inputs - 2 * differ) * ((means ? means[row] : 1.0f) * p.scale[j]);
  static_cast<T*>(p.out)[i] = T(p.bias ? value + float(static_cast<const T*>(p.bias)[j]) : value);
}

void binary_linear(const LaunchContext& ctx, const BinaryLinearPlan& p) {
  const int64_t steps = ceil_div(p.inputs, kBits), words = p.rows * steps;
  if (p.rows == 0 || p.outputs == 0) return;
  auto* signs = static_cast<int32_t*>(ctx.scratch(size_t(words + 1) * sizeof(int32_t)));
  auto* means = p.scale_input ? static_cast<float*>(ctx.scratch(size_t(p.rows) * sizeof(float))) : nullptr;
  dispatch(Signed{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const T* x = static_cast<const T*>(p.x);
    if (words)
      launch(ctx, "binary_linear", signs_kernel<T>, blocks_for(words), dim3(kThreads), 0, x, p.inputs, steps,
             words, signs);
    if (means)
      launch(ctx, "binary_linear", mean_kernel<T>, blocks_for(p.rows), dim3(kThreads), 0, x, p.rows, p.inputs,
             means);
    launch(ctx, "binary_linear", product_kernel<T>, blocks_for(p.rows * p.outputs), dim3(kThreads), 0, p,
           signs, means, steps);
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads) pack_kernel(const T* weight, int64_t outputs, int64_t inputs,
                                                        int64_t steps, int64_t words, int32_t* out) {
  const int64_t i = own_index();
  if (i >= words) return;
  const int64_t panel = i / kPanelOutputs / steps, step = i / kPanelOutputs % steps,
                j = panel * kPanelOutputs + i % kPanelOutputs;
  out[i] = j < outputs ? sign_word(weight + j * inputs + step * kBits, inputs - step * kBits) : 0;
}

void pack_signs(const LaunchContext& ctx, DType dtype, int64_t outputs, int64_t inputs, const void* weight,
                int32_t* words) {
  const int64_t steps = ceil_div(inputs, kBits), n = ceil_div(outputs, kPanelOutputs) * steps * kPanelOutputs;
  if (n == 0) return;
  dispatch(Signed{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    launch(ctx, "pack_signs", pack_kernel<T>, blocks_for(n), dim3(kThreads), 0, static_cast<const T*>(weight),
           outputs, inputs, steps, n, words);
  });
}

}  // namespace

WT_KERNEL(binary_linear, binary_linear);
WT_KERNEL(pack_signs, pack_signs);

}  // namespace warptape::kernels::cuda
