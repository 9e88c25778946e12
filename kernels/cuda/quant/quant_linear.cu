// Linear layers on weights of 8 and 4 bits: the numbers of kernels/cpu/quant/quant_linear.cpp, to the bit.
// Sums over a group are exact, so threads share them in any way; groups are added one after the other.
//
// A block has one panel and a tile of rows. It takes kStage groups at a time: each warp sums kWarpGroups of
// them, then one thread for each output adds them up in order.
#include "kernels/cuda/quant/quant_linear.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

inline constexpr int kThreads = 256, kWarps = kThreads / kWarp;
inline constexpr int kQuads = int(kPanelOutputs) / 4;  // threads that share a step of the weight
inline constexpr int kWarpGroups = 4, kStage = kWarps * kWarpGroups;

// One warp rounds one group of one row: to the nearest of 255 steps, the greatest magnitude being 127. What
// is not finite makes the scale so.
template <class T>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const T* x, Activations to, int64_t rows, int64_t inputs, int64_t groups, int q,
                    int factor) {
  const int64_t at = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kWarp;  // of the row and the group
  if (at >= rows * groups) return;
  const int lane = threadIdx.x % kWarp;
  const int64_t row = at / groups, k = at % groups * q;
  const T* from = x + row * inputs;
  auto value = [&](int i) { return k + i < inputs ? widen<float>(from[k + i]) : 0.f; };
  int most = 0;  // as bits, by which NaN is above all numbers
  for (int i = lane; i < q; i += kWarp) most = max(most, __float_as_int(value(i)) & 0x7fffffff);
  const float top = __int_as_float(warp_reduce(most, MaximumOf{}));
  const bool nothing = top < 1e-30f;  // its inverse might not be finite
  const float scale = nothing ? 0.f : top / 127, inverse = nothing ? 0.f : 127 / top;
  int sum = 0;
  for (int i = lane; i < q; i += kWarp) {
    const float y = round(value(i) * inverse);
    const int code = y >= -127 && y <= 127 ? int(y) : 0;
    to.codes[at * q + i] = int8_t(code);
    sum += code;
  }
  sum = warp_reduce(sum, SumOf{});
  if (lane) return;
  to.scales[at] = scale;
  to.shifts[at] = scale * float(sum);
  to.start[at] = factor * sum;
}

// The sum of products of four codes of 8 bits with a sign.
WT_DEVICE int dot4(int a, int b, int sum) {
#if defined(__CUDA_ARCH__)
  return __dp4a(a, b, sum);
#else
  for (int i = 0; i < 32; i += 8) sum += int(int8_t(a >> i)) * int(int8_t(b >> i));
  return sum;
#endif
}

// One warp's sums of one group, for R rows and its threads' 4 outputs; a thread has every 8th step.
template <int kBits, class Args, int R>
WT_DEVICE void sum_group(const Args& a, int64_t panel, int64_t row, int64_t group, int (&sums)[R][4]) {
  const int lane = threadIdx.x % kWarp, steps = a.q * kBits / 32;
  const uint8_t* w = a.codes + ((panel * a.groups + group) * steps * kPanelOutputs + lane % kQuads * 4) * 4;
  for (int s = lane / kQuads; s < steps; s += kWarp / kQuads) {
    const auto codes = load_packed<4>(reinterpret_cast<const int*>(w + s * kPanelOutputs * 4));
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (row + r >= a.rows) break;
      const int8_t* x = a.x.codes + ((row + r) * a.groups + group) * a.q;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (kBits == 8) {  // codes less 128, for which `start` makes up
          sums[r][j] = dot4(codes[j] ^ int(0x80808080), reinterpret_cast<const int*>(x)[s], sums[r][j]);
        } else {
          sums[r][j] = dot4(codes[j] & 0x0f0f0f0f, reinterpret_cast<const int*>(x)[2 * s], sums[r][j]);
          sums[r][j] =
              dot4(codes[j] >> 4 & 0x0f0f0f0f, reinterpret_cast<const int*>(x)[2 * s + 1], sums[r][j]);
        }
      }
    }
  }
}

// Adds the sums of the groups from `first` on, which lie in shared memory, to one output of one row.
template <class Args, int R>
WT_DEVICE float add_groups(const Args& a, int64_t panel, int64_t row, int r, int lane, int64_t first,
                           const int (&sums)[kStage][R][kPanelOutputs], float total) {
  for (int i = 0; i < kStage && first + i < a.groups; ++i) {
    const int64_t group = first + i, at = row * a.groups + group;
    const int64_t place = (a.output_scales ? panel : panel * a.groups + group) * kPanelOutputs + lane;
    total = add_group(a, sums[i][r][lane], at, float(a.scales[place]), a.minima ? float(a.minima[place]) : 0,
                      total);
  }
  return total;
}

template <int kBits, class T, class S, int R>
__global__ void __launch_bounds__(kThreads) linear_kernel(const __grid_constant__ QuantArgs<T, S> a) {
  __shared__ int shared[kStage][R][kPanelOutputs];
  const int64_t tiles = ceil_div(a.rows, R), panel = blockIdx.x / tiles, row = blockIdx.x % tiles * R;
  const int warp = threadIdx.x / kWarp, quad = threadIdx.x % kQuads;
  // What this thread adds up and writes.
  const int r = threadIdx.x / int(kPanelOutputs), lane = threadIdx.x % int(kPanelOutputs);
  const int64_t output = panel * kPanelOutputs + lane;
  const bool owns = r < R && row + r < a.rows && output < a.outputs;
  float total = 0;
  for (int64_t first = 0; first < a.groups; first += kStage) {
#pragma unroll
    for (int g = 0; g < kWarpGroups; ++g) {
      const int place = g * kWarps + warp;
      if (first + place >= a.groups) break;
      int sums[R][4] = {};
      sum_group<kBits>(a, panel, row, first + place, sums);
#pragma unroll
      for (int i = 0; i < R * 4; ++i) {
        int sum = sums[i / 4][i % 4];
#pragma unroll
        for (int lanes = kQuads; lanes < kWarp; lanes *= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
        if (int(threadIdx.x) % kWarp < kQuads) shared[place][i / 4][quad * 4 + i % 4] = sum;
      }
    }
    __syncthreads();
    if (owns) total = add_groups(a, panel, row + r, r, lane, first, shared, total);
    __syncthreads();
  }
  if (!owns) return;
  if (a.bias) total += widen<float>(a.bias[output]);
  a.out[(row + r) * a.outputs + output] = narrow<T>(total);
}

template <class T>
Activations quantize_rows(const LaunchContext& ctx, const QuantLinearPlan& p) {
  const int64_t q = p.format.activations(), groups = p.format.groups(p.inputs), all = p.rows * groups;
  const Activations to{static_cast<int8_t*>(ctx.scratch(size_t(all * q) + 1)),
                       static_cast<float*>(ctx.scratch(size_t(all) * 4 + 1)),
                       static_cast<float*>(ctx.scratch(size_t(all) * 4 + 1)),
                       static_cast<int32_t*>(ctx.scratch(size_t(all) * 4 + 1))};
  const int zero = p.minima ? 0 : 1 << (p.format.bits - 1);
  launch(ctx, "quant_linear", quantize_kernel<T>, dim3(unsigned(ceil_div(all, kWarps))), kThreads, 0,
         static_cast<const T*>(p.x), to, p.rows, p.inputs, groups, int(q),
         (p.format.bits == 8 ? 128 : 0) - zero);
  return to;
}

template <int kBits, class T, class S>
void multiply(const LaunchContext& ctx, const QuantLinearPlan& p) {
  const QuantArgs<T, S> a{quantize_rows<T>(ctx, p),
                          static_cast<const uint8_t*>(p.codes),
                          static_cast<const S*>(p.scales),
                          static_cast<const S*>(p.minima),
                          static_cast<const T*>(p.bias),
                          static_cast<T*>(p.out),
                          p.rows,
                          p.outputs,
                          p.format.groups(p.inputs),
                          int(p.format.activations()),
                          p.format.group == 0};
  if (p.rows >= kLeastMmaRows) return quant_linear_mma<kBits>(ctx, a);
  auto run = [&](auto rows) {
    constexpr int R = decltype(rows)::value;
    const int64_t blocks = ceil_div(p.rows, R) * ceil_div(p.outputs, kPanelOutputs);
    launch(ctx, "quant_linear", linear_kernel<kBits, T, S, R>, dim3(unsigned(blocks)), kThreads, 0, a);
  };
  if (p.rows == 1)
    run(std::integral_constant<int, 1>{});
  else if (p.rows <= 4)
    run(std::integral_constant<int, 4>{});
  else
    run(std::integral_constant<int, 8>{});
}

void quant_linear(const LaunchContext& ctx, const QuantLinearPlan& p) {
  dispatch(Types<float, BFloat16>{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if (p.format.group)
      p.format.bits == 8 ? multiply<8, T, Half>(ctx, p) : multiply<4, T, Half>(ctx, p);
    else
      p.format.bits == 8 ? multiply<8, T, float>(ctx, p) : multiply<4, T, float>(ctx, p);
  });
}

}  // namespace

WT_KERNEL(quant_linear, quant_linear);

}  // namespace warptape::kernels::cuda
