// Linear layers on weights of 8 and 4 bits by tensor cores, for prompts and large batches. A block has 64
// rows and 64 outputs, a warp one panel of 16 of them. Codes of the rows' next group come to shared memory
// (cp.async) while this one is multiplied; those of the weight, which no two warps share, go straight to
// registers, for a panel's layout is that of a fragment: a word is 4 codes along k of one output.
//
// Sums of a group are exact integers, and groups are added in order, so a row is the same number as in
// quant_linear.cu and on the CPU, whatever rows are computed beside it.
#include "kernels/cuda/common/fragments.cuh"
#include "kernels/cuda/quant/quant_linear.cuh"

namespace warptape::kernels::cuda {
namespace {

inline constexpr int kWarps = 4, kThreads = kWarps * kWarp;
inline constexpr int kTile = 64, kFragments = kTile / 16;  // rows of a block, and by 16
inline constexpr int kStep = 32;                           // codes along k of one product
inline constexpr int kLine = 128, kBytes = 16;  // codes of a row in shared memory, at most; of a copy
inline constexpr int kHalves = int(kPanelOutputs) / 8;
// The bits of 1.5 * 2^23 as a float: added to an integer below 2^22, they are those of the sum as a float. So
// sums that begin here need no conversion, which is an instruction of a quarter of the rate. A group's are
// below: 128 products of 127 * 128 at most, and as much again by what products leave out.
inline constexpr int kFloatBits = 0x4b400000;
inline constexpr float kFloatStart = 12582912.0f;

// Where 16 codes of a row lie: rows whose number differs by less than 8 use different banks.
WT_DEVICE int place_of(int row, int piece) { return row * kLine + (piece ^ row % (kLine / kBytes)) * kBytes; }

struct alignas(kBytes) RowNumbers {
  float scale, shift;
  int start, unused;
};
// A group of a block's rows.
struct Stage {
  int8_t codes[kTile * kLine];
  RowNumbers rows[kTile];
};

// One lane's part of a panel and of the rows of a block: rows g + 8 i, outputs 2 t and the next of each half.
template <int kBits, class T, class S>
struct Lane {
  const QuantArgs<T, S>& a;
  const int64_t panel, first_row;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  // Of the next group.
  const uint32_t* weights = reinterpret_cast<const uint32_t*>(a.codes) + panel * a.groups * words() +
                            (kBits == 8 ? t : t / 2) * kPanelOutputs + g;
  int64_t scales = (a.output_scales ? panel : panel * a.groups) * kPanelOutputs + t * 2;
  int places[kLine / kStep];  // of fragments of codes, the same for every 16 rows
  float totals[kFragments][kHalves][4] = {};

  WT_DEVICE Lane(const QuantArgs<T, S>& args, int64_t panel, int64_t first_row)
      : a(args), panel(panel), first_row(first_row) {
#pragma unroll
    for (int i = 0; i < kLine / kStep; ++i) places[i] = place_of(lane % 16, 2 * i + lane / 16);
  }

  WT_DEVICE int64_t words() const { return int64_t{a.q} * kBits / 32 * kPanelOutputs; }

  // The codes of one output (g of a half) at 32 step + 16 i + 4 t, as a word of a fragment; those of 8 bits
  // less 128.
  WT_DEVICE uint32_t weight(int step, int half, int i) const {
    if constexpr (kBits == 8)
      return weights[(step * 8 + i * 4) * kPanelOutputs + half * 8] ^ 0x80808080u;
    else
      return weights[(step * 4 + i * 2) * kPanelOutputs + half * 8] >> t % 2 * 4 & 0x0f0f0f0fu;
  }

  WT_DEVICE void multiply(const Stage& s) {
    int sums[kFragments][kHalves][4];
#pragma unroll
    for (int i = 0; i < kFragments * 4; ++i) {
      const int start = kFloatBits + s.rows[i / 4 * 16 + g + i % 4 / 2 * 8].start;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) sums[i / 4][half][i % 4] = start;
    }
#pragma unroll
    for (int step = 0; step < kLine / kStep; ++step) {
      if (step * kStep >= a.q) break;
      uint32_t b[kHalves][2];
#pragma unroll
      for (int i = 0; i < kHalves * 2; ++i) b[i / 2][i % 2] = weight(step, i / 2, i % 2);
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        uint32_t x[4];
        load_matrices(x, s.codes + places[step] + m * 16 * kLine);
#pragma unroll
        for (int half = 0; half < kHalves; ++half) mma_16x8x32(sums[m][half], x, b[half][0], b[half][1]);
      }
    }
    add(sums, s.rows);
    weights += words();
    if (!a.output_scales) scales += kPanelOutputs;
  }

  // f(rows' numbers, half, i of its outputs, total) for all outputs, whose row is the i / 2'th of fragment m.
  template <class F>
  WT_DEVICE void for_totals(const RowNumbers* rows, F&& f) {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
          totals[m][half][i] = f(rows[m * 16 + g + i / 2 * 8], m, half, i, totals[m][half][i]);
  }

  WT_DEVICE void add(const int (&sums)[kFragments][kHalves][4], const RowNumbers* rows) {
    float scale[kHalves][2];
    auto load = [&](const S* from) {
#pragma unroll
      for (int i = 0; i < kHalves * 2; ++i) scale[i / 2][i % 2] = float(from[scales + i / 2 * 8 + i % 2]);
    };
    load(a.scales);
    for_totals(rows, [&](const RowNumbers& row, int m, int half, int i, float total) {
      const float sum = __int_as_float(sums[m][half][i]) - kFloatStart;
      return add_products(sum, scale[half][i % 2], row.scale, total);
    });
    if (!a.minima) return;
    load(a.minima);
    for_totals(rows, [&](const RowNumbers& row, int, int half, int i, float total) {
      return fma(scale[half][i % 2], row.shift, total);
    });
  }

  WT_DEVICE void store() const {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
#pragma unroll
      for (int i = 0; i < 4 * kHalves; ++i) {
        const int64_t row = first_row + m * 16 + g + i % 4 / 2 * 8;
        const int64_t n = panel * kPanelOutputs + i / 4 * 8 + t * 2 + i % 2;
        if (row >= a.rows || n >= a.outputs) continue;
        float total = totals[m][i / 4][i % 4];
        if (a.bias) total += widen<float>(a.bias[n]);
        a.out[row * a.outputs + n] = narrow<T>(total);
      }
  }
};

template <int kBits, class T, class S>
__global__ void __launch_bounds__(kThreads) mma_kernel(const __grid_constant__ QuantArgs<T, S> a) {
  __shared__ Stage stages[2];
  const int64_t tiles = ceil_div(a.rows, kTile), panels = ceil_div(a.outputs, kPanelOutputs);
  const int64_t first_row = blockIdx.x % tiles * kTile;
  const int64_t panel = blockIdx.x / tiles * kWarps + threadIdx.x / kWarp;
  TileCopies<int8_t, kTile, kLine, kThreads> codes(a.x.codes, a.groups * a.q, a.rows, a.q, first_row, 0,
                                                   place_of);
  int64_t numbers = (first_row + threadIdx.x) * a.groups;
  auto load = [&](Stage& to) {
    codes.fetch(to.codes);
    codes.from += a.q;
    if (threadIdx.x < kTile) {
      const int bytes = first_row + threadIdx.x < a.rows ? 4 : 0;
      RowNumbers& row = to.rows[threadIdx.x];
      copy_async<4>(&row.scale, a.x.scales + numbers, bytes);
      copy_async<4>(&row.shift, a.x.shifts + numbers, bytes);
      copy_async<4>(&row.start, a.x.start + numbers, bytes);
      ++numbers;
    }
    commit_copies();
  };
  // A warp beyond the last panel copies and waits as the others do, and stores nothing.
  Lane<kBits, T, S> mine(a, panel < panels ? panel : panels - 1, first_row);
  load(stages[0]);
  for (int64_t group = 0; group < a.groups; ++group) {
    if (group + 1 < a.groups)
      load(stages[(group + 1) % 2]);
    else
      commit_copies();
    wait_copies<1>();
    __syncthreads();
    mine.multiply(stages[group % 2]);
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
