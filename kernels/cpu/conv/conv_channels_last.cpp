// Convolution with channels innermost: one matrix product whose rows are positions of the output, for all
// images together. What a position sees of the image are runs of memory; they are copied, row by row, into
// the block of A that the product is about to read.
#include "kernels/conv/conv.h"
#include "kernels/cpu/fused/chain_parts.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/vector/bounds.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

// ---- rows -----------------------------------------------------------------------------------------------

// Rows are the positions (y, x) of a grid; tap t of a dim lies at position * step + base + t * delta of the
// image [size, size, pitch], of whose pixels it gives `channels` values. A row's values are [tap y, tap x,
// channel].
struct Taps {
  int64_t size[2], grid[2], step[2], base[2], delta[2], count[2];
  int64_t channels, pitch;
  WT_INLINE int64_t positions() const { return grid[0] * grid[1]; }
  WT_INLINE int64_t depth() const { return count[0] * count[1] * channels; }
};

// n values as they are, or widened.
template <class E, class S>
WT_INLINE void copy_values(E* to, const S* from, int64_t n) {
  if constexpr (sizeof(E) == 2) {
    std::memcpy(static_cast<void*>(to), from, size_t(n) * sizeof(S));
  } else {
    constexpr int64_t L = kGemmVecBytes / sizeof(E);
    int64_t i = 0;
    for (; i + L <= n; i += L) gemm_store(to + i, gemm_load_as<E>(from + i, L));
    if (i < n) gemm_store_part(to + i, gemm_load_as<E>(from + i, n - i), n - i);
  }
}

// Copies rows of images; Cell is what A's rows hold: elements, or the halves of pairs.
template <class Kind>
struct RowReader {
  using S = typename Kind::Storage;
  using Elem = typename Kind::Elem;
  using Cell = std::conditional_t<Kind::kPack == 2, S, Elem>;
  static constexpr int64_t kMostRuns = Kind::kDepth * Kind::kPack + 1;
  struct Run {
    int64_t at, count, down, along;  // in the row; from the row's first tap: lines, and values along a line
  };
  const S* images;
  const Taps& t;

  // Values [k, k + n) of rows [m, m + rows), n at most kDepth elements; zeros fill up the last element.
  void read(Cell* to, int64_t ld, int64_t m, int64_t rows, int64_t k, int64_t n) const {
    const int64_t filled = kGemmTiles<Kind> ? gemm_depth<Kind>(n) * Kind::kPack : n + n % Kind::kPack;
    Run runs[kMostRuns];
    const int64_t count = runs_of(runs, k, n), line = t.size[1] * t.pitch;
    int64_t image = m / t.positions(), y = m % t.positions() / t.grid[1], x = m % t.grid[1];
    for (; rows > 0; --rows, to += ld) {
      const S* from = images + image * t.size[0] * line;
      const int64_t top = y * t.step[0] + t.base[0], left = (x * t.step[1] + t.base[1]) * t.pitch;
      for (const Run* r = runs; r < runs + count; ++r)
        copy_run(to + r->at, from, top + r->down, left + r->along, r->count, line);
      for (int64_t i = n; i < filled; ++i) to[i] = Cell(0.0f);
      if (++x < t.grid[1]) continue;
      x = 0;
      if (++y < t.grid[0]) continue;
      y = 0, ++image;
    }
  }

 private:
  int64_t runs_of(Run* runs, int64_t k, int64_t n) const {
    // Taps that are neighbours in memory are one run.
    const int64_t together = t.delta[1] == 1 && t.pitch == t.channels ? t.count[1] : 1;
    const int64_t length = together * t.channels;
    int64_t count = 0;
    for (int64_t at = 0; at < n;) {
      const int64_t first = k + at, run = first / length, inside = first % length;
      const int64_t tap = run * together, size = least(length - inside, n - at);
      runs[count++] = {at, size, tap / t.count[1] * t.delta[0],
                       tap % t.count[1] * t.delta[1] * t.pitch + inside};
      at += size;
    }
    return count;
  }
  WT_INLINE void copy_run(Cell* to, const S* image, int64_t y, int64_t first, int64_t n, int64_t line) const {
    if (y < 0 || y >= t.size[0]) return void(std::memset(static_cast<void*>(to), 0, n * sizeof(Cell)));
    const S* from = image + y * line + first;
    if (first >= 0 && first + n <= line) return copy_values(to, from, n);
    const int64_t before = least(most(-first, 0), n), behind = least(most(first + n - line, 0), n - before);
    std::memset(static_cast<void*>(to), 0, before * sizeof(Cell));
    copy_values(to + before, from + before, n - before - behind);
    std::memset(static_cast<void*>(to + n - behind), 0, behind * sizeof(Cell));
  }
};

// ---- rows times a packed matrix -------------------------------------------------------------------------

// The matrices [depth, n] of all groups, packed as gemm_with_shared reads them, one after the other.
template <class Kind>
struct PackedMatrices {
  using Elem = typename Kind::Elem;
  int64_t depth, n, groups;  // depth in elements
  int64_t size = gemm_ceil(n, Kind::kCols) * Kind::kCols * depth;
  WT_INLINE size_t bytes() const { return sizeof(Elem) * size_t(groups * size + kGemmVecBytes); }

  // pack(to, group, column, columns, p, depth) packs a part of a group's matrix; p and depth in elements.
  template <class Pack>
  void fill(Elem* b, Pack&& pack) const {
    const int64_t block_cols = gemm_even(n, Kind::kBlockCols, Kind::kCols), across = gemm_ceil(n, block_cols);
    const int64_t block_depth = gemm_even(depth, Kind::kDepth, Kind::kSteps),
                  deep = gemm_ceil(depth, block_depth);
    cpu::parallel_for(groups * across * deep, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t p = i % deep * block_depth, j = i / deep % across * block_cols, g = i / (deep * across);
        const int64_t there = least(block_depth, depth - p);
        pack(b + g * size + gemm_shared_at<Kind>(n, j, p, there), g, j, least(block_cols, n - j), p, there);
      }
    });
  }
};

template <class Kind>
struct RowProduct {
  using S = typename Kind::Storage;
  using Elem = typename Kind::Elem;
  using Cell = typename RowReader<Kind>::Cell;
  static constexpr int kLda = Kind::kDepth + 64 / int(sizeof(Elem));  // rows start in different cache sets
  const Taps& t;
  int64_t batch, n, groups;
  int64_t rows_all = batch * t.positions();
  int64_t rows = gemm_even(rows_all, 336, 1);  // in a task
  int64_t row_tasks = gemm_ceil(rows_all, rows);
  int64_t cols = columns_of(n, row_tasks* groups);
  int64_t col_tasks = gemm_ceil(n, cols);
  const Elem* packed = nullptr;          // PackedMatrices, if they were made before
  const ChainParts* epilogue = nullptr;  // on the result, where rows follow one another

  static int64_t columns_of(int64_t n, int64_t tasks) {
    int64_t parts = 1;
    while (tasks * parts < 8 && n >= parts * 192) parts *= 2;
    return gemm_even(n, least(gemm_ceil(n, parts), GemmSharedSize<Kind>::kCols), Kind::kCols);
  }
  WT_INLINE GemmBlocking<Kind> blocking(int64_t m, int64_t c, const GemmOut<Kind>& out) const {
    GemmBlocking<Kind> bl(m, c, t.depth(), false, out);
    if constexpr (kGemmTiles<Kind>) return bl;
    bl.set_block_cols(m, gemm_even(cols, Kind::kBlockCols, Kind::kCols));
    bl.a_bytes = bl.align(sizeof(Elem) * bl.block_rows * kLda);
    return bl;
  }

  // pack() as of PackedMatrices: all is packed before where several tasks read it, else each task packs what
  // it multiplies. place(m) gives
  // where row m of the result begins. `lines`: rows that follow one another do so in memory, ldc apart; else
  // each is put in its place.
  template <class Pack, class Place>
  void run(const LaunchContext& ctx, const S* images, const S* bias, int64_t ldc, bool lines, Pack&& pack,
           Place&& place) const {
    const Elem* b = packed || row_tasks == 1 ? packed : pack_all(ctx, pack);
    cpu::parallel_for(row_tasks * groups * col_tasks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        task(images, b, bias, ldc, lines, pack, place, i / (groups * col_tasks) * rows,
             i / col_tasks % groups, i % col_tasks * cols);
    });
    if (epilogue && col_tasks * groups > 1) epilogue->run_all();  // no task has whole rows
  }

 private:
  PackedMatrices<Kind> matrices() const { return {gemm_depth<Kind>(t.depth()), n, groups}; }

  template <class Pack>
  const Elem* pack_all(const LaunchContext& ctx, Pack&& pack) const {
    auto* b = static_cast<Elem*>(ctx.scratch(matrices().bytes()));
    matrices().fill(b, pack);
    return b;
  }

  template <class Pack, class Place>
  void task(const S* images, const Elem* b, const S* bias, int64_t ldc, bool lines, Pack&& pack,
            Place&& place, int64_t m0, int64_t g, int64_t c0) const {
    const int64_t m = least(rows, rows_all - m0), c = least(cols, n - c0);
    GemmOut<Kind> out{lines ? place(m0) + g * n + c0 : nullptr, lines ? ldc : c,
                      bias ? bias + g * n + c0 : nullptr, 1, 0};
    GemmSharedSize<Kind> size{m, c, blocking(m, c, out), c0, n};
    const int64_t at_side = (int64_t(b ? size.bytes() : size.bl.bytes()) + 63) / 64 * 64;
    char* scratch =
        static_cast<char*>(cpu::thread_scratch(size_t(at_side + (lines ? 0 : m * c * int64_t(sizeof(S))))));
    if (!lines) out.c = reinterpret_cast<S*>(scratch + at_side);
    const RowReader<Kind> reader{images + g * t.channels, t};
    const auto pack_a = [&](Elem* to, int64_t i, int64_t count, int64_t p, int64_t depth, int64_t) {
      const int64_t k = p * Kind::kPack, lda = kGemmTiles<Kind> ? depth : kLda;
      reader.read(reinterpret_cast<Cell*>(to), lda * Kind::kPack, m0 + i, count, k,
                  least(depth * Kind::kPack, t.depth() - k));
    };
    const auto pack_b = [&](Elem* to, int64_t j, int64_t count, int64_t p, int64_t depth) {
      pack(to, g, c0 + j, count, p, depth);
    };
    if (b)
      gemm_with_shared<Kind, kLda>(size, pack_a, b + g * matrices().size, out, scratch);
    else
      gemm_serial<Kind, kLda>(m, c, size.bl, pack_a, pack_b, nullptr, 0, out, scratch);
    for (int64_t i = 0; !lines && i < m; ++i)
      std::memcpy(static_cast<void*>(place(m0 + i) + g * n + c0), out.c + i * c, size_t(c) * sizeof(S));
    if (epilogue && col_tasks * groups == 1) epilogue->run(m0 * n, (m0 + m) * n);
  }
};

// ---- forward --------------------------------------------------------------------------------------------

WT_INLINE Taps forward_taps(const ConvPlan& p) {
  Taps t{};
  for (int d = 0; d < 2; ++d) {
    t.size[d] = p.in[d], t.grid[d] = p.out[d], t.step[d] = p.stride[d], t.base[d] = -p.padding[d];
    t.delta[d] = p.dilation[d], t.count[d] = p.kernel[d];
  }
  t.channels = p.in_channels / p.groups, t.pitch = p.in_channels;
  // A 1 x 1 kernel sees all images as one line.
  if (p.kernel[0] * p.kernel[1] == 1 && p.stride[0] * p.stride[1] == 1 && p.padding[0] + p.padding[1] == 0) {
    t.size[1] = t.grid[1] = p.batch * p.in[0] * p.in[1];
    t.size[0] = t.grid[0] = 1;
  }
  return t;
}

// What packs weight [O, taps, channels] as a matrix of each group.
template <class Kind>
WT_INLINE auto weight_packer(const typename Kind::Storage* weight, int64_t n, int64_t depth) {
  return [=](typename Kind::Elem* to, int64_t g, int64_t j, int64_t cols, int64_t at, int64_t deep) {
    const int64_t k = at * Kind::kPack;
    gemm_pack_b<Kind>(to, weight + (g * n + j) * depth + k, depth, 1, cols,
                      least(deep * Kind::kPack, depth - k));
  };
}

template <class Kind>
void forward(const LaunchContext& ctx, const ConvPlan& p, typename Kind::Storage* out,
             const typename Kind::Storage* in, const typename Kind::Storage* weight,
             const typename Kind::Storage* bias, const ChainParts* epilogue) {
  const Taps t = forward_taps(p);
  const int64_t n = p.out_channels / p.groups;
  RowProduct<Kind> product{t, p.batch * p.out[0] * p.out[1] / t.positions(), n, p.groups};
  product.packed = static_cast<const typename Kind::Elem*>(p.packed);
  product.epilogue = epilogue;
  product.run(ctx, in, bias, p.out_channels, true, weight_packer<Kind>(weight, n, t.depth()),
              [&](int64_t m) { return out + m * p.out_channels; });
}

// ---- gradient of the input ------------------------------------------------------------------------------

// Positions y of the input's dim with y % stride == phase, and the kernel elements that they meet, from the
// last to the first: element last - t * apart reads the output at position + base + t * delta.
struct Phase {
  int64_t positions, count, last, apart, base, delta;
  WT_INLINE Phase(const ConvPlan& p, int d, int64_t phase)
      : positions((p.in[d] - phase + p.stride[d] - 1) / p.stride[d]),
        count(0),
        last(0),
        apart(1),
        base(0),
        delta(1) {
    for (int64_t k = 0; k < p.kernel[d]; ++k) {
      if ((phase + p.padding[d] - k * p.dilation[d]) % p.stride[d]) continue;
      if (count++) apart = k - last;
      last = k;
    }
    base = (phase + p.padding[d] - last * p.dilation[d]) / p.stride[d];
    delta = apart * p.dilation[d] / p.stride[d];
  }
};

template <class Kind>
struct BackwardInput {
  using S = typename Kind::Storage;
  using Elem = typename Kind::Elem;
  const ConvPlan& p;
  S* grad_in;
  const S *grad_out, *weight;
  int64_t n = p.in_channels / p.groups, outputs = p.out_channels / p.groups;

  void run(const LaunchContext& ctx) const {
    for (int64_t y = 0; y < least(p.stride[0], p.in[0]); ++y)
      for (int64_t x = 0; x < least(p.stride[1], p.in[1]); ++x)
        phase(ctx, y, x, Phase(p, 0, y), Phase(p, 1, x));
  }

  void phase(const LaunchContext& ctx, int64_t y0, int64_t x0, const Phase& down, const Phase& along) const {
    const int64_t positions = down.positions * along.positions;
    const auto place = [&](int64_t m) {
      const int64_t y = m % positions / along.positions * p.stride[0] + y0,
                    x = m % along.positions * p.stride[1] + x0;
      return grad_in + ((m / positions * p.in[0] + y) * p.in[1] + x) * p.in_channels;
    };
    if (down.count == 0 || along.count == 0)
      return cpu::parallel_for(p.batch * positions, 16384 / p.in_channels + 1, [&](int64_t m, int64_t end) {
        for (; m < end; ++m) std::memset(static_cast<void*>(place(m)), 0, p.in_channels * sizeof(S));
      });
    Taps t{};
    t.channels = outputs, t.pitch = p.out_channels;
    const Phase* phases[] = {&down, &along};
    for (int d = 0; d < 2; ++d) {
      const Phase& f = *phases[d];
      t.size[d] = p.out[d], t.grid[d] = f.positions, t.step[d] = 1, t.base[d] = f.base, t.delta[d] = f.delta;
      t.count[d] = f.count;
    }
    const RowProduct<Kind> product{t, p.batch, n, p.groups};
    product.run(
        ctx, grad_out, nullptr, p.in_channels, p.stride[0] * p.stride[1] == 1,
        [&](Elem* to, int64_t g, int64_t j, int64_t cols, int64_t at, int64_t deep) {
          pack(to, down, along, g, j, cols, at, deep);
        },
        place);
  }

  // Row k = (tap, output) of B is the line of channels of weight [output, kernel element].
  void pack(Elem* to, const Phase& down, const Phase& along, int64_t g, int64_t j, int64_t cols, int64_t at,
            int64_t deep) const {
    const int64_t end = least((at + deep) * Kind::kPack, down.count * along.count * outputs);
    const int64_t step = p.kernel[0] * p.kernel[1] * n;  // from one output to the next
    for (int64_t c = 0; c < cols; c += Kind::kCols, to += deep * Kind::kCols) {
      Elem* dst = to;
      for (int64_t k = at * Kind::kPack; k < end;) {
        const int64_t tap = k / outputs, o = k % outputs, count = least(outputs - o, end - k);
        const int64_t ky = down.last - tap / along.count * down.apart,
                      kx = along.last - tap % along.count * along.apart;
        const S* from = weight + (g * outputs + o) * step + (ky * p.kernel[1] + kx) * n + j + c;
        GemmPacker<S, Elem>{dst, Kind::kCols, from, 1, step, least(Kind::kCols, cols - c), count}
            .along_rows();
        dst += count / Kind::kPack * Kind::kCols;
        k += count;
      }
      std::memset(dst, 0, size_t(to + deep * Kind::kCols - dst) * sizeof(Elem));
    }
  }
};

// ---- gradient of the weight -----------------------------------------------------------------------------

// Sums over the positions, in blocks: lines of the output's gradient times what the positions see.
template <class Kind>
struct BackwardWeight {
  using S = typename Kind::Storage;
  using Elem = typename Kind::Elem;
  using Acc = typename Kind::Acc;
  using Cell = typename RowReader<Kind>::Cell;
  static constexpr int64_t kPiece = 32, kBlock = 256;  // positions read, and multiplied, at a time
  const ConvPlan& p;
  S* grad_weight;
  const S *grad_out, *in;
  Taps t = forward_taps(p);
  int64_t outputs = p.out_channels / p.groups, depth = t.depth(), size = p.out_channels * depth;
  int64_t all = p.batch * p.out[0] * p.out[1];
  int64_t cols = gemm_even(depth, 10 * Kind::kCols, Kind::kCols), col_tasks = gemm_ceil(depth, cols);
  int64_t block_rows = gemm_even(outputs, 12 * kGemmRows, 1);
  // Positions are summed in parts, and the parts in order, where there are too few other tasks.
  int64_t parts = most(1, least(gemm_ceil(8, col_tasks* p.groups), all / (2 * kBlock)));
  int64_t part = gemm_ceil(gemm_ceil(all, parts), kBlock) * kBlock;

  void run(const LaunchContext& ctx) {
    parts = gemm_ceil(all, part);
    Acc* sums = nullptr;
    if (parts > 1 || !kGemmInPlace<Kind>) sums = static_cast<Acc*>(ctx.scratch(parts * size * sizeof(Acc)));
    cpu::parallel_for(parts * p.groups * col_tasks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        task(sums, i / (p.groups * col_tasks), i / col_tasks % p.groups, i % col_tasks * cols);
    });
    if (!sums) return;
    cpu::parallel_for(size, 16384, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Acc total = sums[i];
        for (int64_t q = 1; q < parts; ++q) total += sums[q * size + i];
        grad_weight[i] = S(total);
      }
    });
  }

  void task(Acc* sums, int64_t q, int64_t g, int64_t j) const {
    const int64_t c = least(cols, depth - j), wide = gemm_ceil(c, Kind::kCols) * Kind::kCols;
    const int64_t deep = kBlock / Kind::kPack, panel_rows = gemm_even(block_rows, Kind::kRows, 1);
    const int64_t bytes_a = (block_rows * deep + kGemmVecBytes) * int64_t(sizeof(Elem)) / 64 * 64 + 64;
    const int64_t bytes_b = wide * deep * int64_t(sizeof(Elem));
    char* scratch = static_cast<char*>(
        cpu::thread_scratch(size_t(bytes_a + bytes_b + (kPiece + 1) * wide * int64_t(sizeof(Cell)) + 64)));
    auto* a = reinterpret_cast<Elem*>(scratch);
    auto* b = reinterpret_cast<Elem*>(scratch + bytes_a);
    auto* cells = reinterpret_cast<Cell*>(scratch + bytes_a + bytes_b);
    const int64_t end = least(all, (q + 1) * part), to = g * outputs * depth + j;
    for (int64_t m = q * part; m < end; m += kBlock) {
      cpu::poll_interrupt();
      const int64_t count = least(kBlock, end - m), steps = gemm_depth<Kind>(count);
      read_block(b, cells, wide, g, m, count, j, c);
      for (int64_t r = 0; r < outputs; r += block_rows) {
        const int64_t rows = least(block_rows, outputs - r);
        gemm_pack_a<Kind>(a, panel_rows, grad_out + m * p.out_channels + g * outputs + r, 1, p.out_channels,
                          rows, count);
        GemmBlock<Kind> block{rows,
                              c,
                              steps,
                              panel_rows,
                              a,
                              b,
                              0,
                              nullptr,
                              m == q * part,
                              false,
                              nullptr,
                              depth,
                              {grad_weight + to + r * depth, depth, nullptr, 1, 0}};
        if (sums) block.partial = sums + q * size + to + r * depth;
        block.run();
      }
    }
  }

  // Panels of what positions [m, m + count) see: columns [j, j + c).
  void read_block(Elem* b, Cell* cells, int64_t wide, int64_t g, int64_t m, int64_t count, int64_t j,
                  int64_t c) const {
    const RowReader<Kind> reader{in + g * t.channels, t};
    const int64_t steps = gemm_depth<Kind>(count), filled = gemm_ceil(count, Kind::kPack);
    for (int64_t v = 0; filled < steps && v < c; v += Kind::kCols)
      std::memset(b + v * steps + filled * Kind::kCols, 0,
                  size_t((steps - filled) * Kind::kCols) * sizeof(Elem));
    for (int64_t i = 0; i < count; i += kPiece) {
      const int64_t there = least(kPiece, count - i);
      reader.read(cells, wide, m + i, there, j, c);
      for (int64_t v = 0; v < c; v += Kind::kCols)
        GemmPacker<Cell, Elem>{b + v * steps + i / Kind::kPack * Kind::kCols,
                               Kind::kCols,
                               cells + v,
                               1,
                               wide,
                               least(Kind::kCols, c - v),
                               there}
            .along_rows();
    }
  }
};

// ---- slots ----------------------------------------------------------------------------------------------

void conv_channels_last(const LaunchContext& ctx, const ConvPlan& p, void* out, const void* in,
                        const void* weight, const void* bias) {
  if (p.batch == 0 || p.out_channels == 0) return;
  with_chain(ctx, p.epilogue, [&](const ChainParts* epilogue) {
    dispatch_gemm(p.dtype, [&](auto kind) {
      using S = typename decltype(kind)::Storage;
      forward<decltype(kind)>(ctx, p, static_cast<S*>(out), static_cast<const S*>(in),
                              static_cast<const S*>(weight), static_cast<const S*>(bias), epilogue);
    });
  });
}

int64_t conv_channels_last_pack(const LaunchContext&, const ConvPlan& p, void* packed, const void* weight) {
  int64_t bytes = 0;
  dispatch_gemm(p.dtype, [&](auto kind) {
    using Kind = decltype(kind);
    const int64_t n = p.out_channels / p.groups,
                  depth = p.kernel[0] * p.kernel[1] * (p.in_channels / p.groups);
    const PackedMatrices<Kind> matrices{gemm_depth<Kind>(depth), n, p.groups};
    bytes = int64_t(matrices.bytes());
    if (packed)
      matrices.fill(static_cast<typename Kind::Elem*>(packed),
                    weight_packer<Kind>(static_cast<const typename Kind::Storage*>(weight), n, depth));
  });
  return bytes;
}

void conv_channels_last_backward_input(const LaunchContext& ctx, const ConvPlan& p, void* grad_in,
                                       const void* grad_out, const void* weight) {
  if (p.batch == 0) return;
  const auto run = [&](auto kind) {
    using S = typename decltype(kind)::Storage;
    BackwardInput<decltype(kind)>{p, static_cast<S*>(grad_in), static_cast<const S*>(grad_out),
                                  static_cast<const S*>(weight)}
        .run(ctx);
  };
  dispatch_gemm(p.dtype, [&](auto kind) {
    // Pairs do not reach over the end of a tap.
    if constexpr (decltype(kind)::kPack == 2) {
      if (p.out_channels / p.groups % 2) return run(GemmBf16{});
    }
    run(kind);
  });
}

void conv_channels_last_backward_weight(const LaunchContext& ctx, const ConvPlan& p, void* grad_weight,
                                        const void* grad_out, const void* in) {
  dispatch_gemm(p.dtype, [&](auto kind) {
    using S = typename decltype(kind)::Storage;
    BackwardWeight<decltype(kind)> gradient{p, static_cast<S*>(grad_weight), static_cast<const S*>(grad_out),
                                            static_cast<const S*>(in)};
    if (gradient.all == 0) return void(std::memset(grad_weight, 0, gradient.size * sizeof(S)));
    gradient.run(ctx);
  });
}

}  // namespace

WT_KERNEL(conv_channels_last, conv_channels_last);
WT_KERNEL(conv_channels_last_pack, conv_channels_last_pack);
WT_KERNEL(conv_channels_last_backward_input, conv_channels_last_backward_input);
WT_KERNEL(conv_channels_last_backward_weight, conv_channels_last_backward_weight);

}  // namespace warptape::kernels::WARPTAPE_ISA
