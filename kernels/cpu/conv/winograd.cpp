// Row-major images: lanes are neighbouring tiles of a row of tiles; what is transformed lies as [product]
// [channel][tile], the right operand of the matrix products.
#include "kernels/cpu/conv/winograd.h"

#include <cstring>

#include "kernels/cpu/conv/scratch_pieces.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/runtime/parallel.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

using Lanes = WinogradLanes;
inline constexpr int64_t L = kWinogradLanes, kProducts = kWinogradProducts;
inline constexpr int64_t kColumns = GemmF32::kCols;

// The distance of the 16 products, each of n floats: not a multiple of 4,096 bytes, where all would share the
// few places that the L1 cache has for such addresses.
WT_INLINE int64_t spread(int64_t n) { return n + (1024 + 80 - n % 1024) % 1024; }

// The distance of rows of n floats that a product reads side by side, likewise.
WT_INLINE int64_t row_pitch(int64_t n) {
  const int64_t within = n % 1024;
  return n < 64 || (within >= 64 && within <= 960) ? n : n + 128;
}

// Where a piece of the scratch memory begins.
WT_INLINE float* floats(char* scratch, int64_t at) { return reinterpret_cast<float*>(scratch + at); }

// Of two vectors that lie side by side: each second value from `first` on.
template <int first, int... I>
WT_INLINE Lanes each_second(Lanes a, Lanes b, std::integer_sequence<int, I...>) {
  return __builtin_shuffle(a, b, GemmVec<int32_t>{(2 * I + first)...});
}
// One half of what two vectors are, value by value in turns.
template <int half, int... I>
WT_INLINE Lanes in_turns(Lanes a, Lanes b, std::integer_sequence<int, I...>) {
  return __builtin_shuffle(a, b, GemmVec<int32_t>{(half * L / 2 + I / 2 + (I % 2 ? L : 0))...});
}
using Indices = std::make_integer_sequence<int, L>;

// Lines of one channel with zeros around, even columns apart from odd ones: neighbouring tiles then read
// neighbouring values.
struct Lines {
  int64_t height, width, top, left;  // of the image, and the zeros before it
  int64_t steps;                     // pairs of columns that are read
  int64_t pitch = (gemm_ceil(steps, L) + 1) * L;
  int64_t row = 2 * pitch;  // from line to line

  // Lines [first, first + count) to `to`; `line` holds zeros at first, and room for a row.
  void load(float* to, float* line, const float* channel, int64_t first, int64_t count) const {
    const int64_t valid = most(0, least(width, 2 * steps - left));
    for (int64_t j = 0; j < count; ++j, to += row) {
      const int64_t y = first + j - top;
      if (y < 0 || y >= height || !valid) {
        std::memset(to, 0, size_t(row) * sizeof(float));
        continue;
      }
      std::memcpy(line + left, channel + y * width, size_t(valid) * sizeof(float));
      for (int64_t i = 0; i < pitch; i += L) {
        const Lanes a = gemm_load(line + 2 * i), b = gemm_load(line + 2 * i + L);
        gemm_store(to + i, each_second<0>(a, b, Indices{}));
        gemm_store(to + pitch + i, each_second<1>(a, b, Indices{}));
      }
    }
  }
};

// Rows of tiles, those of all images one after the other, in blocks.
struct Tiles {
  int64_t batch, down, along;
  explicit Tiles(const ConvPlan& p)
      : batch(p.batch), down(gemm_ceil(p.out[0], 2)), along(gemm_ceil(p.out[1], 2)) {}
  WT_INLINE int64_t rows() const { return batch * down; }
  // f(image, first row of tiles, their count, first tile in the block) for rows [begin, end).
  template <class F>
  WT_INLINE void for_images(int64_t begin, int64_t end, F&& f) const {
    for (int64_t r = begin; r < end;) {
      const int64_t n = r / down, t = r % down, count = least(down - t, end - r);
      f(n, t, count, (r - begin) * along);
      r += count;
    }
  }
  // Rows for blocks of about `most_tiles` that fill whole panels of columns best.
  int64_t block_rows(int64_t most_tiles) const {
    const int64_t limit = most(1, least(rows(), most_tiles / along));
    int64_t best = limit;
    for (int64_t b = limit; b >= (limit + 1) / 2; --b)
      if (waste(b) * best < waste(best) * b) best = b;
    return best;
  }

 private:
  WT_INLINE int64_t waste(int64_t b) const { return gemm_ceil(b * along, kColumns) * kColumns; }
};

// Tiles of one channel: `tile` finds room for 16 vectors, `apart` floats from product to product.
WT_INLINE void transform_image(const Lines& lines, const float* frame, int64_t rows, int64_t along, float* to,
                               int64_t apart) {
  for (int64_t t = 0; t < rows; ++t, frame += 2 * lines.row, to += along)
    for (int64_t s = 0; s < along; s += L) {
      Lanes d[16], v[16];
#pragma GCC unroll 4
      for (int y = 0; y < 4; ++y) {
        const float* row = frame + y * lines.row + s;
        d[4 * y] = gemm_load(row), d[4 * y + 1] = gemm_load(row + lines.pitch);
        d[4 * y + 2] = gemm_load(row + 1), d[4 * y + 3] = gemm_load(row + lines.pitch + 1);
      }
      winograd_tile<WinogradImage>(d, v);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) gemm_store(to + i * apart + s, v[i]);
    }
}

WT_INLINE void transform_gradient(const Lines& lines, const float* frame, int64_t rows, int64_t along,
                                  float* to, int64_t apart) {
  for (int64_t t = 0; t < rows; ++t, frame += 2 * lines.row, to += along)
    for (int64_t s = 0; s < along; s += L) {
      const float* below = frame + lines.row;
      const Lanes g[4] = {gemm_load(frame + s), gemm_load(frame + lines.pitch + s), gemm_load(below + s),
                          gemm_load(below + lines.pitch + s)};
      Lanes v[16];
      winograd_tile<WinogradGradient>(g, v);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) gemm_store(to + i * apart + s, v[i]);
    }
}

// A matrix [rows, depth] of kernels, transformed to [product][row][depth].
struct Kernels {
  const float* at;
  int64_t rows, depth, row_step, depth_step;
  bool turned;                                                     // by half a turn
  int64_t pitch = row_pitch(depth), apart = spread(rows * pitch);  // from row to row, from product to product
};

// The kernels of `lanes` neighbours along depth, value by value.
WT_INLINE void load_kernels(Lanes (&taps)[9], const float* from, int64_t step, int64_t lanes) {
  for (int64_t t = 0; t < 9; t += L) {
    Lanes block[L];
#pragma GCC unroll 16
    for (int64_t i = 0; i < L; ++i)
      block[i] = gemm_load_n(from + least(i, lanes - 1) * step + t, least(L, 9 - t));
    gemm_transpose<float>(block);
    for (int64_t i = 0; i < L && t + i < 9; ++i) taps[t + i] = block[i];
  }
}

void transform_kernels(float* to, const Kernels& k) {
  constexpr int kTurned[4] = {3, 1, 2, 0};
  cpu::parallel_for(k.rows, 16384 / (k.depth * 9) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t d = 0; d < k.depth; d += L) {
        const int64_t n = least(L, k.depth - d);
        Lanes taps[9], u[16];
        load_kernels(taps, k.at + r * k.row_step + d * k.depth_step, k.depth_step, n);
        winograd_tile<WinogradKernel>(taps, u);
        for (int i = 0; i < 16; ++i) {
          const int product = k.turned ? kTurned[i / 4] * 4 + kTurned[i % 4] : i;
          gemm_store_n(to + product * k.apart + r * k.pitch + d, u[i], n);
        }
      }
  });
}

// ---- forward --------------------------------------------------------------------------------------------

struct Forward {
  const ConvPlan& p;
  float* out;
  const float *in, *kernels, *bias;  // kernels: [group][product][output][channel], transformed
  const ChainParts* epilogue;
  int64_t channels = p.in_channels / p.groups, outputs = p.out_channels / p.groups;
  Tiles tiles{p};
  Lines lines{p.in[0], p.in[1], p.padding[0], p.padding[1], tiles.along + 1};
  // Few tiles, whose transforms stay in the L2 cache beside the kernels; where those do not, more for each
  // time that they are read.
  int64_t block_rows = tiles.block_rows(channels * outputs <= 4096 ? 64 : 128);
  int64_t rows = 0;  // outputs of a task

  void run() {
    const int64_t blocks = gemm_ceil(tiles.rows(), block_rows);
    int64_t parts = 1;
    while (blocks * p.groups * parts < 4 && outputs >= parts * 4 * kGemmRows) parts *= 2;
    rows = gemm_ceil(outputs, parts), parts = gemm_ceil(outputs, rows);
    cpu::parallel_for(blocks * p.groups * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i / (p.groups * parts) * block_rows, r = i % parts * rows;
        task(first, least(first + block_rows, tiles.rows()), i / parts % p.groups, r,
             least(rows, outputs - r));
      }
    });
  }

  // Outputs [r0, r0 + count) of group g for rows of tiles [first, end).
  void task(int64_t first, int64_t end, int64_t g, int64_t r0, int64_t count) const {
    const int64_t wide = gemm_ceil((end - first) * tiles.along, kColumns) * kColumns, ld = wide + L;
    Pieces pieces;
    const int64_t at_frame = pieces.add<float>((2 * least(end - first, tiles.down) + 2) * lines.row),
                  at_line = pieces.add<float>(lines.row),
                  at_images = pieces.add<float>(kProducts * spread(channels * ld)),
                  at_sums = pieces.add<float>(kProducts * spread(count * ld));
    char* scratch = pieces.allocate();
    float *frame = floats(scratch, at_frame), *line = floats(scratch, at_line),
          *images = floats(scratch, at_images), *sums = floats(scratch, at_sums);
    std::memset(line, 0, size_t(lines.row) * sizeof(float));
    tiles.for_images(first, end, [&](int64_t n, int64_t t, int64_t there, int64_t tile) {
      const float* from = in + (n * p.in_channels + g * channels) * p.in[0] * p.in[1];
      for (int64_t c = 0; c < channels; ++c, from += p.in[0] * p.in[1]) {
        lines.load(frame, line, from, 2 * t, 2 * there + 2);
        transform_image(lines, frame, there, tiles.along, images + c * ld + tile, spread(channels * ld));
      }
    });
    multiply(images, sums, wide, ld, g, r0, count);
    tiles.for_images(first, end, [&](int64_t n, int64_t t, int64_t there, int64_t tile) {
      for (int64_t r = 0; r < count; ++r) {
        const int64_t channel = g * outputs + r0 + r;
        store(out + (n * p.out_channels + channel) * p.out[0] * p.out[1], sums + r * ld + tile,
              spread(count * ld), t, there, bias ? bias[channel] : 0.0f);
      }
    });
    if (epilogue) run_epilogue(first, end, g * outputs + r0, count);
  }

  void multiply(const float* images, float* sums, int64_t wide, int64_t ld, int64_t g, int64_t r0,
                int64_t count) const {
    const int64_t deep = gemm_even(channels, GemmF32::kDepth, 1), pitch = row_pitch(channels);
    for (int64_t i = 0; i < kProducts; ++i) {
      const float* u = kernels + (g * kProducts + i) * spread(outputs * pitch) + r0 * pitch;
      for (int64_t c = 0; c < channels; c += deep)
        GemmBlock<GemmF32, kAnyLda>{count,
                                    wide,
                                    least(deep, channels - c),
                                    gemm_even(count, kGemmRows, 1),
                                    u + c,
                                    images + i * spread(channels * ld) + c * ld,
                                    ld,
                                    nullptr,
                                    c == 0,
                                    false,
                                    sums + i * spread(count * ld),
                                    ld,
                                    {nullptr, 0, nullptr, 1, 0},
                                    pitch}
            .run();
    }
  }

  // The results of rows of tiles [t, t + there) of one channel.
  WT_INLINE void store(float* to, const float* sums, int64_t apart, int64_t t, int64_t there,
                       float offset) const {
    const Lanes b = gemm_splat(offset);
    for (int64_t y = 2 * t; y < 2 * (t + there); y += 2, sums += tiles.along)
      for (int64_t s = 0; s < tiles.along; s += L) {
        Lanes m[16], v[4];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) m[i] = gemm_load(sums + i * apart + s);
        winograd_tile<WinogradResult>(m, v);
        for (int64_t k = 0; k < least(2, p.out[0] - y); ++k) {
          const Lanes even = v[2 * k] + b, odd = v[2 * k + 1] + b;
          float* row = to + (y + k) * p.out[1] + 2 * s;
          const int64_t left = p.out[1] - 2 * s;
          gemm_store_n(row, in_turns<0>(even, odd, Indices{}), least(L, left));
          if (left > L) gemm_store_n(row + L, in_turns<1>(even, odd, Indices{}), least(L, left - L));
        }
      }
  }

  void run_epilogue(int64_t first, int64_t end, int64_t channel, int64_t count) const {
    tiles.for_images(first, end, [&](int64_t n, int64_t t, int64_t there, int64_t) {
      const int64_t lines_there = least(2 * (t + there), p.out[0]) - 2 * t;
      for (int64_t r = 0; r < count; ++r) {
        const int64_t begin = ((n * p.out_channels + channel + r) * p.out[0] + 2 * t) * p.out[1];
        epilogue->run(begin, begin + lines_there * p.out[1]);
      }
    });
  }
};

void run_forward(const LaunchContext& ctx, const ConvPlan& p, float* out, const float* in,
                 const float* weight, const float* bias, const ChainParts* epilogue, bool turned) {
  const int64_t channels = p.in_channels / p.groups, outputs = p.out_channels / p.groups;
  const Kernels of{weight, outputs, channels, turned ? 9 : channels * 9, turned ? outputs * 9 : 9, turned};
  const int64_t size = kProducts * of.apart;  // of one group
  auto* kernels = static_cast<float*>(ctx.scratch(size_t(p.groups * size + L) * sizeof(float)));
  for (int64_t g = 0; g < p.groups; ++g) {
    Kernels group = of;
    group.at += g * outputs * channels * 9;
    transform_kernels(kernels + g * size, group);
  }
  Forward{p, out, in, kernels, bias, epilogue}.run();
}

// ---- gradient of the weight -----------------------------------------------------------------------------

// [product][output][channel] of one group's block of channels.
struct KernelSums {
  int64_t outputs, channels;
  int64_t apart = spread(outputs * channels);  // from product to product
  WT_INLINE int64_t size() const { return kProducts * apart; }

  // The kernels [output][channel, step apart] that the sums of all parts, `part_size` apart, are the
  // gradients of.
  void finish(float* to, int64_t step, const float* from, int64_t part_size, int64_t parts) const {
    for (int64_t r = 0; r < outputs; ++r, to += step, from += channels)
      for (int64_t c = 0; c < channels; c += L) {
        const int64_t n = least(L, channels - c);
        Lanes m[16], w[9];
        for (int i = 0; i < 16; ++i) {
          m[i] = gemm_load_n(from + i * apart + c, n);
          for (int64_t q = 1; q < parts; ++q) m[i] += gemm_load_n(from + q * part_size + i * apart + c, n);
        }
        winograd_tile<WinogradKernelGradient>(m, w);
        store_kernels(to + c * 9, w, n);
      }
  }

 private:
  WT_INLINE static void store_kernels(float* to, const Lanes (&taps)[9], int64_t lanes) {
    for (int64_t t = 0; t < 9; t += L) {
      Lanes block[L];
      for (int64_t i = 0; i < L; ++i) block[i] = t + i < 9 ? taps[t + i] : Lanes{};
      gemm_transpose<float>(block);
      for (int64_t i = 0; i < lanes; ++i) gemm_store_n(to + i * 9 + t, block[i], least(L, 9 - t));
    }
  }
};

struct BackwardWeight {
  const ConvPlan& p;
  float* grad_weight;
  const float *grad_out, *in;
  int64_t channels = p.in_channels / p.groups, outputs = p.out_channels / p.groups;
  Tiles tiles{p};
  Lines image{p.in[0], p.in[1], p.padding[0], p.padding[1], tiles.along + 1};
  Lines gradient{p.out[0], p.out[1], 0, 0, tiles.along};
  int64_t block_channels = gemm_even(channels, 64, 1), blocks = gemm_ceil(channels, block_channels);
  int64_t block_outputs = gemm_even(outputs, 48, 1);
  int64_t block_rows = most(1, least(tiles.rows(), 128 / tiles.along));
  // Images are summed in parts, and the parts in order, where there are too few other tasks.
  int64_t part_rows = gemm_ceil(tiles.rows(), p.groups* blocks >= 8 ? 1 : gemm_ceil(8, p.groups* blocks));
  int64_t parts = gemm_ceil(tiles.rows(), part_rows);
  float* sums = nullptr;  // [part][group][block of channels]; null: of a task, in its scratch memory

  WT_INLINE KernelSums sums_of(int64_t c0) const { return {outputs, least(block_channels, channels - c0)}; }
  WT_INLINE int64_t part_size() const { return p.groups * blocks * sums_of(0).size(); }
  WT_INLINE float* kernels_at(int64_t g, int64_t c0) const {
    return grad_weight + (g * outputs * channels + c0) * 9;
  }

  void run(const LaunchContext& ctx) {
    if (parts > 1) sums = static_cast<float*>(ctx.scratch(size_t(parts * part_size()) * sizeof(float)));
    cpu::parallel_for(parts * p.groups * blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) task(i / (p.groups * blocks), i / blocks % p.groups, i % blocks);
    });
    if (!sums) return;
    cpu::parallel_for(p.groups * blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t c0 = i % blocks * block_channels;
        sums_of(c0).finish(kernels_at(i / blocks, c0), channels * 9, sums + i * sums_of(0).size(),
                           part_size(), parts);
      }
    });
  }

  void task(int64_t part, int64_t g, int64_t block) const {
    const int64_t c0 = block * block_channels, ld = row_pitch(block_rows * tiles.along + L);
    const KernelSums shape = sums_of(c0);
    const int64_t count = shape.channels, most_lines = 2 * least(block_rows, tiles.down) + 2;
    Pieces pieces;
    const int64_t at_frame = pieces.add<float>(most_lines * image.row),
                  at_line = pieces.add<float>(image.row),
                  at_images = pieces.add<float>(kProducts * spread(count * ld)),
                  at_panels = pieces.add<float>(gemm_ceil(count, kColumns) * kColumns * ld),
                  at_gradients = pieces.add<float>(kProducts * spread(block_outputs * ld)),
                  at_sums = pieces.add<float>(sums ? 0 : shape.size());
    char* scratch = pieces.allocate();
    const Memory m{floats(scratch, at_frame), floats(scratch, at_line), floats(scratch, at_images),
                   floats(scratch, at_panels), floats(scratch, at_gradients)};
    float* to = sums ? sums + part * part_size() + (g * blocks + block) * sums_of(0).size()
                     : floats(scratch, at_sums);
    const int64_t begin = part * part_rows, end = least(begin + part_rows, tiles.rows());
    for (int64_t first = begin; first < end; first += block_rows) {
      cpu::poll_interrupt();
      add_block(m, shape, to, g, c0, first, least(first + block_rows, end), ld, first == begin);
    }
    if (!sums) shape.finish(kernels_at(g, c0), channels * 9, to, 0, 1);
  }

 private:
  struct Memory {
    float *frame, *line, *images, *panels, *gradients;
  };

  // Rows of tiles [first, last).
  void add_block(const Memory& m, const KernelSums& shape, float* to, int64_t g, int64_t c0, int64_t first,
                 int64_t last, int64_t ld, bool is_first) const {
    const int64_t depth = (last - first) * tiles.along, count = shape.channels;
    transform(m, image, in, p.in_channels, g * channels + c0, count, first, last, m.images, ld);
    for (int64_t r = 0; r < outputs; r += block_outputs) {
      const int64_t rows = least(block_outputs, outputs - r);
      transform(m, gradient, grad_out, p.out_channels, g * outputs + r, rows, first, last, m.gradients, ld);
      for (int64_t i = 0; i < kProducts; ++i) {
        gemm_pack_b<GemmF32>(m.panels, m.images + i * spread(count * ld), ld, 1, count, depth);
        GemmBlock<GemmF32, kAnyLda>{rows,
                                    count,
                                    depth,
                                    gemm_even(rows, kGemmRows, 1),
                                    m.gradients + i * spread(rows * ld),
                                    m.panels,
                                    0,
                                    nullptr,
                                    is_first,
                                    false,
                                    to + i * shape.apart + r * count,
                                    count,
                                    {nullptr, 0, nullptr, 1, 0},
                                    ld}
            .run();
      }
    }
  }

  // [product][channel][tile] of rows of tiles [first, last).
  WT_INLINE void transform(const Memory& m, const Lines& lines, const float* images, int64_t image_channels,
                           int64_t channel, int64_t count, int64_t first, int64_t last, float* to,
                           int64_t ld) const {
    const int64_t pixels = lines.height * lines.width;
    const bool is_image = &lines == &image;
    std::memset(m.line, 0, size_t(image.row) * sizeof(float));
    tiles.for_images(first, last, [&](int64_t n, int64_t t, int64_t there, int64_t tile) {
      const float* from = images + (n * image_channels + channel) * pixels;
      for (int64_t c = 0; c < count; ++c, from += pixels) {
        lines.load(m.frame, m.line, from, 2 * t, 2 * there + (is_image ? 2 : 0));
        if (is_image)
          transform_image(lines, m.frame, there, tiles.along, to + c * ld + tile, spread(count * ld));
        else
          transform_gradient(lines, m.frame, there, tiles.along, to + c * ld + tile, spread(count * ld));
      }
    });
  }
};

}  // namespace

bool winograd_suits(const ConvPlan& p) {
  if (p.dtype != DType::Float32) return false;
  for (int d = 0; d < 2; ++d)
    if (p.kernel[d] != 3 || p.stride[d] != 1 || p.dilation[d] != 1 || p.padding[d] > 2) return false;
  const int64_t channels = p.in_channels / p.groups, outputs = p.out_channels / p.groups;
  const Tiles tiles(p);
  return channels >= 16 && outputs >= 16 && tiles.down * tiles.along >= 36;
}

bool winograd_suits_weight(const ConvPlan& p) {
  return winograd_suits(p) && p.in_channels / p.groups * (p.out_channels / p.groups) <= 1 << 14;
}

void winograd(const LaunchContext& ctx, const ConvPlan& p, float* out, const float* in, const float* weight,
              const float* bias, const ChainParts* epilogue) {
  run_forward(ctx, p, out, in, weight, bias, epilogue, false);
}

void winograd_backward_input(const LaunchContext& ctx, const ConvPlan& p, float* grad_in,
                             const float* grad_out, const float* weight) {
  ConvPlan q = p;
  q.in_channels = p.out_channels, q.out_channels = p.in_channels, q.epilogue = nullptr;
  for (int d = 0; d < 2; ++d) q.in[d] = p.out[d], q.out[d] = p.in[d], q.padding[d] = 2 - p.padding[d];
  run_forward(ctx, q, grad_in, grad_out, weight, nullptr, nullptr, true);
}

void winograd_backward_weight(const LaunchContext& ctx, const ConvPlan& p, float* grad_weight,
                              const float* grad_out, const float* in) {
  BackwardWeight{p, grad_weight, grad_out, in}.run(ctx);
}

}  // namespace warptape::kernels::WARPTAPE_ISA
