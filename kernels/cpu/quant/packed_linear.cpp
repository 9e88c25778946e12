// Linear layers on packed weights: one order of sums for one row, which streams the weight, and for many.
#include "kernels/quant/packed_linear.h"

#include "kernels/cpu/quant/packed_linear_tiles.h"
#include "kernels/cpu/vector/amx.h"
#include "kernels/dispatch.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

// Elements are 32 bits in x and in the packed weight: a float, or a pair of bfloat16, the first in the low
// half.
struct PackedF32 {
  using Storage = float;
  using Elem = float;
  static constexpr int kPack = 1;
};
struct PackedBf16 {
  using Storage = BFloat16;
  using Elem = uint32_t;
  static constexpr int kPack = 2;
};
struct PackedBf16Dot : PackedBf16 {};  // by the dot product instruction

template <class Kind>
using PackedVec = GemmVec<typename Kind::Elem>;

// sums += x w, for R values of x and V vectors of w.
template <class Kind, int R, int V>
WT_INLINE void packed_step(const typename Kind::Elem* x, const PackedVec<Kind> (&w)[V],
                           GemmVec<float> (&sums)[R][V]) {
  if constexpr (std::is_same_v<Kind, PackedBf16>) {
    constexpr uint32_t kHigh = 0xffff0000;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const auto xv = (GemmVec<float>)gemm_splat(half ? x[r] & kHigh : x[r] << 16);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v)
          sums[r][v] =
              gemm_madd<float, float>(xv, (GemmVec<float>)(half ? w[v] & kHigh : w[v] << 16), sums[r][v]);
      }
    }
  } else {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const PackedVec<Kind> xv = gemm_splat(x[r]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] = gemm_madd<typename Kind::Elem, float>(xv, w[v], sums[r][v]);
    }
  }
}

// The sums of R rows by P panels over `steps` steps. x: R values a step; w: panels `panel` elements apart.
template <class Kind, int R, int P>
[[gnu::noinline]] void packed_micro(int64_t steps, const typename Kind::Elem* x, const typename Kind::Elem* w,
                                    int64_t panel, const PackedTile& t) {
  constexpr int L = kGemmVecBytes / sizeof(float), kEach = kPanelOutputs / L, V = P * kEach;
  GemmVec<float> sums[R][V] = {};
  if (!t.first) {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) sums[r][v] = gemm_load(t.sums + r * t.ld + v * L);
  }
  for (int64_t s = 0; s < steps; ++s, x += R, w += kPanelOutputs) {
    PackedVec<Kind> wv[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) wv[v] = gemm_load(w + v / kEach * panel + v % kEach * L);
    packed_step<Kind>(x, wv, sums);
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) gemm_store(t.sums + r * t.ld + v * L, sums[r][v]);
}

// Rows of 32 bit elements in panels of `width`; rows that are missing become zeros where `pad`.
template <class Kind>
void pack_rows(typename Kind::Elem* to, int64_t width, bool pad, const typename Kind::Storage* from,
               int64_t rows, int64_t k) {
  if (k % Kind::kPack == 0 && !(pad && rows < width)) {  // bits are moved, whatever they mean
    const int64_t steps = k / Kind::kPack;
    GemmPacker<float, float>{reinterpret_cast<float*>(to),
                             pad ? width : rows,
                             reinterpret_cast<const float*>(from),
                             steps,
                             1,
                             rows,
                             steps}
        .pack();
  } else {
    GemmPacker<typename Kind::Storage, typename Kind::Elem>{to, pad ? width : rows, from, k, 1, rows, k}
        .one_by_one();
  }
}

// x as tiles: R values a step each. One row is taken where it lies, if its pairs are whole.
template <class Kind>
const typename Kind::Elem* tiles_of(const LaunchContext& ctx, const PackedLinearPlan& p, int64_t steps) {
  using Elem = typename Kind::Elem;
  const auto* x = static_cast<const typename Kind::Storage*>(p.x);
  if (p.rows == 1 && p.inputs % Kind::kPack == 0) return reinterpret_cast<const Elem*>(x);
  auto* tiles = static_cast<Elem*>(ctx.scratch(sizeof(Elem) * size_t(p.rows * steps)));
  const int64_t height = tile_height(p.rows);
  cpu::parallel_for(gemm_ceil(p.rows, height), 65536 / (height * steps + 64) + 1,
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin * height; i < end * height && i < p.rows; i += height)
                        pack_rows<Kind>(tiles + i * steps, height, false, x + i * p.inputs,
                                        p.rows - i < height ? p.rows - i : height, p.inputs);
                    });
  return tiles;
}

template <class Kind>
void multiply_packed(const LaunchContext& ctx, const PackedLinearPlan& p) {
  using Elem = typename Kind::Elem;
  using T = typename Kind::Storage;
  constexpr int64_t kBlock = 1024;  // steps: 256 KB of the weight
  const int64_t steps = gemm_ceil(p.inputs, Kind::kPack), panel = steps * kPanelOutputs;
  const Elem* x = tiles_of<Kind>(ctx, p, steps);
  const auto* w = static_cast<const Elem*>(p.packed);
  for_packed_tiles(
      {p.rows, gemm_ceil(p.outputs, kPanelOutputs), steps, kBlock, panel * int64_t(sizeof(Elem))},
      [&](const PackedTile& tile) {
        dispatch_tile<FloatTiles>(
            tile, [&](auto r, auto panels, const PackedTile& t) __attribute__((always_inline)) {
              packed_micro<Kind, r, panels>(t.steps, x + t.row * steps + t.step * t.rows,
                                            w + t.panel * panel + t.step * kPanelOutputs, panel, t);
            });
      },
      [&](const PackedTile& all) {
        finish_packed(all, static_cast<const T*>(p.bias), p.outputs, static_cast<T*>(p.out));
      });
}

#if defined(__AVX512F__)
// ---- bfloat16 on AMX tiles -------------------------------------------------------------------------------
// 16 pairs of k at a time, whose sums a tile keeps. All numbers of rows go this way, one too: products of
// tiles are rounded otherwise than those of vectors.

constexpr int64_t kTilePairs = 16;

// Tiles of sums: 0 to 3. Operands: 4 and 5 of x, 6 and 7 of the weight.
WT_INLINE TileShapes bf16_shapes(int64_t rows) {
  TileShapes shapes;
  for (int t = 0; t < 8; ++t)
    shapes.set(t, t < 6 && rows < kTileHeight ? int(rows) : kTileHeight, kTileRowBytes);
  return shapes;
}

// x as tiles of up to 16 rows by 16 pairs, filled up with zeros along k. What a tile reads beside the last
// rows is memory too. One row is taken where it lies, if its pairs are whole.
const BFloat16* amx_tiles_of(const LaunchContext& ctx, const PackedLinearPlan& p, int64_t k) {
  const auto* x = static_cast<const BFloat16*>(p.x);
  if (p.rows == 1 && p.inputs == k) return x;
  constexpr int64_t kPiece = 2 * kTilePairs;
  auto* tiles = static_cast<BFloat16*>(ctx.scratch(size_t(p.rows * k) * 2 + 15 * kTileRowBytes));
  cpu::parallel_for(p.rows, 65536 / (k + 64) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i / kTileHeight * kTileHeight;
      const int64_t rows = p.rows - first < kTileHeight ? p.rows - first : kTileHeight;
      const BFloat16* from = x + i * p.inputs;
      BFloat16* to = tiles + first * k + (i - first) * kPiece;
      int64_t at = 0;
      for (; at + kPiece <= p.inputs; at += kPiece) std::memcpy(to + at * rows, from + at, 2 * kPiece);
      if (at == k) continue;
      std::memset(to + at * rows, 0, 2 * kPiece);
      std::memcpy(to + at * rows, from + at, size_t(p.inputs - at) * 2);
    }
  });
  return tiles;
}

// One or two tiles of rows of x over one block.
struct AmxRows {
  const uint8_t* x[2];
  int64_t step[2];  // bytes from 16 pairs to the next
};

template <int C, int P>
WT_INLINE void amx_step(const uint8_t* w, int64_t panel_bytes, bool two) {
  constexpr int B = 6 + C % 2;
  tile_load<B>(w + C * panel_bytes, kTileRowBytes);
  tile_product_bf16<C, 4, B>();
  if constexpr (P <= 2) {
    if (two) tile_product_bf16<P + C, 5, B>();
  }
}

// R tiles of rows by P panels.
template <int R, int P>
[[gnu::noinline]] void amx_micro(const AmxRows& a, const uint8_t* w, int64_t panel_bytes,
                                 const PackedTile& t) {
  constexpr int64_t kBytes = kTilePairs * kTileRowBytes;
  auto each = [&](auto f) __attribute__((always_inline)) {  // tile of sums
    [&]<int... C>(std::integer_sequence<int, C...>) __attribute__((always_inline)) {
      (f(std::integral_constant<int, C>{}, t.sums + C / P * kTileHeight * t.ld + C % P * kPanelOutputs), ...);
    }(std::make_integer_sequence<int, R * P>{});
  };
  auto step = [&](int64_t i, const uint8_t* from, int64_t apart) __attribute__((always_inline)) {
    tile_load<4>(a.x[0] + i * a.step[0], kTileRowBytes);
    if constexpr (R == 2) tile_load<5>(a.x[1] + i * a.step[1], kTileRowBytes);
    [&]<int... C>(std::integer_sequence<int, C...>) __attribute__((always_inline)) {
      (amx_step<C, P>(from, apart, R == 2), ...);
    }(std::make_integer_sequence<int, P>{});
  };
  each([&](auto c, float* sums) __attribute__((always_inline)) {
    if (t.first)
      tile_zero<c>();
    else
      tile_load<c>(sums, t.ld * 4);
  });
  const int64_t whole = t.steps / kTilePairs, left = t.steps % kTilePairs;
  for (int64_t i = 0; i < whole; ++i) step(i, w + i * kBytes, panel_bytes);
  if (left) {
    alignas(64) uint8_t last[P][kBytes] = {};
    for (int j = 0; j < P; ++j)
      std::memcpy(last[j], w + j * panel_bytes + whole * kBytes, size_t(left) * kTileRowBytes);
    step(whole, last[0], kBytes);
  }
  each([&](auto c, float* sums) __attribute__((always_inline)) { tile_store<c>(sums, t.ld * 4); });
}

void multiply_amx(const LaunchContext& ctx, const PackedLinearPlan& p) {
  const int64_t steps = gemm_ceil(p.inputs, 2), panel_bytes = steps * kTileRowBytes;
  const int64_t k = gemm_ceil(steps, kTilePairs) * kTilePairs * 2;
  const BFloat16* x = amx_tiles_of(ctx, p, k);
  PackedSize size{p.rows, gemm_ceil(p.outputs, kPanelOutputs), steps, 1024, panel_bytes};
  size.height = 2 * kTileHeight;
  const bool many = p.rows > size.height;
  if (many) size.block = 128, size.together = 2, size.task_panels = 16;  // two panels are 16 KB
  for_packed_tiles(
      size, [&] { return TileScope(bf16_shapes(p.rows)); }, [](const PackedTile&, uint8_t*) {},
      [&](PackedTile t, uint8_t*) {
        if (many) prefetch_weight(size, t, p.packed);
        const uint8_t* w =
            static_cast<const uint8_t*>(p.packed) + t.panel * panel_bytes + t.step * kTileRowBytes;
        const int64_t high = t.rows < kTileHeight ? t.rows : kTileHeight, low = t.rows - high;
        const auto at = [&](int64_t row, int64_t rows) {
          return reinterpret_cast<const uint8_t*>(x + row * k + t.step * 2 * rows);
        };
        const AmxRows a{{at(t.row, high), at(t.row + high, low)},
                        {high * kTileRowBytes, low * kTileRowBytes}};
        auto take = [&](auto r, auto panels) {
          for (; t.panels >= panels;
               t.panels -= panels, t.sums += panels * kPanelOutputs, w += panels * panel_bytes)
            amx_micro<r, panels>(a, w, panel_bytes, t);
        };
        constexpr std::integral_constant<int, 1> k1;
        constexpr std::integral_constant<int, 2> k2;
        constexpr std::integral_constant<int, 4> k4;
        if (low)
          take(k2, k2), take(k2, k1);
        else
          take(k1, k4), take(k1, k1);
      },
      [&](const PackedTile& all) {
        finish_packed(all, static_cast<const BFloat16*>(p.bias), p.outputs, static_cast<BFloat16*>(p.out));
      });
}
#endif

void packed_linear(const LaunchContext& ctx, const PackedLinearPlan& p) {
  if (p.rows == 0 || p.outputs == 0) return;
  if (p.dtype == DType::Float32) return multiply_packed<PackedF32>(ctx, p);
  if (p.dtype != DType::BFloat16) unhandled_dtype("packed_linear", p.dtype);
#if defined(__AVX512F__)
  if (cpu::has_amx_bf16()) return multiply_amx(ctx, p);
  if (__builtin_cpu_supports("avx512bf16")) return multiply_packed<PackedBf16Dot>(ctx, p);
#endif
  multiply_packed<PackedBf16>(ctx, p);
}

template <class Kind>
void pack_weight(int64_t outputs, int64_t inputs, const void* weight, void* packed) {
  const int64_t panel = gemm_ceil(inputs, Kind::kPack) * kPanelOutputs;
  const auto* from = static_cast<const typename Kind::Storage*>(weight);
  auto* to = static_cast<typename Kind::Elem*>(packed);
  cpu::parallel_for(gemm_ceil(outputs, kPanelOutputs), 65536 / (panel + 64) + 1,
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) {
                        const int64_t j = i * kPanelOutputs,
                                      rows = outputs - j < kPanelOutputs ? outputs - j : kPanelOutputs;
                        pack_rows<Kind>(to + i * panel, kPanelOutputs, true, from + j * inputs, rows, inputs);
                      }
                    });
}

void pack_linear_weight(const LaunchContext&, DType dtype, int64_t outputs, int64_t inputs,
                        const void* weight, void* packed) {
  if (dtype == DType::Float32) return pack_weight<PackedF32>(outputs, inputs, weight, packed);
  if (dtype != DType::BFloat16) unhandled_dtype("pack_linear_weight", dtype);
  pack_weight<PackedBf16>(outputs, inputs, weight, packed);
}

}  // namespace

WT_KERNEL(pack_linear_weight, pack_linear_weight);
WT_KERNEL(packed_linear, packed_linear);

}  // namespace warptape::kernels::WARPTAPE_ISA
