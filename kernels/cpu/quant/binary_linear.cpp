// Products of signs: the bits that differ, counted. sum of sign(x) sign(w) over K = K - 2 popcount(x ^ w).
#include "kernels/quant/binary_linear.h"

#include "kernels/cpu/quant/packed_linear_tiles.h"
#include "kernels/dispatch.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int kLanes = kGemmVecBytes / 4;
constexpr int kEach = kPanelOutputs / kLanes;  // vectors of a panel
using Words = GemmVec<int32_t>;
using Bytes = GemmVec<uint8_t>;

// Counts by the instruction of AVX-512 VPOPCNTDQ, or of each byte by two look-ups of four bits, which up to
// 31 words are summed in bytes.
struct ByInstruction {
  static constexpr int kMost = 1 << 30;
  template <int R>
  static constexpr int kPanels = FloatTiles::kPanels<R>;
};
struct ByLookup {
  static constexpr int kMost = 31;
  template <int R>
  static constexpr int kPanels = kGemmVecBytes == 64 ? (R <= 3 ? 4 : 2) : 1;
};

WT_INLINE Bytes look_up(Bytes table, Bytes index) {
#if defined(__AVX512F__)
  return (Bytes)_mm512_shuffle_epi8((__m512i)table, (__m512i)index);
#elif defined(__AVX2__)
  return (Bytes)_mm256_shuffle_epi8((__m256i)table, (__m256i)index);
#else
  return (Bytes)_mm_shuffle_epi8((__m128i)table, (__m128i)index);
#endif
}

// The number of ones below 16, again in each 16 bytes.
WT_INLINE Bytes bit_table() {
  constexpr uint8_t kOnes[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
  Bytes table;
  for (int i = 0; i < kGemmVecBytes; ++i) table[i] = kOnes[i % 16];
  return table;
}

// total + the ones of x.
template <class By>
WT_INLINE Words add_ones(Words x, Bytes table, Words total) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<By, ByInstruction>) {
    // Not an intrinsic: the file is compiled without VPOPCNTDQ, and the caller has asked the processor.
    asm("vpopcntd %1, %0" : "=v"(x) : "v"(x));
    return total + x;
  }
#endif
  const Bytes low = (Bytes)(x & 0x0f0f0f0f), high = (Bytes)((x >> 4) & 0x0f0f0f0f);
  return (Words)((Bytes)total + look_up(table, low) + look_up(table, high));
}

// The sums of the four bytes of each lane.
WT_INLINE Words sum_bytes(Words x) {
  const GemmVec<uint32_t> u = (GemmVec<uint32_t>)x, pairs = (u & 0x00ff00ff) + ((u >> 8) & 0x00ff00ff);
  return (Words)((pairs & 0xffff) + (pairs >> 16));
}

// The bits that differ of R rows and P panels. x: R words a step; w: panels `panel` words apart.
template <class By, int R, int P>
[[gnu::noinline]] void count_micro(const int32_t* x, const int32_t* w, int64_t panel, const PackedTile& t) {
  constexpr int V = P * kEach;
  const Bytes table = bit_table();
  Words whole[R][V] = {};
  for (int64_t left = t.steps; left > 0;) {
    const int64_t some = left < By::kMost ? left : By::kMost;
    Words counts[R][V] = {};
    for (int64_t s = 0; s < some; ++s, x += R, w += kPanelOutputs) {
      Words wv[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) wv[v] = gemm_load(w + v / kEach * panel + v % kEach * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Words xv = gemm_splat(x[r]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) counts[r][v] = add_ones<By>(xv ^ wv[v], table, counts[r][v]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v)
        whole[r][v] += std::is_same_v<By, ByLookup> ? sum_bytes(counts[r][v]) : counts[r][v];
    left -= some;
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      float* to = t.sums + r * t.ld + v * kLanes;
      const auto sum = __builtin_convertvector(whole[r][v], GemmVec<float>);
      gemm_store(to, t.first ? sum : sum + gemm_load(to));
    }
  }
}

template <class T>
WT_INLINE uint32_t sign_word(const T* x, int64_t n) {
  uint32_t word = 0;
  for (int64_t i = 0; i < n; ++i) word |= uint32_t(float(x[i]) < 0) << i;
  return word;
}

#if defined(__AVX512F__)
WT_INLINE uint32_t sign_word_32(const float* x) {
  const __m512 zero = _mm512_setzero_ps();
  const uint32_t low = _mm512_cmp_ps_mask(_mm512_loadu_ps(x), zero, _CMP_LT_OQ);
  return low | uint32_t(_mm512_cmp_ps_mask(_mm512_loadu_ps(x + 16), zero, _CMP_LT_OQ)) << 16;
}
#else
WT_INLINE uint32_t sign_word_32(const float* x) {
  uint32_t word = 0;
  for (int i = 0; i < 32; i += 4)
    word |= uint32_t(_mm_movemask_ps(_mm_cmplt_ps(_mm_loadu_ps(x + i), _mm_setzero_ps()))) << i;
  return word;
}
#endif

// The signs of a row, `stride` words apart.
template <class T>
void pack_row(const T* x, int64_t inputs, int32_t* words, int64_t stride) {
  int64_t k = 0;
  if constexpr (std::is_same_v<T, float>)
    for (; k + 32 <= inputs; k += 32, words += stride) *words = int32_t(sign_word_32(x + k));
  for (; k < inputs; k += 32, words += stride)
    *words = int32_t(sign_word(x + k, inputs - k < 32 ? inputs - k : 32));
}

// The mean of |x|, in one order for any row.
template <class T>
float mean_abs(const T* x, int64_t n) {
  float sums[16] = {};
  int64_t k = 0;
  for (; k + 16 <= n; k += 16)
    for (int i = 0; i < 16; ++i) sums[i] += __builtin_fabsf(float(x[k + i]));
  for (int i = 0; k < n; ++k, ++i) sums[i] += __builtin_fabsf(float(x[k]));
  float sum = 0;
  for (float s : sums) sum += s;
  return sum / float(n);
}

struct Signs {
  const int32_t* words;  // in tiles: R words a step
  const float* means;    // [M]
};

template <class T>
Signs signs_of(const LaunchContext& ctx, const BinaryLinearPlan& p, int64_t steps) {
  auto* words = static_cast<int32_t*>(ctx.scratch(size_t(p.rows * (steps + 1)) * 4));
  auto* means = reinterpret_cast<float*>(words + p.rows * steps);
  const int64_t height = tile_height(p.rows);
  const T* x = static_cast<const T*>(p.x);
  cpu::parallel_for(p.rows, 32768 / (p.inputs + 64) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i / height * height;
      const int64_t rows = p.rows - first < height ? p.rows - first : height;
      pack_row(x + i * p.inputs, p.inputs, words + first * steps + (i - first), rows);
      means[i] = p.scale_input ? mean_abs(x + i * p.inputs, p.inputs) : 1.0f;
    }
  });
  return {words, means};
}

template <class By, class T>
void multiply_signs(const LaunchContext& ctx, const BinaryLinearPlan& p) {
  const int64_t steps = gemm_ceil(p.inputs, 32), panel = steps * kPanelOutputs;
  const Signs x = signs_of<T>(ctx, p, steps);
  const T* bias = static_cast<const T*>(p.bias);
  for_packed_tiles(
      {p.rows, gemm_ceil(p.outputs, kPanelOutputs), steps, 4096, panel * 4},
      [&](const PackedTile& tile) {
        dispatch_tile<By>(tile, [&](auto r, auto panels, const PackedTile& t) __attribute__((always_inline)) {
          count_micro<By, r, panels>(x.words + t.row * steps + t.step * t.rows,
                                     p.words + t.panel * panel + t.step * kPanelOutputs, panel, t);
        });
      },
      [&](const PackedTile& t) {
        const int64_t j = t.panel * kPanelOutputs, left = p.outputs - j < t.ld ? p.outputs - j : t.ld;
        for (int64_t i = 0; i < t.rows; ++i) {
          const float* counts = t.sums + i * t.ld;
          const float mean = x.means[t.row + i];
          T* to = static_cast<T*>(p.out) + (t.row + i) * p.outputs + j;
          for (int64_t c = 0; c < left; ++c) {
            const float value = (float(p.inputs) - 2 * counts[c]) * (mean * p.scale[j + c]);
            to[c] = T(bias ? value + float(bias[j + c]) : value);
          }
        }
      });
}

void binary_linear(const LaunchContext& ctx, const BinaryLinearPlan& p) {
  if (p.rows == 0 || p.outputs == 0) return;
  dispatch(Types<float, BFloat16>{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
#if defined(__AVX512F__)
    if (__builtin_cpu_supports("avx512vpopcntdq")) return multiply_signs<ByInstruction, T>(ctx, p);
#endif
    multiply_signs<ByLookup, T>(ctx, p);
  });
}

void pack_signs(const LaunchContext&, DType dtype, int64_t outputs, int64_t inputs, const void* weight,
                int32_t* words) {
  const int64_t steps = gemm_ceil(inputs, 32);
  dispatch(Types<float, BFloat16>{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    for (int64_t j = 0; j < gemm_ceil(outputs, kPanelOutputs) * kPanelOutputs; ++j) {
      int32_t* to = words + j / kPanelOutputs * steps * kPanelOutputs + j % kPanelOutputs;
      if (j < outputs)
        pack_row(static_cast<const T*>(weight) + j * inputs, inputs, to, kPanelOutputs);
      else
        for (int64_t s = 0; s < steps; ++s) to[s * kPanelOutputs] = 0;
    }
  });
}

}  // namespace

WT_KERNEL(pack_signs, pack_signs);
WT_KERNEL(binary_linear, binary_linear);

}  // namespace warptape::kernels::WARPTAPE_ISA
