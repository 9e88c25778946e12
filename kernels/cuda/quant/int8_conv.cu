// Convolution on bytes by dp4a, four products of bytes to an instruction: a warp's lanes are two positions by
// the 16 outputs of a panel, whose words lie side by side. Sums are exact, so results are the CPU's but for
// the rounding of the products with scales. Bytes of the input are read one by one where four channels are
// not a word of memory. Plain: no shared memory, no tensor cores.
#include "kernels/quant/int8_conv.h"

#include "kernels/cuda/common/memory.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPositions = kThreads / kPanelOutputs;  // of a block

dim3 blocks_for(int64_t n) { return dim3(unsigned(ceil_div(n, kThreads))); }

WT_DEVICE uint8_t to_byte(float v, float low) {
  const float above = v > low ? v : low;
  return uint8_t(rintf(above < 255.0f ? above : 255.0f));
}

// Bytes without a sign times bytes with one, summed.
WT_DEVICE int dot(uint32_t x, int32_t w, int sum) {
#if defined(__CUDA_ARCH__)
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(w));
#else
  for (int i = 0; i < 4; ++i) sum += int((x >> 8 * i) & 0xff) * int(int8_t(uint32_t(w) >> 8 * i));
#endif
  return sum;
}

// Four channels from c on of the pixel at `from`, null outside of the image; what is not there meets weights
// of zero.
WT_DEVICE uint32_t word_at(const uint8_t* from, int64_t c, int64_t channels, uint32_t outside) {
  if (!from) return outside;
  if (channels % 4 == 0 && reinterpret_cast<uintptr_t>(from) % 4 == 0)
    return *reinterpret_cast<const uint32_t*>(from + c);
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i)
    if (c + i < channels) word |= uint32_t(from[c + i]) << 8 * i;
  return word;
}

__global__ void __launch_bounds__(kThreads)
    conv_kernel(const __grid_constant__ Int8ConvPlan p, int64_t positions) {
  const int lane = threadIdx.x % kPanelOutputs;
  const int64_t position = int64_t(blockIdx.x) * kPositions + threadIdx.x / kPanelOutputs;
  const int64_t output = int64_t(blockIdx.y) * kPanelOutputs + lane, words = (p.in_channels + 3) / 4;
  if (position >= positions || output >= p.out_channels) return;
  const int64_t column = position % p.out[1], row = position / p.out[1] % p.out[0];
  const uint8_t* image = p.x + position / (p.out[0] * p.out[1]) * p.in[0] * p.in[1] * p.in_channels;
  const int32_t* w = reinterpret_cast<const int32_t*>(p.weight) +
                     int64_t(blockIdx.y) * p.kernel[0] * p.kernel[1] * words * kPanelOutputs + lane;
  const uint32_t outside = 0x01010101u * p.pad;
  int sum = 0;
  for (int64_t ky = 0; ky < p.kernel[0]; ++ky) {
    const int64_t y = row * p.stride[0] - p.padding[0] + ky * p.dilation[0];
    for (int64_t kx = 0; kx < p.kernel[1]; ++kx) {
      const int64_t x = column * p.stride[1] - p.padding[1] + kx * p.dilation[1];
      const bool inside = y >= 0 && y < p.in[0] && x >= 0 && x < p.in[1];
      const uint8_t* from = inside ? image + (y * p.in[1] + x) * p.in_channels : nullptr;
      for (int64_t i = 0; i < words; ++i, w += kPanelOutputs)
        sum = dot(word_at(from, 4 * i, p.in_channels, outside), *w, sum);
    }
  }
  const int64_t at = position * p.out_channels + output;
  float v = float(sum) * p.scale[output] + p.bias[output];
  if (p.residual) v += float(p.residual[at]) * p.residual_scale;
  if (p.floats)
    static_cast<float*>(p.out_data)[at] = v > p.low ? v : p.low;
  else
    static_cast<uint8_t*>(p.out_data)[at] = to_byte(v, p.low);
}

void int8_conv(const LaunchContext& ctx, const Int8ConvPlan& p) {
  const int64_t positions = p.batch * p.out[0] * p.out[1], panels = ceil_div(p.out_channels, kPanelOutputs);
  launch(ctx, "int8_conv", conv_kernel, dim3(unsigned(ceil_div(positions, kPositions)), unsigned(panels)),
         dim3(kThreads), 0, p, positions);
}

__global__ void __launch_bounds__(kThreads)
    max_pool_kernel(const __grid_constant__ BytePoolPlan p, int64_t numel) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= numel) return;
  const int64_t channel = i % p.channels, position = i / p.channels;
  const int64_t column = position % p.out[1], row = position / p.out[1] % p.out[0];
  const uint8_t* image = p.x + position / (p.out[0] * p.out[1]) * p.in[0] * p.in[1] * p.channels;
  uint8_t most = 0;
  for (int64_t ky = 0; ky < p.kernel[0]; ++ky) {
    const int64_t y = row * p.stride[0] - p.padding[0] + ky * p.dilation[0];
    if (y < 0 || y >= p.in[0]) continue;
    for (int64_t kx = 0; kx < p.kernel[1]; ++kx) {
      const int64_t x = column * p.stride[1] - p.padding[1] + kx * p.dilation[1];
      if (x < 0 || x >= p.in[1]) continue;
      const uint8_t value = image[(y * p.in[1] + x) * p.channels + channel];
      most = value > most ? value : most;
    }
  }
  p.out_data[i] = most;
}

void max_pool_bytes(const LaunchContext& ctx, const BytePoolPlan& p) {
  const int64_t numel = p.batch * p.out[0] * p.out[1] * p.channels;
  launch(ctx, "max_pool_bytes", max_pool_kernel, blocks_for(numel), dim3(kThreads), 0, p, numel);
}

__global__ void __launch_bounds__(kThreads)
    quantize_kernel(int64_t n, const float* x, float inverse, float zero, uint8_t* out) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) out[i] = to_byte(x[i] * inverse + zero, 0);
}

void quantize_bytes(const LaunchContext& ctx, int64_t n, const float* x, float inverse, float zero,
                    uint8_t* out) {
  launch(ctx, "quantize_bytes", quantize_kernel, blocks_for(n), dim3(kThreads), 0, n, x, inverse, zero, out);
}

}  // namespace

WT_KERNEL(int8_conv, int8_conv);
WT_KERNEL(max_pool_bytes, max_pool_bytes);
WT_KERNEL(quantize_bytes, quantize_bytes);

}  // namespace warptape::kernels::cuda
