// Convolution as a matrix product per image whose second operand, the columns of the image, is made block by
// block in the cache ("High Performance Convolutional Neural Networks for Document Processing", section 3.1,
// without the large intermediate matrix).
#include "kernels/conv/conv.h"

#include "kernels/cpu/conv/conv_columns.h"
#include "kernels/cpu/conv/scratch_pieces.h"
#include "kernels/cpu/conv/winograd.h"
#include "kernels/cpu/fused/chain_parts.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/vector/bounds.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

struct Sizes {
  int64_t channels, outputs;  // of one group
  int64_t depth;              // rows of the columns' matrix of one group
  int64_t positions;          // of one output image
  explicit Sizes(const ConvPlan& p)
      : channels(p.in_channels / p.groups),
        outputs(p.out_channels / p.groups),
        depth(channels * p.kernel[0] * p.kernel[1]),
        positions(p.out[0] * p.out[1]) {}
};

// ---- forward --------------------------------------------------------------------------------------------

template <class Kind>
struct Forward {
  using S = typename Kind::Storage;
  using Elem = typename Kind::Elem;
  using Acc = typename Kind::Acc;
  static constexpr bool kPacked = !kGemmInPlace<Kind>;  // columns are converted, sums rounded at the end
  const ConvPlan& p;
  S* out;
  const S *in, *weight, *bias;
  const ChainParts* epilogue;
  ConvFrame f{p};
  Sizes z{p};
  int64_t block_channels = most(1, least(z.channels, Kind::kDepth* Kind::kPack / f.taps));
  int64_t block_cols = gemm_even(z.positions, 5 * Kind::kCols, Kind::kCols);
  int64_t block_elems = gemm_depth<Kind>(block_channels * f.taps);
  int64_t blocks = gemm_ceil(z.channels, block_channels);
  int64_t elems =
      (blocks - 1) * block_elems + gemm_depth<Kind>((z.channels - (blocks - 1) * block_channels) * f.taps);
  int64_t rows = 0;        // in a task
  Elem* packed = nullptr;  // the weights, for all tasks

  // A task is a row block and some images, so that a block of weights meets some 256 positions while it is in
  // the cache.
  void run(const LaunchContext& ctx) {
    int64_t images = most(1, least(p.batch, 256 / z.positions)), parts = 1;
    while (images > 1 && gemm_ceil(p.batch, images) * p.groups < 4) images = gemm_ceil(images, 2);
    int64_t chunks = gemm_ceil(p.batch, images);
    while (chunks * p.groups * parts < 4 && z.outputs >= parts * 4 * kGemmRows) parts *= 2;
    rows = gemm_ceil(z.outputs, parts);
    parts = gemm_ceil(z.outputs, rows);
    packed = static_cast<Elem*>(ctx.scratch((p.out_channels * elems + kGemmVecBytes) * sizeof(Elem)));
    cpu::parallel_for(
        p.groups * parts * blocks, 65536 / (rows * block_elems) + 1, [&](int64_t begin, int64_t end) {
          for (int64_t t = begin; t < end; ++t)
            pack_weights(t / (parts * blocks), t / blocks % parts * rows, t % blocks * block_channels);
        });
    double work = double(images) * double(rows) * double(z.depth) * double(z.positions);
    cpu::parallel_for(
        chunks * p.groups * parts, int64_t(1e6 / (work + 1e3)) + 1, [&](int64_t begin, int64_t end) {
          for (int64_t t = begin; t < end; ++t) {
            int64_t n = t / (p.groups * parts) * images, g = t / parts % p.groups, r = t % parts * rows;
            task(g, n, least(images, p.batch - n), r, least(rows, z.outputs - r));
          }
        });
  }

  WT_INLINE Elem* weights_at(int64_t g, int64_t r0, int64_t count, int64_t c) const {
    return packed + (g * z.outputs + r0) * elems + c / block_channels * block_elems * count;
  }

  void pack_weights(int64_t g, int64_t r0, int64_t c) {
    int64_t count = least(rows, z.outputs - r0), k = least(block_channels, z.channels - c) * f.taps;
    gemm_pack_a<Kind>(weights_at(g, r0, count, c), gemm_even(count, Kind::kRows, 1),
                      weight + (g * z.outputs + r0) * z.depth + c * f.taps, z.depth, 1, count, k);
  }

  // Small images are laid side by side: `group` of them make one matrix of `width` columns, `ld` apart.
  struct Layout {
    int64_t images, group, width, ld, step;  // step: positions in a block
    bool summed;                             // results go through `sums`
  };
  WT_INLINE Layout layout(int64_t images) const {
    if (z.positions >= 64 || images == 1) return {images, 1, z.positions, block_cols, block_cols, kPacked};
    int64_t width = images * z.positions;
    return {images,      images,
            width,       gemm_even(width, width, Kind::kCols) + kGemmVecBytes / int64_t(sizeof(S)),
            z.positions, true};
  }

  void task(int64_t g, int64_t n0, int64_t images, int64_t r0, int64_t count) {
    Layout l = layout(images);
    int64_t block_depth = block_channels * f.taps, frame_size = block_channels * f.channel_size();
    Pieces pieces;
    int64_t at_frame = pieces.add<S>(l.group * frame_size), at_columns = pieces.add<S>(block_depth * l.ld);
    int64_t at_b = pieces.add<Elem>(kPacked ? block_elems * l.ld : 0);
    int64_t at_sums = pieces.add<Acc>(l.summed ? images * count * z.positions : 0);
    int64_t at_tables =
        pieces.add<int64_t>(ConvTables::size(f, block_depth, most(block_cols, z.positions < 64 ? 64 : 0)));
    char* scratch = pieces.allocate();
    auto* frame = reinterpret_cast<S*>(scratch + at_frame);
    auto* columns = reinterpret_cast<S*>(scratch + at_columns);
    auto* b = reinterpret_cast<Elem*>(scratch + at_b);
    auto* sums = reinterpret_cast<Acc*>(scratch + at_sums);
    ConvTables tables(f, block_depth, reinterpret_cast<int64_t*>(scratch + at_tables));
    std::memset(static_cast<void*>(frame), 0, l.group * frame_size * sizeof(S));
    S* to = out + (n0 * p.out_channels + g * z.outputs + r0) * z.positions;  // of the first image
    if (bias) start_with_bias(l, g * z.outputs + r0, count, to, sums);
    for (int64_t c = 0; c < z.channels; c += block_channels) {
      int64_t channels = least(block_channels, z.channels - c), k = channels * f.taps;
      const S* from = in + (n0 * p.in_channels + g * z.channels + c) * p.in[0] * p.in[1];
      bool last = c + channels == z.channels;
      for (int64_t i = 0; i < images; i += l.group) {
        for (int64_t q = 0; q < l.group; ++q)
          tables.load(frame + q * frame_size, from + (i + q) * p.in_channels * p.in[0] * p.in[1], channels);
        for (int64_t j = 0; j < z.positions; j += l.step) {
          int64_t cols = least(l.step, z.positions - j);
          tables.block(j, j + cols);
          for (int64_t q = 0; q < l.group; ++q)
            tables.columns(columns + q * z.positions, l.ld, frame + q * frame_size, k);
          if (l.group > 1) cols = l.width;
          if (kPacked) gemm_pack_b<Kind>(b, columns, 1, l.ld, cols, k);
          GemmBlock<Kind> block{count,
                                cols,
                                gemm_depth<Kind>(k),
                                gemm_even(count, Kind::kRows, 1),
                                weights_at(g, r0, count, c),
                                kPacked ? b : reinterpret_cast<Elem*>(columns),
                                kPacked ? 0 : l.ld,
                                nullptr,
                                c == 0 && !bias,
                                last && l.group == 1,
                                l.summed ? sums + i * count * z.positions + j : nullptr,
                                l.width,
                                {to + i * p.out_channels * z.positions + j, z.positions, nullptr, 1, 0}};
          block.run();
        }
      }
    }
    for (int64_t i = 0; l.group > 1 && i < images; ++i)
      for (int64_t r = 0; r < count; ++r)
        for (int64_t j = 0; j < z.positions; ++j)
          to[(i * p.out_channels + r) * z.positions + j] = S(sums[r * l.width + i * z.positions + j]);
    for (int64_t i = 0; epilogue && i < images; ++i) {
      const int64_t begin = to - out + i * p.out_channels * z.positions;
      epilogue->run(begin, begin + count * z.positions);
    }
  }

  WT_INLINE void start_with_bias(const Layout& l, int64_t r0, int64_t count, S* to, Acc* sums) {
    for (int64_t i = 0; i < l.images; i += l.group)
      for (int64_t r = 0; r < count; ++r) {
        S value = bias[r0 + r];
        Acc* sum = sums + i * count * z.positions + r * l.width;
        S* direct = to + (i * p.out_channels + r) * z.positions;
        for (int64_t j = 0; j < l.width; ++j) {
          if (l.summed)
            sum[j] = Acc(value);
          else
            direct[j] = value;
        }
      }
  }
};

// ---- gradient of the input ------------------------------------------------------------------------------

template <class Kind>
struct BackwardInput {
  using S = typename Kind::Storage;
  using Elem = typename Kind::Elem;
  using Acc = typename Kind::Acc;
  const ConvPlan& p;
  S* grad_in;
  const S *grad_out, *weight;
  ConvFrame f{p};
  Sizes z{p};
  int64_t depth = gemm_depth<Kind>(z.outputs);
  int64_t block_depth = gemm_even(depth, Kind::kDepth, Kind::kSteps);
  int64_t block_channels = most(1, least(z.channels, least(576, 160000 / depth) / f.taps));
  int64_t block_cols = gemm_even(z.positions, 4 * Kind::kCols, Kind::kCols);

  Elem* packed = nullptr;  // transposed weights, for all tasks

  // A task is a channel block and some images, so that its weights meet some 256 positions while they are in
  // the cache.
  void run(const LaunchContext& ctx) {
    int64_t images = most(1, least(p.batch, 256 / z.positions)),
            blocks = gemm_ceil(z.channels, block_channels);
    while (images > 1 && gemm_ceil(p.batch, images) * p.groups * blocks < 4) images = gemm_ceil(images, 2);
    packed = static_cast<Elem*>(ctx.scratch((p.groups * z.depth * depth + kGemmVecBytes) * sizeof(Elem)));
    cpu::parallel_for(p.groups * blocks, 65536 / (block_channels * f.taps * depth) + 1,
                      [&](int64_t begin, int64_t end) {
                        for (int64_t t = begin; t < end; ++t)
                          pack_weights(t / blocks, t % blocks * block_channels);
                      });
    int64_t chunks = gemm_ceil(p.batch, images);
    double work = double(images) * double(z.outputs) * double(block_channels * f.taps) * double(z.positions);
    cpu::parallel_for(chunks * p.groups * blocks, int64_t(1e6 / (work + 1e3)) + 1,
                      [&](int64_t begin, int64_t end) {
                        for (int64_t t = begin; t < end; ++t) {
                          int64_t n = t / (p.groups * blocks) * images, g = t / blocks % p.groups,
                                  c = t % blocks * block_channels;
                          task(g, n, least(images, p.batch - n), c, least(block_channels, z.channels - c));
                        }
                      });
  }

  WT_INLINE Elem* weights_at(int64_t g, int64_t c) const {
    return packed + (g * z.depth + c * f.taps) * depth;
  }

  void pack_weights(int64_t g, int64_t c) {
    int64_t rows = least(block_channels, z.channels - c) * f.taps;
    const S* w = weight + g * z.outputs * z.depth + c * f.taps;
    for (int64_t o = 0; o < depth; o += block_depth) {
      int64_t from = o * Kind::kPack, k = least(block_depth * Kind::kPack, z.outputs - from);
      gemm_pack_a<Kind>(weights_at(g, c) + rows * o, gemm_even(rows, Kind::kRows, 1), w + from * z.depth, 1,
                        z.depth, rows, k);
    }
  }

  void task(int64_t g, int64_t n0, int64_t images, int64_t c, int64_t channels) {
    int64_t rows = channels * f.taps, panel_rows = gemm_even(rows, Kind::kRows, 1);
    // Small images are laid side by side.
    int64_t group = z.positions < 64 ? images : 1, width = group * z.positions;
    int64_t ld = group > 1 ? gemm_even(width, width, Kind::kCols) : block_cols;
    int64_t step = group > 1 ? z.positions : block_cols;
    Pieces pieces;
    int64_t at_b = pieces.add<Elem>(block_depth * ld), at_sums = pieces.add<Acc>(rows * ld);
    int64_t at_side = pieces.add<S>(group > 1 ? z.outputs * width : 0);
    int64_t at_frame = pieces.add<Acc>(channels * f.channel_size());
    int64_t at_tables = pieces.add<int64_t>(ConvTables::size(f, rows, step));
    char* scratch = pieces.allocate();
    auto* b = reinterpret_cast<Elem*>(scratch + at_b);
    auto* sums = reinterpret_cast<Acc*>(scratch + at_sums);
    auto* frame = reinterpret_cast<Acc*>(scratch + at_frame);
    const Elem* a = weights_at(g, c);
    ConvTables tables(f, rows, reinterpret_cast<int64_t*>(scratch + at_tables));
    auto* side = reinterpret_cast<S*>(scratch + at_side);
    for (int64_t n = n0; n < n0 + images; n += group) {
      if (group == 1) std::memset(static_cast<void*>(frame), 0, channels * f.channel_size() * sizeof(Acc));
      const S* g_out = grad_out + (n * p.out_channels + g * z.outputs) * z.positions;
      if (group > 1) {
        for (int64_t q = 0; q < group; ++q)
          for (int64_t o = 0; o < z.outputs; ++o)
            std::memcpy(static_cast<void*>(side + o * width + q * z.positions),
                        g_out + (q * p.out_channels + o) * z.positions, z.positions * sizeof(S));
        g_out = side;
      }
      for (int64_t j = 0; j < z.positions; j += step) {
        int64_t positions = least(step, z.positions - j), cols = group > 1 ? width : positions;
        for (int64_t o = 0; o < depth; o += block_depth) {
          int64_t from = o * Kind::kPack, k = least(block_depth * Kind::kPack, z.outputs - from);
          gemm_pack_b<Kind>(b, g_out + from * width + j, 1, width, cols, k);
          GemmBlock<Kind> block{
              rows, cols, gemm_depth<Kind>(k),        panel_rows, a + rows * o, b, 0, nullptr, o == 0, false,
              sums, ld,   {nullptr, 0, nullptr, 1, 0}};
          block.run();
        }
        tables.block(j, j + positions);
        if (group == 1) tables.add_columns(frame, sums, ld, rows);
      }
      for (int64_t q = 0; q < group; ++q) {
        if (group > 1) {
          std::memset(static_cast<void*>(frame), 0, channels * f.channel_size() * sizeof(Acc));
          tables.add_columns(frame, sums + q * z.positions, ld, rows);
        }
        tables.store(grad_in + ((n + q) * p.in_channels + g * z.channels + c) * p.in[0] * p.in[1], frame,
                     channels);
      }
    }
  }
};

// ---- gradient of the weight -----------------------------------------------------------------------------

template <class Kind>
struct BackwardWeight {
  using S = typename Kind::Storage;
  using Elem = typename Kind::Elem;
  using Acc = typename Kind::Acc;
  const ConvPlan& p;
  S* grad_weight;
  const S *grad_out, *in;
  Acc* sums;      // one gradient per image group; null: added in grad_weight itself
  int64_t parts;  // image groups
  ConvFrame f{p};
  Sizes z{p};
  int64_t block_channels = channels_of(p);
  int64_t together = most(1, least(p.batch, 256 / z.positions));  // images whose positions make one k
  int64_t block_positions = z.positions <= 512 ? z.positions : gemm_even(z.positions, 512, 1);
  int64_t block_rows = gemm_even(z.outputs, 36 * kGemmRows, 1);

  static int64_t channels_of(const ConvPlan& p) {
    return most(1, least(p.in_channels / p.groups, 256 / (p.kernel[0] * p.kernel[1])));
  }
  // Images are summed in groups, and the groups in order, where there are too few other tasks.
  static int64_t parts_of(const ConvPlan& p) {
    int64_t tasks = p.groups * gemm_ceil(p.in_channels / p.groups, channels_of(p));
    return tasks >= 8 ? 1 : least(p.batch, gemm_ceil(8, tasks));
  }

  void run() {
    int64_t blocks = gemm_ceil(z.channels, block_channels), images = gemm_ceil(p.batch, parts);
    double work = double(images) * double(z.outputs) * double(block_channels * f.taps) * double(z.positions);
    cpu::parallel_for(parts * p.groups * blocks, int64_t(1e6 / (work + 1e3)) + 1,
                      [&](int64_t begin, int64_t end) {
                        for (int64_t t = begin; t < end; ++t) {
                          int64_t part = t / (p.groups * blocks), g = t / blocks % p.groups,
                                  c = t % blocks * block_channels;
                          task(part, part * images, least(p.batch, (part + 1) * images), g, c,
                               least(block_channels, z.channels - c));
                        }
                      });
    if (!sums) return;
    int64_t size = p.out_channels * z.depth, there = gemm_ceil(p.batch, images);
    cpu::parallel_for(size, 16384, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Acc total = sums[i];
        for (int64_t part = 1; part < there; ++part) total += sums[part * size + i];
        grad_weight[i] = S(total);
      }
    });
  }

  // Panels of `width` rows whose k runs over the positions of several images, each rounded up to whole
  // elements.
  void pack_images(Elem* dst, int64_t width, bool pad, const S* src, int64_t row_stride, int64_t image_stride,
                   int64_t rows, int64_t images, int64_t positions) const {
    const int64_t depth = gemm_depth<Kind>(positions), steps = gemm_ceil(positions, Kind::kPack);
    if constexpr (kGemmTiles<Kind>) {
      for (int64_t i = 0; !pad && i < images; ++i)
        gemm_pack_rows(dst + i * depth, images * depth, depth, src + i * image_stride, row_stride, 1, rows,
                       positions);
      if (!pad) return;
    }
    for (int64_t r = 0; r < rows; r += width) {
      int64_t there = least(width, rows - r), w = pad ? width : there;
      for (int64_t i = 0; i < images; ++i, dst += depth * w) {
        GemmPacker<S, Elem>{dst, w, src + i * image_stride + r * row_stride, row_stride, 1, there, positions}
            .pack();
        std::memset(dst + steps * w, 0, size_t((depth - steps) * w) * sizeof(Elem));
      }
    }
  }

  void task(int64_t part, int64_t n0, int64_t n1, int64_t g, int64_t c, int64_t channels) {
    int64_t k = channels * f.taps, cols = gemm_ceil(k, Kind::kCols) * Kind::kCols;
    int64_t most_depth = together * gemm_depth<Kind>(block_positions);
    Pieces pieces;
    int64_t at_a = pieces.add<Elem>(block_rows * most_depth), at_b = pieces.add<Elem>(cols * most_depth);
    int64_t at_frame = pieces.add<S>(together * channels * f.channel_size());
    int64_t at_columns = pieces.add<S>(together * k * block_positions);
    int64_t at_tables = pieces.add<int64_t>(ConvTables::size(f, k, block_positions));
    char* scratch = pieces.allocate();
    auto* a = reinterpret_cast<Elem*>(scratch + at_a);
    auto* b = reinterpret_cast<Elem*>(scratch + at_b);
    auto* frame = reinterpret_cast<S*>(scratch + at_frame);
    auto* columns = reinterpret_cast<S*>(scratch + at_columns);
    int64_t to = g * z.outputs * z.depth + c * f.taps, frame_size = channels * f.channel_size();
    ConvTables tables(f, k, reinterpret_cast<int64_t*>(scratch + at_tables));
    std::memset(static_cast<void*>(frame), 0, together * frame_size * sizeof(S));
    for (int64_t n = n0; n < n1; n += together) {
      int64_t images = least(together, n1 - n);
      for (int64_t i = 0; i < images; ++i)
        tables.load(frame + i * frame_size,
                    in + ((n + i) * p.in_channels + g * z.channels + c) * p.in[0] * p.in[1], channels);
      for (int64_t j = 0; j < z.positions; j += block_positions) {
        int64_t positions = least(block_positions, z.positions - j);
        int64_t depth = images * gemm_depth<Kind>(positions);
        tables.block(j, j + positions);
        for (int64_t i = 0; i < images; ++i)
          tables.columns(columns + i * k * positions, positions, frame + i * frame_size, k);
        pack_images(b, Kind::kCols, true, columns, positions, k * positions, k, images, positions);
        for (int64_t r = 0; r < z.outputs; r += block_rows) {
          int64_t rows = least(block_rows, z.outputs - r), panel_rows = gemm_even(rows, Kind::kRows, 1);
          pack_images(a, panel_rows, false,
                      grad_out + (n * p.out_channels + g * z.outputs + r) * z.positions + j, z.positions,
                      p.out_channels * z.positions, rows, images, positions);
          GemmBlock<Kind> block{rows,
                                k,
                                depth,
                                panel_rows,
                                a,
                                b,
                                0,
                                nullptr,
                                n == n0 && j == 0,
                                false,
                                nullptr,
                                z.depth,
                                {grad_weight + to + r * z.depth, z.depth, nullptr, 1, 0}};
          if (sums) block.partial = sums + part * p.out_channels * z.depth + to + r * z.depth;
          block.run();
        }
      }
    }
  }
};

// ---- slots ----------------------------------------------------------------------------------------------

void conv(const LaunchContext& ctx, const ConvPlan& p, void* out, const void* in, const void* weight,
          const void* bias) {
  if (p.batch == 0 || p.out_channels == 0) return;
  with_chain(ctx, p.epilogue, [&](const ChainParts* epilogue) {
    if (winograd_suits(p))
      return winograd(ctx, p, static_cast<float*>(out), static_cast<const float*>(in),
                      static_cast<const float*>(weight), static_cast<const float*>(bias), epilogue);
    dispatch_gemm(p.dtype, [&](auto kind) {
      using S = typename decltype(kind)::Storage;
      Forward<decltype(kind)>{p,
                              static_cast<S*>(out),
                              static_cast<const S*>(in),
                              static_cast<const S*>(weight),
                              static_cast<const S*>(bias),
                              epilogue}
          .run(ctx);
    });
  });
}

// With stride 1 the gradient of the input is a convolution, too: of the output's gradient with the weights
// turned around. Adding up columns in a frame stalls where rows are shorter than a vector, for each addition
// reads what the one before wrote; copying columns from a frame does not.
bool turns(const ConvPlan& p, int64_t vector) {
  Sizes z(p);
  bool fits = p.stride[0] == 1 && p.stride[1] == 1 && z.channels >= most(kGemmRows, z.outputs / 4);
  for (int d = 0; d < 2; ++d) fits = fits && p.padding[d] <= (p.kernel[d] - 1) * p.dilation[d];
  return fits && p.out[1] < vector && p.kernel[0] * p.kernel[1] > 1 && p.batch * z.positions >= 128;
}

template <class Kind>
void turned(const LaunchContext& ctx, const ConvPlan& p, typename Kind::Storage* grad_in,
            const typename Kind::Storage* grad_out, const typename Kind::Storage* weight) {
  using S = typename Kind::Storage;
  Sizes z(p);
  int64_t taps = p.kernel[0] * p.kernel[1];
  auto* turned = static_cast<S*>(ctx.scratch(p.out_channels * z.depth * sizeof(S)));
  cpu::parallel_for(p.in_channels, 16384 / (z.outputs * taps) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c)
      for (int64_t o = 0; o < z.outputs; ++o) {
        S* to = turned + (c * z.outputs + o) * taps;
        const S* from = weight + ((c / z.channels * z.outputs + o) * z.channels + c % z.channels) * taps;
        for (int64_t k = 0; k < taps; ++k) to[k] = from[taps - 1 - k];
      }
  });
  ConvPlan q = p;
  q.in_channels = p.out_channels, q.out_channels = p.in_channels, q.epilogue = nullptr;
  for (int d = 0; d < 2; ++d) {
    q.in[d] = p.out[d], q.out[d] = p.in[d];
    q.padding[d] = (p.kernel[d] - 1) * p.dilation[d] - p.padding[d];
  }
  Forward<Kind>{q, grad_in, grad_out, turned, nullptr, nullptr}.run(ctx);
}

void conv_backward_input(const LaunchContext& ctx, const ConvPlan& p, void* grad_in, const void* grad_out,
                         const void* weight) {
  if (p.batch == 0) return;
  if (winograd_suits(p))
    return winograd_backward_input(ctx, p, static_cast<float*>(grad_in), static_cast<const float*>(grad_out),
                                   static_cast<const float*>(weight));
  dispatch_gemm(p.dtype, [&](auto kind) {
    using S = typename decltype(kind)::Storage;
    if (turns(p, kGemmVecBytes / int64_t(sizeof(S))))
      return turned<decltype(kind)>(ctx, p, static_cast<S*>(grad_in), static_cast<const S*>(grad_out),
                                    static_cast<const S*>(weight));
    BackwardInput<decltype(kind)>{p, static_cast<S*>(grad_in), static_cast<const S*>(grad_out),
                                  static_cast<const S*>(weight)}
        .run(ctx);
  });
}

void conv_backward_weight(const LaunchContext& ctx, const ConvPlan& p, void* grad_weight,
                          const void* grad_out, const void* in) {
  if (p.batch > 0 && winograd_suits_weight(p))
    return winograd_backward_weight(ctx, p, static_cast<float*>(grad_weight),
                                    static_cast<const float*>(grad_out), static_cast<const float*>(in));
  dispatch_gemm(p.dtype, [&](auto kind) {
    using Kind = decltype(kind);
    using S = typename Kind::Storage;
    int64_t size = p.out_channels * Sizes(p).depth;
    if (p.batch == 0) return void(std::memset(grad_weight, 0, size * sizeof(S)));
    int64_t parts = BackwardWeight<Kind>::parts_of(p);
    typename Kind::Acc* sums = nullptr;
    if (parts > 1 || !kGemmInPlace<Kind>)
      sums = static_cast<typename Kind::Acc*>(ctx.scratch(parts * size * sizeof(typename Kind::Acc)));
    BackwardWeight<Kind>{
        p,    static_cast<S*>(grad_weight), static_cast<const S*>(grad_out), static_cast<const S*>(in), sums,
        parts}
        .run();
  });
}

}  // namespace

WT_KERNEL(conv, conv);
WT_KERNEL(conv_backward_input, conv_backward_input);
WT_KERNEL(conv_backward_weight, conv_backward_weight);

}  // namespace warptape::kernels::WARPTAPE_ISA
