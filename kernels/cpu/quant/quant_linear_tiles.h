// The product of quant_linear.cpp on AMX tiles, where there is more than a row or two: the same integer sums
// of a group, hence the same bits. The bytes of a panel lie as a tile reads them; codes of 4 bits become
// bytes, and codes about zero get their sign, once for all rows of a task, in a piece of memory that stays in
// the first cache.
#pragma once

#include "kernels/cpu/quant/quant_linear_rows.h"
#include "kernels/cpu/vector/amx.h"

#if defined(__AVX512F__)
namespace warptape::kernels::WARPTAPE_ISA {

// Fewer rows are faster by VNNI.
WT_INLINE int64_t least_amx_rows(const QuantFormat& format) { return format.activations() > 32 ? 24 : 33; }
inline constexpr int64_t kAmxInputs = 512;  // of a block, of which four panels are 32 KB of bytes

// Tiles of sums: 0 to 3. Operands: 4 and 5 of x, 6 and 7 of the weight, two where a group is 128 inputs.
WT_INLINE TileShapes quant_shapes(int64_t rows, int64_t piece) {
  const int height = rows < kTileHeight ? int(rows) : kTileHeight;
  TileShapes shapes;
  for (int t = 0; t < 4; ++t) shapes.set(t, height, kTileRowBytes);
  for (int t = 4; t < 6; ++t) shapes.set(t, height, int(piece));
  for (int t = 6; t < 8; ++t) shapes.set(t, int(piece / 4), kTileRowBytes);
  return shapes;
}

// One tile of sums. The places are those of the first group.
struct QuantPart {
  const uint8_t *x, *w;
  bool load_x, load_w;  // whether the operands are others than those of the part before
  int64_t rows;
  const float *scales, *shifts;  // of x
  int64_t place;                 // among the weight's scales
  float* sums;
};

template <int C, bool Minima>
WT_INLINE void multiply_part(const QuantWeight& q, const QuantPart& p, int64_t g) {
  const int64_t piece = q.piece();
  const bool two = q.inputs > piece;
  if (p.load_x) {
    const uint8_t* x = p.x + g * p.rows * q.inputs;
    tile_load<4>(x, piece);
    if (two) tile_load<5>(x + p.rows * piece, piece);
  }
  if (p.load_w) {
    const uint8_t* w = p.w + g * kPanelOutputs * q.inputs;
    tile_load<6>(w, kTileRowBytes);
    if (two) tile_load<7>(w + piece * kPanelOutputs, kTileRowBytes);
  }
  tile_zero<C>();
  if constexpr (Minima) {
    tile_product_su<C, 4, 6>();
    if (two) tile_product_su<C, 5, 7>();
  } else {
    tile_product_ss<C, 4, 6>();
    if (two) tile_product_ss<C, 5, 7>();
  }
}

// Adds the scaled sums of one group to those of the groups before it.
template <class Scale, bool Minima>
WT_INLINE void scale_part(const QuantWeight& q, const QuantPart& p, int64_t g, int64_t ld,
                          const int32_t* sums) {
  const int64_t place = p.place + g * q.scale_step, rows = p.rows;
  const float *scales = p.scales + g * rows, *shifts = p.shifts + g * rows;
  float* to = p.sums;
  const Floats scale = load_scale(static_cast<const Scale*>(q.scales) + place);
  Floats minimum{};
  if constexpr (Minima) minimum = load_scale(static_cast<const Scale*>(q.minima) + place);
  auto add = [&](int64_t r) __attribute__((always_inline)) {
    const Floats v = __builtin_convertvector((Words)gemm_load(sums + 16 * r), Floats);
    Floats total = fused(v, scale * gemm_splat(scales[r]), gemm_load(to));
    if constexpr (Minima) total = fused(minimum, gemm_splat(shifts[r]), total);
    gemm_store(to, total);
    to += ld;
  };
  if (rows == kTileHeight) {
#pragma GCC unroll 16
    for (int64_t r = 0; r < kTileHeight; ++r) add(r);
  } else {
    for (int64_t r = 0; r < rows; ++r) add(r);
  }
}

// N parts over `groups` groups. A tile is stored two products after its own, for stores wait for the latter
// and hold up what follows them, and scaled while those of the next group are computed.
template <class Scale, bool Minima, int N>
[[gnu::noinline]] void quant_parts(const QuantWeight& q, const QuantPart* parts, int64_t groups, int64_t ld) {
  alignas(64) int32_t sums[N][kTileHeight * kPanelOutputs];
  auto multiply = [&](auto c, int64_t g) __attribute__((always_inline)) {
    if constexpr (c < N) multiply_part<c, Minima>(q, parts[c], g);
  };
  auto store = [&](auto c) __attribute__((always_inline)) {
    if constexpr (c < N) tile_store<c>(sums[c], kTileRowBytes);
  };
  auto scale = [&](auto c, int64_t g) __attribute__((always_inline)) {
    if constexpr (c < N) scale_part<Scale, Minima>(q, parts[c], g, ld, sums[c]);
  };
  constexpr std::integral_constant<int, 0> k0;
  constexpr std::integral_constant<int, 1> k1;
  constexpr std::integral_constant<int, 2> k2;
  constexpr std::integral_constant<int, 3> k3;
  multiply(k0, 0), multiply(k1, 0), multiply(k2, 0), store(k0), multiply(k3, 0), store(k1);
  int64_t g = 0;
  for (; g + 1 < groups; ++g) {
    multiply(k0, g + 1), store(k2), scale(k0, g);
    multiply(k1, g + 1), store(k3), scale(k1, g);
    multiply(k2, g + 1), store(k0), scale(k2, g);
    multiply(k3, g + 1), store(k1), scale(k3, g);
  }
  store(k2), store(k3), scale(k0, g), scale(k1, g), scale(k2, g), scale(k3, g);
}

// Up to 32 rows by up to four panels: two tiles of rows by two panels, or one by four. w: the panels' bytes.
template <class Scale, bool Minima>
void quant_tile(const Activations& a, const QuantWeight& q, const PackedTile& t, const uint8_t* w,
                int64_t panel_bytes) {
  if (t.first)
    for (int64_t r = 0; r < t.rows; ++r) std::memset(t.sums + r * t.ld, 0, size_t(t.panels) * 64);
  const int64_t high = t.rows < kTileHeight ? t.rows : kTileHeight, low = t.rows - high;
  auto part = [&](int64_t first, int64_t rows, int64_t panel, bool load_x, bool load_w) {
    const int64_t row = t.row + first, at = row * a.groups + t.step * rows;
    return QuantPart{reinterpret_cast<const uint8_t*>(a.codes + row * a.words) + t.step * rows * q.inputs,
                     w + panel * panel_bytes,
                     load_x,
                     load_w,
                     rows,
                     a.scales + at,
                     a.shifts + at,
                     (t.panel + panel) * q.scale_panel + t.step * q.scale_step,
                     t.sums + first * t.ld + panel * kPanelOutputs};
  };
  QuantPart parts[4];
  int64_t j = 0;
  if (low) {
    for (; j + 2 <= t.panels; j += 2) {
      parts[0] = part(0, high, j, true, true), parts[1] = part(0, high, j + 1, false, true);
      parts[2] = part(high, low, j + 1, true, false), parts[3] = part(high, low, j, false, true);
      quant_parts<Scale, Minima, 4>(q, parts, t.steps, t.ld);
    }
    if (j == t.panels) return;
    parts[0] = part(0, high, j, true, true), parts[1] = part(high, low, j, true, false);
    return quant_parts<Scale, Minima, 2>(q, parts, t.steps, t.ld);
  }
  if (t.panels == 4) {
    for (; j < 4; ++j) parts[j] = part(0, high, j, j == 0, true);
    return quant_parts<Scale, Minima, 4>(q, parts, t.steps, t.ld);
  }
  for (; j < t.panels; ++j) {
    parts[0] = part(0, high, j, true, true);
    quant_parts<Scale, Minima, 1>(q, parts, t.steps, t.ld);
  }
}

// Codes of a part of a panel as bytes, minus `zero`.
WT_INLINE void codes_as_bytes(const uint8_t* from, int64_t bytes, int64_t bits, uint8_t zero, uint8_t* to) {
  using Bytes = GemmVec<uint8_t>;
  for (int64_t i = 0; i < bytes; i += 64) {
    const Bytes both = gemm_load(from + i);
    if (bits == 8) {
      gemm_store(to + i, both - zero);
    } else {
      gemm_store(to + 2 * i, (both & 15) - zero);
      gemm_store(to + 2 * i + 64, (both >> 4) - zero);
    }
  }
}

template <class Scale, class Finish>
void for_quant_tiles(const QuantLinearPlan& p, const Activations& a, const QuantWeight& q, Finish&& finish) {
  const bool in_place = p.format.bits == 8 && p.minima;
  const uint8_t zero = p.minima ? 0 : uint8_t(1 << (p.format.bits - 1));
  const int64_t block = kAmxInputs / q.inputs, bytes = block * q.inputs * kPanelOutputs;
  PackedSize size{p.rows, gemm_ceil(p.outputs, kPanelOutputs), a.groups, block, q.panel_bytes};
  size.height = 2 * kTileHeight;
  size.task_panels = p.rows > size.height ? 2 * kTaskPanels : kTaskPanels;
  size.spare = in_place ? 0 : kTaskPanels * bytes;
  const auto codes_of = [&](const PackedTile& t, int64_t panel) {
    return q.codes + (t.panel + panel) * q.panel_bytes + t.step * q.group_bytes;
  };
  for_packed_tiles(
      size, [&] { return TileScope(quant_shapes(p.rows, q.piece())); },
      [&](const PackedTile& t, uint8_t* spare) {
        if (!in_place)
          for (int64_t j = 0; j < t.panels; ++j)
            codes_as_bytes(codes_of(t, j), t.steps * q.group_bytes, p.format.bits, zero, spare + j * bytes);
      },
      [&](const PackedTile& t, uint8_t* spare) {
        prefetch_weight(size, t, q.codes);
        if (in_place)
          quant_tile<Scale, true>(a, q, t, codes_of(t, 0), q.panel_bytes);
        else if (p.minima)
          quant_tile<Scale, true>(a, q, t, spare, bytes);
        else
          quant_tile<Scale, false>(a, q, t, spare, bytes);
      },
      finish);
}

}  // namespace warptape::kernels::WARPTAPE_ISA
#endif
