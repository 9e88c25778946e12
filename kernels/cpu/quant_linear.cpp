// Linear layers on weights of 8 and 4 bits. The dot product of bytes is VNNI's where the processor has it,
// else one of 16-bit pairs, in which 255 * 127 * 2 does not overflow; both are exact.
#include "kernels/quant_linear.h"

#include "kernels/cpu/packed_linear_tiles.h"
#include "kernels/cpu/vec.h"
#include "kernels/dispatch.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int kLanes = kGemmVecBytes / 4;
constexpr int kEach = kPanelOutputs / kLanes;  // vectors of a panel
constexpr int64_t kMostQ = 128;
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

// Rows of x as codes of 8 bits. Tiles of R rows lie one after the other, in a tile R values for each step.
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
void quantize_group(const T* x, int64_t n, int64_t q, int64_t zero, int64_t stride, int32_t* words,
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
  for (int64_t i = 0; i < q / 4; ++i) std::memcpy(words + i * stride, codes + 4 * i, 4);
}

template <class T>
Activations quantize_rows(const LaunchContext& ctx, const QuantLinearPlan& p) {
  const int64_t q = p.format.activations(), groups = p.format.groups(p.inputs), words = groups * q / 4;
  const int64_t zero = p.minima ? 0 : int64_t{1} << (p.format.bits - 1), height = tile_height(p.rows);
  auto* memory = static_cast<int32_t*>(ctx.scratch(size_t(p.rows * (words + 3 * groups)) * 4));
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
        quantize_group(x + g * q, left < q ? left : q, q, zero, rows,
                       a.codes + first * words + g * q / 4 * rows + in_tile, a.scales[at], a.shifts[at],
                       a.start[at]);
      }
    }
  });
  return a;
}

// Both the integer sums of a group and the sums of all groups stay in registers, but for AVX2's tallest
// tiles.
struct QuantTiles {
  template <int R>
  static constexpr int kPanels = kGemmVecBytes == 64 ? (R <= 3 ? 4 : 2)
                                 : R == 1            ? 2
                                                     : 1;
};

// ---- the product ----------------------------------------------------------------------------------------

template <int Bits, bool Vnni, class S>
struct QuantKind {
  static constexpr int kBits = Bits;
  static constexpr bool kVnni = Vnni;
  using Scale = S;
};

// sums += x w for four k: bytes of w without a sign, of x with one.
template <bool Vnni, int R, int V>
WT_INLINE void quant_step(const int32_t* x, const Words (&w)[V], Words (&sums)[R][V]) {
#if defined(__AVX512F__)
  if constexpr (Vnni) {  // not an intrinsic: the file is compiled without VNNI, and the caller has asked
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Words xv = gemm_splat(x[r]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) asm("vpdpbusd %2, %1, %0" : "+v"(sums[r][v]) : "v"(w[v]), "v"(xv));
    }
    return;
  }
#endif
  using Unsigned = GemmVec<uint16_t>;
  using Signed = GemmVec<int16_t>;
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd) {  // bytes 0 and 2, then 1 and 3
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Signed both = (Signed)gemm_splat(x[r]), xv = (odd ? both : both << 8) >> 8;
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        const Unsigned wv = odd ? (Unsigned)w[v] >> 8 : (Unsigned)w[v] & 0xff;
        sums[r][v] += gemm_pairs(xv, (Signed)wv);
      }
    }
  }
}

struct QuantWeight {
  const uint8_t* codes;
  const void *scales, *minima;
  int64_t panel_bytes, group_bytes, steps;  // steps: of a group
  int64_t scale_panel, scale_step;          // elements from panel to panel, from group to group
};

#if defined(__AVX512F__)
// The sums of one group of one row of 4 bits. The upper codes stay where they are, 16 times their value:
// their sums, apart, are shifted once a group. At most 128 products of 16 * 15 * 127 are added there.
template <class Kind, int P>
WT_INLINE void row_sums(const int32_t* x, const uint8_t* w, const QuantWeight& q, Words (&sums)[1][P]) {
  Words upper[1][P] = {};
  for (int64_t s = 0; s < q.steps; ++s, w += 64, x += 2) {
    Words low[P], high[P];
#pragma GCC unroll 8
    for (int v = 0; v < P; ++v) {
      const Words both = gemm_load(reinterpret_cast<const int32_t*>(w + v * q.panel_bytes));
      low[v] = both & 0x0f0f0f0f;
      high[v] = both & int32_t(0xf0f0f0f0);
    }
    quant_step<Kind::kVnni>(x, low, sums);
    quant_step<Kind::kVnni>(x + 1, high, upper);
  }
#pragma GCC unroll 8
  for (int v = 0; v < P; ++v) sums[0][v] += upper[0][v] >> 4;
}
#endif

// The sums of one group, exact.
template <class Kind, int R, int P>
WT_INLINE void group_sums(const int32_t* x, const uint8_t* w, const QuantWeight& q,
                          Words (&sums)[R][P * kEach]) {
  constexpr int V = P * kEach;
#if defined(__AVX512F__)
  if constexpr (R == 1 && Kind::kBits == 4 && Kind::kVnni) return row_sums<Kind, P>(x, w, q, sums);
#endif
  for (int64_t s = 0; s < q.steps; ++s, w += 64, x += R * (8 / Kind::kBits)) {
    Words wv[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      wv[v] = gemm_load(
          reinterpret_cast<const int32_t*>(w + v / kEach * q.panel_bytes + v % kEach * kGemmVecBytes));
    if constexpr (Kind::kBits == 8) {
      quant_step<Kind::kVnni>(x, wv, sums);
    } else {
      Words half[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) half[v] = wv[v] & 0x0f0f0f0f;
      quant_step<Kind::kVnni>(x, half, sums);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) half[v] = (Words)((GemmVec<uint32_t>)wv[v] >> 4) & 0x0f0f0f0f;
      quant_step<Kind::kVnni>(x + R, half, sums);
    }
  }
}

// Adds the scaled sums of one group to `total`: `at` is the group's place among the scales of x, `place`
// among those of the weight.
template <class Kind, int R, int P>
WT_INLINE void add_group(const Words (&sums)[R][P * kEach], const Activations& a, const QuantWeight& q,
                         int64_t at, int64_t place, Floats (&total)[R][P * kEach]) {
  using Scale = typename Kind::Scale;
#pragma GCC unroll 8
  for (int v = 0; v < P * kEach; ++v) {
    const int64_t here = place + v / kEach * q.scale_panel + v % kEach * kLanes;
    const Floats scale = load_scale(static_cast<const Scale*>(q.scales) + here);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      total[r][v] = fused(__builtin_convertvector(sums[r][v], Floats), scale * gemm_splat(a.scales[at + r]),
                          total[r][v]);
    if (!q.minima) continue;
    const Floats minimum = load_scale(static_cast<const Scale*>(q.minima) + here);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) total[r][v] = fused(minimum, gemm_splat(a.shifts[at + r]), total[r][v]);
  }
}

// R rows by P panels over the tile's groups.
template <class Kind, int R, int P>
[[gnu::noinline]] void quant_micro(const Activations& a, const QuantWeight& q, const PackedTile& t) {
  constexpr int V = P * kEach;
  const int32_t* x = a.codes + t.row * a.words + t.step * R * (q.steps * 8 / Kind::kBits);
  const uint8_t* w = q.codes + t.panel * q.panel_bytes + t.step * q.group_bytes;
  int64_t at = t.row * a.groups + t.step * R;
  int64_t place = t.panel * q.scale_panel + t.step * q.scale_step;
  Floats total[R][V] = {};
  if (!t.first) {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) total[r][v] = gemm_load(t.sums + r * t.ld + v * kLanes);
  }
  for (int64_t g = 0; g < t.steps; ++g, at += R, place += q.scale_step, w += q.group_bytes) {
    Words sums[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] = gemm_splat(a.start[at + r]);
    group_sums<Kind, R, P>(x, w, q, sums);
    x += R * q.steps * (8 / Kind::kBits);
    add_group<Kind, R, P>(sums, a, q, at, place, total);
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) gemm_store(t.sums + r * t.ld + v * kLanes, total[r][v]);
}

template <class Kind, class T>
void multiply_quant(const LaunchContext& ctx, const QuantLinearPlan& p) {
  const Activations a = quantize_rows<T>(ctx, p);
  const int64_t panel_bytes = p.format.panel_bytes(p.inputs), each = p.format.group ? kPanelOutputs : 0;
  const QuantWeight q{static_cast<const uint8_t*>(p.codes),
                      p.scales,
                      p.minima,
                      panel_bytes,
                      p.format.group_bytes(),
                      p.format.group_bytes() / 64,
                      each ? each * a.groups : kPanelOutputs,
                      each};
  for_packed_tiles(
      {p.rows, gemm_ceil(p.outputs, kPanelOutputs), a.groups, 65536 / q.group_bytes, panel_bytes},
      [&](const PackedTile& tile) {
        dispatch_tile<QuantTiles>(tile, [&](auto r, auto panels, const PackedTile& t) __attribute__((
                                            always_inline)) { quant_micro<Kind, r, panels>(a, q, t); });
      },
      [&](const PackedTile& all) {
        finish_packed(all, static_cast<const T*>(p.bias), p.outputs, static_cast<T*>(p.out));
      });
}

template <int Bits, bool Vnni, class T>
void quant_linear_of(const LaunchContext& ctx, const QuantLinearPlan& p) {
  if (p.format.group)
    multiply_quant<QuantKind<Bits, Vnni, Half>, T>(ctx, p);
  else
    multiply_quant<QuantKind<Bits, Vnni, float>, T>(ctx, p);
}

template <bool Vnni>
void quant_linear_by(const LaunchContext& ctx, const QuantLinearPlan& p) {
  dispatch(Types<float, BFloat16>{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if (p.format.bits == 8)
      quant_linear_of<8, Vnni, T>(ctx, p);
    else
      quant_linear_of<4, Vnni, T>(ctx, p);
  });
}

void quant_linear(const LaunchContext& ctx, const QuantLinearPlan& p) {
  if (p.rows == 0 || p.outputs == 0) return;
#if defined(__AVX512F__)
  if (__builtin_cpu_supports("avx512vnni")) return quant_linear_by<true>(ctx, p);
#endif
  quant_linear_by<false>(ctx, p);
}

}  // namespace

WT_KERNEL(quant_linear, quant_linear);

}  // namespace warptape::kernels::WARPTAPE_ISA
