// What the products of quant_linear.cpp share: activations as codes of 8 bits, and where a weight lies.
#pragma once

#include "kernels/cpu/quant/packed_linear_tiles.h"
#include "kernels/cpu/vector/vec.h"
#include "kernels/quant/quant_linear.h"

namespace warptape::kernels::WARPTAPE_ISA {

inline constexpr int kLanes = kGemmVecBytes / 4;
inline constexpr int kEach = kPanelOutputs / kLanes;  // vectors of a panel
inline constexpr int64_t kMostQ = 128;
using Words = GemmVec<int32_t>;  // four codes a lane
using Floats = GemmVec<float>;

// a * b + c, rounded once on every machine.
WT_INLINE Floats fused(Floats a, Floats b, Floats c) {
#if defined(WT_HAS_FMA)
  return fma(VFloat(a), VFloat(b), VFloat(c)).v;
#else
  for (int i = 0; i < kLanes; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#endif
}

WT_INLINE Floats load_scale(const float* p) { return gemm_load(p); }
WT_INLINE Floats load_scale(const Half* p) {
#if defined(__F16C__)
  return load_as_float(p).v;
#else
  return gemm_load_as<float>(p, kLanes);
#endif
}

// ---- activations ----------------------------------------------------------------------------------------

// Rows of x as codes of 8 bits. Tiles of R rows lie one after the other, in a tile R pieces for each step: a
// piece is the four codes of a word, or what a row of an AMX tile holds.
struct Activations {
  int64_t groups;
  int64_t words;   // of a row: G * Q / 4
  int32_t* codes;  // four a word
  float* scales;   // of each row and group
  float* shifts;   // scale * the sum of the codes: what a minimum of the weight is multiplied with
  int32_t* start;  // - the sum of the codes * the code of zero, where the weight has no minima
};

WT_INLINE void round_to_int8(const float* x, int64_t n, float inverse, int8_t* codes) {
  const Floats factor = gemm_splat(inverse);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Floats v = gemm_load(x + i) * factor;
    alignas(64) int32_t rounded[kLanes];
#if defined(__AVX512F__)
    gemm_store(rounded, (Words)_mm512_cvtps_epi32((__m512)v));
#elif defined(__AVX2__)
    gemm_store(rounded, (Words)_mm256_cvtps_epi32((__m256)v));
#else
    gemm_store(rounded, (Words)_mm_cvtps_epi32((__m128)v));
#endif
    for (int j = 0; j < kLanes; ++j) codes[i + j] = int8_t(rounded[j]);
  }
}

// Rounds one group of one row, of which `n` values are there: to the nearest of 255 steps, the greatest
// magnitude being 127. What is not finite makes the scale so.
template <class T>
void quantize_group(const T* x, int64_t n, int64_t q, int64_t zero, int64_t piece, int64_t rows, uint8_t* to,
                    float& scale, float& shift, int32_t& start) {
  alignas(64) float v[kMostQ];
  alignas(64) int8_t codes[kMostQ];
  for (int64_t i = 0; i < n; ++i) v[i] = float(x[i]);
  for (int64_t i = n; i < q; ++i) v[i] = 0;
  uint32_t most = 0;  // as bits, by which NaN is above all numbers
  for (int64_t i = 0; i < q; ++i) {
    uint32_t bits;
    std::memcpy(&bits, v + i, 4);
    most = (bits & 0x7fffffff) > most ? bits & 0x7fffffff : most;
  }
  float top;
  std::memcpy(&top, &most, 4);
  const bool nothing = top < 1e-30f;  // its inverse might not be finite
  scale = nothing ? 0.0f : top / 127;
  round_to_int8(v, q, nothing ? 0.0f : 127 / top, codes);
  int32_t sum = 0;
  for (int64_t i = 0; i < q; ++i) sum += codes[i];
  shift = scale * float(sum);
  start = int32_t(-zero * sum);
  if (piece == 4)
    for (int64_t i = 0; i < q; i += 4) std::memcpy(to + i * rows, codes + i, 4);
  else
    for (int64_t i = 0; i < q; i += piece) std::memcpy(to + i * rows, codes + i, size_t(piece));
}

// Tiles of `height` rows, the last of those that are left, in pieces of `piece` codes. What an AMX tile of 16
// rows reads beside the last rows is memory too.
template <class T>
Activations quantize_rows(const LaunchContext& ctx, const QuantLinearPlan& p, int64_t height, int64_t piece) {
  const int64_t q = p.format.activations(), groups = p.format.groups(p.inputs), words = groups * q / 4;
  const int64_t zero = p.minima ? 0 : int64_t{1} << (p.format.bits - 1);
  auto* memory = static_cast<int32_t*>(ctx.scratch(size_t(p.rows * (words + 3 * groups)) * 4 + 15 * 64));
  auto* floats = reinterpret_cast<float*>(memory + p.rows * words);
  const Activations a{
      groups, words, memory, floats, floats + p.rows * groups, memory + p.rows * (words + 2 * groups)};
  cpu::parallel_for(p.rows, 16384 / (p.inputs + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i / height * height, in_tile = i - first;
      const int64_t rows = p.rows - first < height ? p.rows - first : height;
      const T* x = static_cast<const T*>(p.x) + i * p.inputs;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = first * groups + g * rows + in_tile, left = p.inputs - g * q;
        auto* to = reinterpret_cast<uint8_t*>(a.codes + first * words) + g * q * rows + in_tile * piece;
        quantize_group(x + g * q, left < q ? left : q, q, zero, piece, rows, to, a.scales[at], a.shifts[at],
                       a.start[at]);
      }
    }
  });
  return a;
}

// How many bytes early one row asks for a weight, into the first cache. On an AMD Zen 5 one thread read 0.9
// of what the memory gives from 6 to 12 KB on, 0.75 without; into the second cache gained half of it.
#if defined(__AVX512F__)
inline constexpr int64_t kFetchAhead = 8192;
#else
inline constexpr int64_t kFetchAhead = 0;
#endif

struct QuantWeight {
  const uint8_t* codes;
  const void *scales, *minima;
  int64_t inputs;                           // of a group
  int64_t panel_bytes, group_bytes, steps;  // steps: of a group
  int64_t scale_panel, scale_step;          // elements from panel to panel, from group to group

  // Inputs that a row of an AMX tile of x holds.
  WT_INLINE int64_t piece() const { return inputs < 64 ? inputs : 64; }

  WT_INLINE explicit QuantWeight(const QuantLinearPlan& p)
      : codes(static_cast<const uint8_t*>(p.codes)),
        scales(p.scales),
        minima(p.minima),
        inputs(p.format.activations()),
        panel_bytes(p.format.panel_bytes(p.inputs)),
        group_bytes(p.format.group_bytes()),
        steps(group_bytes / 64),
        scale_panel(p.format.group ? kPanelOutputs * p.format.groups(p.inputs) : kPanelOutputs),
        scale_step(p.format.group ? kPanelOutputs : 0) {}
};

}  // namespace warptape::kernels::WARPTAPE_ISA
