// Linear layers on weights of 8 and 4 bits. The dot product of bytes is VNNI's where the processor has it,
// else one of 16-bit pairs, in which 255 * 127 * 2 does not overflow; both are exact.
#include "kernels/quant/quant_linear.h"

#include "kernels/cpu/quant/quant_linear_tiles.h"
#include "kernels/dispatch.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

// Both the integer sums of a group and the sums of all groups stay in registers, but for AVX2's tallest
// tiles. One row waits for memory: it takes panel by panel, as they lie in memory, which is one stream.
struct QuantTiles {
  template <int R>
  static constexpr int kPanels = kGemmVecBytes == 64 ? (R == 1   ? 1
                                                        : R <= 3 ? 4
                                                                 : 2)
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
      __builtin_prefetch(w + v * q.panel_bytes + kFetchAhead, 0, 3);
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
    if constexpr (R == 1 && kFetchAhead) __builtin_prefetch(w + kFetchAhead, 0, 3);
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
  const auto finish = [&](const PackedTile& all) {
    finish_packed(all, static_cast<const T*>(p.bias), p.outputs, static_cast<T*>(p.out));
  };
  const QuantWeight q(p);
#if defined(__AVX512F__)
  if (p.rows >= least_amx_rows(p.format) && cpu::has_amx_int8()) {
    const Activations a = quantize_rows<T>(ctx, p, kTileHeight, q.piece());
    return for_quant_tiles<typename Kind::Scale>(p, a, q, finish);
  }
#endif
  const Activations a = quantize_rows<T>(ctx, p, tile_height(p.rows), 4);
  PackedSize size{p.rows, gemm_ceil(p.outputs, kPanelOutputs), a.groups, 65536 / q.group_bytes,
                  q.panel_bytes};
  if (p.rows == 1) {  // 128 KB take 3 microseconds: beside that, what a task costs is little
    size.block = a.groups;
    size.task_panels = gemm_ceil(131072, kTaskPanels * q.panel_bytes) * kTaskPanels;
  }
  for_packed_tiles(
      size,
      [&](const PackedTile& tile) {
        dispatch_tile<QuantTiles>(tile, [&](auto r, auto panels, const PackedTile& t) __attribute__((
                                            always_inline)) { quant_micro<Kind, r, panels>(a, q, t); });
      },
      finish);
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
