// Linear layers on weights of 8 and 4 bits by tensor cores, for prompts and large batches. A block has 64
// rows and 64 outputs, a warp one panel of 16 of them. Codes of the rows' next group come to shared memory
// (cp.async) while this one is multiplied; those of the weight, which no two warps share, go straight to
// registers, for a panel's layout is that of a fragment: a word is 4 codes along k of one output.
//
// Sums of a group are exact integers, and groups are added in order, so a row is the same number as in
// quant_linear.cu and on the CPU, whatever rows are computed beside it.
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quant_linear.cuh"

namespace warptape::kernels::cuda {
namespace {

inline constexpr int kWarps = 4, kThreads = kWarps * kWarp;
inline constexpr int kTile = 64, kFragments = kTile / 16;  // rows of a block, and by 16
inline constexpr int kStep = 32;                           // codes along k of one product
inline constexpr int kLine = 128, kBytes = 16;  // codes of a row in shared memory, at most; of a copy
inline constexpr int kHalves = int(kPanelOutputs) / 8;

// Where 16 codes of a row lie: rows whose number differs by less than 8 use different banks.
WT_DEVICE int place_of(int row, int piece) { return row * kLine + (piece ^ row % (kLine / kBytes)) * kBytes; }

// One lane's part of a panel and of the rows of a block: rows g + 8 i, outputs 2 t and the next of each half.
template <int kBits, class T, class S>
struct Lane {
  const QuantArgs<T, S>& a;
  const int64_t panel, first_row;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  float totals[kFragments][kHalves][4] = {};

  WT_DEVICE int output(int half, int i) const { return half * 8 + t * 2 + i % 2; }
  WT_DEVICE int64_t row(int fragment, int i) const { return first_row + fragment * 16 + g + i / 2 * 8; }

  // The codes of one output (g of a half) at 4 k, as words of a fragment; those of 8 bits less 128.
  WT_DEVICE uint32_t weight(const uint32_t* group, int half, int k4) const {
    const int n = half * 8 + g;
    if constexpr (kBits == 8)
      return group[k4 * kPanelOutputs + n] ^ 0x80808080u;
    else
      return group[k4 / 2 * kPanelOutputs + n] >> k4 % 2 * 4 & 0x0f0f0f0fu;
  }

  WT_DEVICE void multiply(const int8_t* codes, int64_t group) {
    int sums[kFragments][kHalves][4] = {};
    const int64_t words = int64_t{a.q} * kBits / 32 * kPanelOutputs;
    const uint32_t* w = reinterpret_cast<const uint32_t*>(a.codes) + (panel * a.groups + group) * words;
    for (int k = 0; k < a.q; k += kStep) {
      uint32_t b[kHalves][2];
#pragma unroll
      for (int i = 0; i < kHalves * 2; ++i) b[i / 2][i % 2] = weight(w, i / 2, k / 4 + i % 2 * 4 + t);
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        uint32_t x[4];
        load_matrices(x, codes + place_of(m * 16 + lane % 16, k / kBytes + lane / 16));
#pragma unroll
        for (int half = 0; half < kHalves; ++half) mma_16x8x32(sums[m][half], x, b[half][0], b[half][1]);
      }
    }
    add(sums, group);
  }

  WT_DEVICE void add(const int (&sums)[kFragments][kHalves][4], int64_t group) {
    const int64_t place = (a.output_scales ? panel : panel * a.groups + group) * kPanelOutputs;
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (row(m, i) >= a.rows) continue;
        const int64_t at = row(m, i) * a.groups + group;
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const int64_t n = place + output(half, i);
          totals[m][half][i] = add_group(a, sums[m][half][i], at, float(a.scales[n]),
                                         a.minima ? float(a.minima[n]) : 0, totals[m][half][i]);
        }
      }
  }

  WT_DEVICE void store() const {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int i = 0; i < 4 * kHalves; ++i) {
        const int64_t n = panel * kPanelOutputs + output(i / 4, i % 4);
        if (row(m, i % 4) >= a.rows || n >= a.outputs) continue;
        float total = totals[m][i / 4][i % 4];
        if (a.bias) total += widen<float>(a.bias[n]);
        a.out[row(m, i % 4) * a.outputs + n] = narrow<T>(total);
      }
  }
};

template <int kBits, class T, class S>
__global__ void __launch_bounds__(kThreads) mma_kernel(const __grid_constant__ QuantArgs<T, S> a) {
  __shared__ __align__(kBytes) int8_t codes[2][kTile * kLine];
  const int64_t tiles = ceil_div(a.rows, kTile), panels = ceil_div(a.outputs, kPanelOutputs);
  const int64_t first_row = blockIdx.x % tiles * kTile;
  const int64_t panel = blockIdx.x / tiles * kWarps + threadIdx.x / kWarp;
  const int pieces = a.q / kBytes;
  auto load = [&](int64_t group) {
    for (int i = threadIdx.x; i < kTile * pieces; i += kThreads) {
      const int row = i / pieces, piece = i % pieces;
      const bool there = first_row + row < a.rows;
      const int64_t from = ((there ? first_row + row : 0) * a.groups + group) * a.q + piece * kBytes;
      copy_async<kBytes>(codes[group % 2] + place_of(row, piece), a.x.codes + from, there ? kBytes : 0);
    }
    commit_copies();
  };
  // A warp beyond the last panel copies and waits as the others do, and stores nothing.
  Lane<kBits, T, S> mine{a, panel < panels ? panel : panels - 1, first_row};
  load(0);
  for (int64_t group = 0; group < a.groups; ++group) {
    if (group + 1 < a.groups)
      load(group + 1);
    else
      commit_copies();
    wait_copies<1>();
    __syncthreads();
    mine.multiply(codes[group % 2], group);
    __syncthreads();
  }
  if (panel < panels) mine.store();
}

}  // namespace

template <int kBits, class T, class S>
void quant_linear_mma(const LaunchContext& ctx, const QuantArgs<T, S>& a) {
  const int64_t panels = ceil_div(a.outputs, kPanelOutputs);
  const int64_t blocks = ceil_div(a.rows, kTile) * ceil_div(panels, kWarps);
  launch(ctx, "quant_linear", mma_kernel<kBits, T, S>, dim3(unsigned(blocks)), kThreads, 0, a);
}

#define WT_QUANT_LINEAR_MMA(bits, S)                                                      \
  template void quant_linear_mma<bits>(const LaunchContext&, const QuantArgs<float, S>&); \
  template void quant_linear_mma<bits>(const LaunchContext&, const QuantArgs<BFloat16, S>&)
WT_QUANT_LINEAR_MMA(8, Half);
WT_QUANT_LINEAR_MMA(4, Half);
WT_QUANT_LINEAR_MMA(8, float);
WT_QUANT_LINEAR_MMA(4, float);

}  // namespace warptape::kernels::cuda
