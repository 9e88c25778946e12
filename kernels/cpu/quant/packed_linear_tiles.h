// The loops that products with packed weights share: tiles of a few rows by a few panels of 16 outputs, whose
// sums over a block of k are kept in registers and over all blocks in memory, as floats, which changes no
// bit. How rows and panels fall into tiles and tasks depends on their numbers, the order of an element's sum
// on nothing.
#pragma once

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/quant/packed_linear.h"
#include "kernels/runtime/parallel.h"

namespace warptape::kernels::WARPTAPE_ISA {

#if defined(__AVX512F__)
inline constexpr int kTileRows = 6;  // 6 x 4 sums, 4 of the weight, 1 of x: 29 of 32 registers
#elif defined(__AVX2__)
inline constexpr int kTileRows = 6;
#else
inline constexpr int kTileRows = 2;
#endif

// Panels of a tile of R rows: as many sums as hide the latency of one, and fit into the registers.
struct FloatTiles {
  template <int R>
  static constexpr int kPanels = kGemmVecBytes == 64   ? 4
                                 : kGemmVecBytes == 32 ? (R == 1   ? 4
                                                          : R == 2 ? 2
                                                                   : 1)
                                                       : (R == 1 ? 2 : 1);
};

inline constexpr int64_t kTaskPanels = 4;
inline constexpr int64_t kTaskRows = 512;

// The sums of a tile: `rows` rows from `row` on by `panels` panels from `panel` on, over `steps` steps of the
// packed weight. Row i's sums lie at sums + i * ld, 16 a panel; they start anew where `first`.
struct PackedTile {
  int64_t row, rows, panel, panels, step, steps;
  float* sums;
  int64_t ld;
  bool first;
};

// Calls f(tag of R, tag of P, tile) for parts of the tile that have R rows and P panels.
template <class Tiles, int R = 1, class F>
WT_INLINE void dispatch_tile(PackedTile t, F&& f) {
  if constexpr (R <= kTileRows) {
    if (t.rows != R) return dispatch_tile<Tiles, R + 1>(t, f);
    constexpr int P = Tiles::template kPanels<R>;
    auto take = [&](auto panels) __attribute__((always_inline)) {
      f(std::integral_constant<int, R>{}, panels, t);
      t.panel += panels, t.panels -= panels, t.sums += panels * kPanelOutputs;
    };
    while (t.panels >= P) take(std::integral_constant<int, P>{});
    while (t.panels > 0) take(std::integral_constant<int, 1>{});
  }
}

// Rows of each tile but the last, where there are `rows` in all.
WT_INLINE int64_t tile_height(int64_t rows) { return gemm_even(rows, kTileRows, 1); }

struct PackedSize {
  int64_t rows, panels;
  int64_t steps;        // of the packed weight
  int64_t block;        // steps in a block, which four panels of are to stay in the second cache
  int64_t panel_bytes;  // of the packed weight
  int64_t height = tile_height(rows);
  int64_t task_panels = kTaskPanels;  // more than `together`: x is read from the second cache by the others
  int64_t together = kTaskPanels;     // panels of a tile
  int64_t spare = 0;                  // bytes of memory that a task's tiles share

  WT_INLINE int64_t task_rows() const { return gemm_even(rows, kTaskRows / height * height, height); }
};

// Asks for a share of the weight that is needed after that of `t`, so that all tiles of a task ask for all.
WT_INLINE void prefetch_weight(const PackedSize& size, const PackedTile& t, const void* weight) {
  const int64_t first = t.panel / size.task_panels * size.task_panels, left = size.panels - first;
  int64_t panel = t.panel + size.together, step = t.step;
  if (panel >= first + (left < size.task_panels ? left : size.task_panels)) panel = first, step += size.block;
  if (step >= size.steps) return;
  const int64_t bytes = size.panel_bytes / size.steps, tiles = gemm_ceil(size.task_rows(), size.height);
  const int64_t share = gemm_ceil(size.block * bytes, tiles * 64) * 64,
                at = t.row / size.height % tiles * share;
  const uint8_t* from = static_cast<const uint8_t*>(weight) + panel * size.panel_bytes + step * bytes + at;
  for (int64_t j = 0; j < size.together; ++j, from += size.panel_bytes)
    for (int64_t i = 0; i < share; i += 64) __builtin_prefetch(from + i, 0, 2);
}

// For each block of a task holds what lend() gives, calls begin(PackedTile, spare) for all rows of a task and
// `together` panels over one block, then tile(PackedTile, spare) for the tiles of these, blocks in order, and
// finish(PackedTile) for the rows and panels of the task, of which all sums are complete. Behind a task's
// sums is room for 15 rows more.
template <class Lend, class Begin, class Tile, class Finish>
WT_INLINE void for_packed_tiles(const PackedSize& size, Lend&& lend, Begin&& begin_block, Tile&& tile,
                                Finish&& finish) {
  const int64_t most = size.task_rows();
  const int64_t across = gemm_ceil(size.panels, size.task_panels), down = gemm_ceil(size.rows, most);
  const int64_t work = size.task_panels * size.panel_bytes * (size.rows < most ? size.rows : most);
  cpu::parallel_for(
      across * down, work < 65536 ? 65536 / (work + 64) + 1 : 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          PackedTile all{
              t / across * most, 0, t % across * size.task_panels, 0, 0, size.steps, nullptr, 0, true};
          all.rows = size.rows - all.row < most ? size.rows - all.row : most;
          all.panels =
              size.panels - all.panel < size.task_panels ? size.panels - all.panel : size.task_panels;
          all.ld = all.panels * kPanelOutputs;
          auto* spare = static_cast<uint8_t*>(
              cpu::thread_scratch(size_t(size.spare) + size_t((all.rows + 15) * all.ld) * sizeof(float)));
          all.sums = reinterpret_cast<float*>(spare + size.spare);
          for (int64_t step = 0; step == 0 || step < size.steps; step += size.block) {
            if (step) cpu::poll_interrupt();  // runs what a signal's handler does, with AMX tiles perhaps
            [[maybe_unused]] const auto lent = lend();
            for (int64_t j = 0; j < all.panels; j += size.together) {
              PackedTile part = all;
              part.panel += j, part.sums += j * kPanelOutputs, part.step = step, part.first = step == 0;
              part.panels = all.panels - j < size.together ? all.panels - j : size.together;
              part.steps = size.steps - step < size.block ? size.steps - step : size.block;
              begin_block(part, spare);
              for (int64_t i = 0; i < all.rows; i += size.height) {
                PackedTile rows = part;
                rows.row += i, rows.sums += i * all.ld;
                rows.rows = all.rows - i < size.height ? all.rows - i : size.height;
                tile(rows, spare);
              }
            }
          }
          finish(all);
        }
      });
}

template <class Tile, class Finish>
WT_INLINE void for_packed_tiles(const PackedSize& size, Tile&& tile, Finish&& finish) {
  for_packed_tiles(
      size, [] { return 0; }, [](const PackedTile&, uint8_t*) {},
      [&](const PackedTile& t, uint8_t*) { tile(t); }, finish);
}

// Rounds the sums of a task, with the bias added, into out [M, outputs].
template <class T>
WT_INLINE void finish_packed(const PackedTile& t, const T* bias, int64_t outputs, T* out) {
  const int64_t j = t.panel * kPanelOutputs, left = outputs - j < t.ld ? outputs - j : t.ld;
  for (int64_t i = 0; i < t.rows; ++i) {
    const float* sums = t.sums + i * t.ld;
    T* to = out + (t.row + i) * outputs + j;
    if (bias)
      for (int64_t c = 0; c < left; ++c) to[c] = T(sums[c] + float(bias[j + c]));
    else
      for (int64_t c = 0; c < left; ++c) to[c] = T(sums[c]);
  }
}

}  // namespace warptape::kernels::WARPTAPE_ISA
