// Convolution on bytes, channels innermost: tiles of a few positions of the output by a few panels of 16
// outputs. What a position sees of an image are runs of memory, one a kernel row, that the tile reads where
// they lie; images with padding are copied first, as many rows as a task needs. The dot product of bytes is
// VNNI's where the processor has it, else one of 16-bit pairs; both are exact, as are AMX's tiles, for which
// what the positions see is copied.
#include "kernels/quant/int8_conv.h"

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/vector/amx.h"
#include "kernels/cpu/vector/bounds.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int kLanes = kGemmVecBytes / 4;
constexpr int kEach = kPanelOutputs / kLanes;  // vectors of a panel
using Words = GemmVec<int32_t>;                // four bytes a lane
using Floats = GemmVec<float>;

#if defined(__AVX512F__)
constexpr int kRows = 6, kPanels = 4;  // 6 x 4 sums, 4 of the weight, 1 of x: 29 of 32 registers
#elif defined(__AVX2__)
constexpr int kRows = 4, kPanels = 1;
#else
constexpr int kRows = 2, kPanels = 1;
#endif
constexpr int64_t kTaskPositions = 240;  // whole tiles
constexpr int64_t kLeastTasks = 8;

// sum += x w for four bytes: of x without a sign, of w with one.
template <bool Vnni>
WT_INLINE void dot(Words& sum, Words x, Words w) {
#if defined(__AVX512F__)
  if constexpr (Vnni) {  // not an intrinsic: the file is compiled without VNNI, and the caller has asked
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return;
  }
#endif
  using Unsigned = GemmVec<uint16_t>;
  using Signed = GemmVec<int16_t>;
  const Unsigned ux = (Unsigned)x;
  const Signed sw = (Signed)w;
  sum += gemm_pairs((Signed)(ux & 0xff), (Signed)((Unsigned)sw << 8) >> 8);
  sum += gemm_pairs((Signed)(ux >> 8), sw >> 8);
}

// The runs of memory that a position reads: `runs` of `words` words, the first at the position's place.
struct Runs {
  int64_t words, across, down;     // words of a run, runs in a kernel row, kernel rows
  int64_t step_across, step_down;  // bytes
};

// ---- what becomes of sums -------------------------------------------------------------------------------

// The bytes of 16 results, of which n are there.
WT_INLINE void put_bytes(const float* v, float low, int64_t n, uint8_t* to) {
  alignas(64) uint8_t bytes[kPanelOutputs];
  for (int i = 0; i < kPanelOutputs; ++i) {
    const float above = v[i] > low ? v[i] : low;
    bytes[i] = uint8_t(__builtin_nearbyintf(above < 255 ? above : 255));
  }
  std::memcpy(to, bytes, size_t(n));
}

void finish_part(const Int8ConvPlan& p, int64_t at, int64_t first, int64_t n, const int32_t* sums) {
  alignas(64) float v[kPanelOutputs];
  for (int i = 0; i < kPanelOutputs; ++i) v[i] = float(sums[i]) * p.scale[first + i] + p.bias[first + i];
  if (p.residual)
    for (int i = 0; i < n; ++i) v[i] += float(p.residual[at + i]) * p.residual_scale;
  if (!p.floats) return put_bytes(v, p.low, n, static_cast<uint8_t*>(p.out_data) + at);
  float* to = static_cast<float*>(p.out_data) + at;
  for (int i = 0; i < n; ++i) to[i] = v[i] > p.low ? v[i] : p.low;
}

WT_INLINE void finish(const Int8ConvPlan& p, int64_t position, int64_t panel, const int32_t* sums) {
  const int64_t first = panel * kPanelOutputs, n = least(kPanelOutputs, p.out_channels - first);
  const int64_t at = position * p.out_channels + first;
#if defined(__AVX512F__)
  if (n == kPanelOutputs && !p.floats) {
    __m512 v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums)), _mm512_loadu_ps(p.scale + first),
                               _mm512_loadu_ps(p.bias + first));
    if (p.residual) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p.residual + at));
      v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)), _mm512_set1_ps(p.residual_scale),
                          v);
    }
    v = _mm512_min_ps(_mm512_max_ps(v, _mm512_set1_ps(p.low)), _mm512_set1_ps(255));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<uint8_t*>(p.out_data) + at),
                     _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(v)));
    return;
  }
#endif
  finish_part(p, at, first, n, sums);
}

// ---- tiles ----------------------------------------------------------------------------------------------

// R positions, which follow each other from `position` on and begin to read at x[0 .. R), by P panels.
template <bool Vnni, int R, int P>
[[gnu::noinline]] void tile(const Int8ConvPlan& p, const Runs& t, const uint8_t* const* x, int64_t panel,
                            int64_t panel_bytes, int64_t position) {
  constexpr int V = P * kEach;
  Words sums[R][V] = {};
  const int8_t* w = p.weight + panel * panel_bytes;
  for (int64_t down = 0; down < t.down; ++down) {
    for (int64_t across = 0; across < t.across; ++across) {
      const uint8_t* from[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) from[r] = x[r] + down * t.step_down + across * t.step_across;
      for (int64_t i = 0; i < t.words; ++i, w += 64) {
        Words wv[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v)
          wv[v] = gemm_load(
              reinterpret_cast<const int32_t*>(w + v / kEach * panel_bytes + v % kEach * kGemmVecBytes));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          int32_t word;
          std::memcpy(&word, from[r] + 4 * i, 4);
          const Words xv = gemm_splat(word);
#pragma GCC unroll 8
          for (int v = 0; v < V; ++v) dot<Vnni>(sums[r][v], xv, wv[v]);
        }
      }
    }
  }
  alignas(64) int32_t out[R][P * kPanelOutputs];  // by constant places, or the sums would not be registers
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) gemm_store(out[r] + v * kLanes, sums[r][v]);
  for (int r = 0; r < R; ++r)
    for (int q = 0; q < P; ++q) finish(p, position + r, panel + q, out[r] + q * kPanelOutputs);
}

template <bool Vnni, int P, int R = kRows>
void tile_of(int64_t rows, const Int8ConvPlan& p, const Runs& t, const uint8_t* const* x, int64_t panel,
             int64_t panel_bytes, int64_t position) {
  if constexpr (R > 0) {
    if (rows == R) return tile<Vnni, R, P>(p, t, x, panel, panel_bytes, position);
    tile_of<Vnni, P, R - 1>(rows, p, t, x, panel, panel_bytes, position);
  }
}

// ---- AMX ------------------------------------------------------------------------------------------------

#if defined(__AVX512F__)
// All positions of a task by two panels at a time: tiles of sums 0 to 3, of x 4 and 5, of the weight 6 and 7.
struct TileTask {
  static constexpr int64_t kStep = kTileHeight;  // words of k, 64 bytes, in a step
  const Int8ConvPlan& p;
  const Runs& t;
  int64_t panel_bytes;
  int64_t words = t.down * t.across * t.words, steps = gemm_ceil(words, kStep), lda = steps * kTileRowBytes;
  uint8_t* rows;  // [positions, lda], zeros behind the words
  int8_t* ends;   // the last steps of two panels, filled up with zeros

  static size_t bytes(int64_t panel_bytes, int64_t positions) {
    return size_t(positions * gemm_ceil(panel_bytes, 1024) * kTileRowBytes + 2 * 1024);
  }
  TileTask(const Int8ConvPlan& plan, const Runs& runs, int64_t panel, uint8_t* scratch)
      : p(plan),
        t(runs),
        panel_bytes(panel),
        rows(scratch + 2048),
        ends(reinterpret_cast<int8_t*>(scratch)) {}

  void copy(int64_t row, const uint8_t* from) const {
    uint8_t* to = rows + row * lda;
    for (int64_t down = 0; down < t.down; ++down)
      for (int64_t across = 0; across < t.across; ++across, to += 4 * t.words)
        std::memcpy(to, from + down * t.step_down + across * t.step_across, size_t(4 * t.words));
    std::memset(to, 0, size_t(rows + (row + 1) * lda - to));
  }
  // `count` positions from `position` on by `panels` panels, 2 at most.
  void multiply(int64_t count, int64_t panel, int64_t panels, int64_t position) const {
    const int8_t* w = p.weight + panel * panel_bytes;
    for (int64_t q = 0; q < panels; ++q) {
      const int64_t whole = (steps - 1) * 1024, left = panel_bytes - whole;
      std::memcpy(ends + q * 1024, w + q * panel_bytes + whole, size_t(left));
      std::memset(ends + q * 1024 + left, 0, size_t(1024 - left));
    }
    alignas(64) int32_t sums[4][kTileHeight * kPanelOutputs];
    int64_t shaped = 0;
    TileScope tiles(shapes(count));
    for (int64_t m = 0; m < count; m += 2 * kTileHeight) {
      const int64_t there = least(2 * kTileHeight, count - m);
      if (shaped && there != shaped) tiles.use(shapes(there));
      shaped = there;
      if (there > kTileHeight)
        product<2>(rows + m * lda, w, panels, sums);
      else
        product<1>(rows + m * lda, w, panels, sums);
      for (int64_t r = 0; r < there; ++r)
        for (int64_t q = 0; q < panels; ++q)
          finish(p, position + m + r, panel + q,
                 sums[r / kTileHeight * 2 + q] + r % kTileHeight * kPanelOutputs);
    }
  }

 private:
  static TileShapes shapes(int64_t count) {
    const int64_t top = least(count, kTileHeight), bottom = least(count, 2 * kTileHeight) - top;
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile) {
      const int64_t height = tile >= 6 ? kTileHeight : tile == 4 || tile < 2 ? top : bottom;
      if (height) shapes.set(tile, int(height), kTileRowBytes);
    }
    return shapes;
  }
  template <int Down>
  void product(const uint8_t* x, const int8_t* w, int64_t panels,
               int32_t (&sums)[4][kTileHeight * kPanelOutputs]) const {
    tile_zero<0>();
    tile_zero<1>();
    if constexpr (Down == 2) {
      tile_zero<2>();
      tile_zero<3>();
    }
    for (int64_t s = 0; s < steps; ++s, x += kTileRowBytes) {
      const bool last = s + 1 == steps;
      tile_load<4>(x, lda);
      tile_load<6>(last ? ends : w + s * 1024, kTileRowBytes);
      tile_product_us<0, 4, 6>();
      if constexpr (Down == 2) {
        tile_load<5>(x + kTileHeight * lda, lda);
        tile_product_us<2, 5, 6>();
      }
      if (panels < 2) continue;
      tile_load<7>(last ? ends + 1024 : w + panel_bytes + s * 1024, kTileRowBytes);
      tile_product_us<1, 4, 7>();
      if constexpr (Down == 2) tile_product_us<3, 5, 7>();
    }
    tile_store<0>(sums[0], kTileRowBytes);
    tile_store<1>(sums[1], kTileRowBytes);
    if constexpr (Down == 2) {
      tile_store<2>(sums[2], kTileRowBytes);
      tile_store<3>(sums[3], kTileRowBytes);
    }
  }
};
#endif

// ---- tasks ----------------------------------------------------------------------------------------------

// An image's rows from `top` on, with what lies outside of it, channels filled up to whole words.
struct Padded {
  int64_t width, pitch;  // pixels of a row, bytes of a pixel
  WT_INLINE int64_t row() const { return width * pitch; }
};

void copy_rows(const Int8ConvPlan& p, const Padded& d, const uint8_t* image, int64_t top, int64_t rows,
               uint8_t* to) {
  const int64_t channels = p.in_channels, left = least(p.padding[1], d.width);
  for (int64_t y = top; y < top + rows; ++y, to += d.row()) {
    if (y < 0 || y >= p.in[0]) {
      std::memset(to, p.pad, size_t(d.row()));
      continue;
    }
    const uint8_t* from = image + y * p.in[1] * channels;
    const int64_t inside = most(least(p.in[1], d.width - left), 0);
    std::memset(to, p.pad, size_t(left * d.pitch));
    if (d.pitch == channels)
      std::memcpy(to + left * d.pitch, from, size_t(inside * channels));
    else
      for (int64_t x = 0; x < inside; ++x)  // what is filled up meets weights of zero
        std::memcpy(to + (left + x) * d.pitch, from + x * channels, size_t(channels));
    std::memset(to + (left + inside) * d.pitch, p.pad, size_t((d.width - left - inside) * d.pitch));
  }
}

struct Tasks {
  int64_t positions, across, panels, panels_each, panel_tasks;
  WT_INLINE Tasks(const Int8ConvPlan& p)
      : positions(p.out[0] * p.out[1]),
        across(gemm_ceil(positions, kTaskPositions)),
        panels(gemm_ceil(p.out_channels, kPanelOutputs)),
        panels_each(panels) {
    while (p.batch * across * gemm_ceil(panels, panels_each) < kLeastTasks && panels_each > 4)
      panels_each = gemm_ceil(gemm_ceil(panels_each, 2), 4) * 4;
    panel_tasks = gemm_ceil(panels, panels_each);
  }
  WT_INLINE int64_t count(int64_t batch) const { return batch * across * panel_tasks; }
};

// How the positions of a task read its image, or the copy of it that has its padding.
struct TaskImage {
  const uint8_t* from;
  Padded d;
  int64_t y0, pitch;
  Runs runs;
  uint8_t* scratch;  // as many bytes as were asked for

  WT_INLINE const uint8_t* at(const Int8ConvPlan& p, int64_t m) const {
    return from + (m / p.out[1] - y0) * p.stride[0] * d.row() + m % p.out[1] * p.stride[1] * pitch;
  }
};

TaskImage image_of(const Int8ConvPlan& p, int64_t image, int64_t begin, int64_t end, size_t bytes) {
  const int64_t y0 = begin / p.out[1], pitch = gemm_ceil(p.in_channels, 4) * 4;
  Padded d{(p.out[1] - 1) * p.stride[1] + (p.kernel[1] - 1) * p.dilation[1] + 1, pitch};
  const uint8_t* from = p.x + image * p.in[0] * p.in[1] * p.in_channels;
  const bool copies = pitch != p.in_channels || p.padding[0] || p.padding[1];
  if (!copies) d.width = p.in[1];
  const int64_t rows = ((end - 1) / p.out[1] - y0) * p.stride[0] + (p.kernel[0] - 1) * p.dilation[0] + 1;
  auto* scratch = static_cast<uint8_t*>(cpu::thread_scratch(bytes + (copies ? size_t(rows * d.row()) : 0)));
  if (copies) {
    copy_rows(p, d, from, y0 * p.stride[0] - p.padding[0], rows, scratch + bytes);
    from = scratch + bytes;
  } else {
    from += y0 * p.stride[0] * d.row();
  }
  const bool joined = p.dilation[1] == 1;  // neighbours of a kernel row are neighbours in memory
  const Runs runs{(joined ? p.kernel[1] : 1) * pitch / 4, joined ? 1 : p.kernel[1], p.kernel[0],
                  p.dilation[1] * pitch, p.dilation[0] * d.row()};
  return {from, d, y0, pitch, runs, scratch};
}

// The positions and panels of task i.
struct Task {
  int64_t image, begin, end, panel, last_panel, panel_bytes;
  WT_INLINE Task(const Int8ConvPlan& p, const Tasks& tasks, int64_t i)
      : image(i / tasks.panel_tasks / tasks.across),
        begin(i / tasks.panel_tasks % tasks.across * kTaskPositions),
        end(least(begin + kTaskPositions, tasks.positions)),
        panel(i % tasks.panel_tasks * tasks.panels_each),
        last_panel(least(panel + tasks.panels_each, tasks.panels)),
        panel_bytes(p.kernel[0] * p.kernel[1] * gemm_ceil(p.in_channels, 4) * 4 * kPanelOutputs) {}
};

#if defined(__AVX512F__)
void run_task_on_tiles(const Int8ConvPlan& p, const Tasks& tasks, int64_t i) {
  const Task t(p, tasks, i);
  const TaskImage x = image_of(p, t.image, t.begin, t.end, TileTask::bytes(t.panel_bytes, t.end - t.begin));
  const TileTask tiles(p, x.runs, t.panel_bytes, x.scratch);
  for (int64_t m = t.begin; m < t.end; ++m) tiles.copy(m - t.begin, x.at(p, m));
  for (int64_t q = t.panel; q < t.last_panel; q += 2) {
    tiles.multiply(t.end - t.begin, q, least(2, t.last_panel - q), t.image * tasks.positions + t.begin);
    cpu::poll_interrupt();
  }
}
#endif

template <bool Vnni>
void run_task(const Int8ConvPlan& p, const Tasks& tasks, int64_t i) {
  const Task t(p, tasks, i);
  const TaskImage x = image_of(p, t.image, t.begin, t.end, 0);
  for (int64_t q = t.panel; q < t.last_panel;) {
    const int64_t together = t.last_panel - q >= kPanels ? kPanels : 1;
    for (int64_t m = t.begin; m < t.end; m += kRows) {
      const int64_t rows = least(kRows, t.end - m);
      const uint8_t* from[kRows];
      for (int64_t r = 0; r < rows; ++r) from[r] = x.at(p, m + r);
      const int64_t position = t.image * tasks.positions + m;
      if (together == kPanels)
        tile_of<Vnni, kPanels>(rows, p, x.runs, from, q, t.panel_bytes, position);
      else
        tile_of<Vnni, 1>(rows, p, x.runs, from, q, t.panel_bytes, position);
    }
    q += together;
    cpu::poll_interrupt();
  }
}

// Calls task(plan, tasks, number) for all.
template <class F>
void for_tasks(const Int8ConvPlan& p, F&& task) {
  const Tasks tasks(p);
  cpu::parallel_for(tasks.count(p.batch), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) task(p, tasks, i);
  });
}

void int8_conv(const LaunchContext&, const Int8ConvPlan& given) {
  Int8ConvPlan p = given;
  // A 1 x 1 kernel sees all images as one line.
  if (p.kernel[0] * p.kernel[1] == 1 && p.stride[0] * p.stride[1] == 1 && p.padding[0] + p.padding[1] == 0) {
    p.in[1] = p.out[1] = p.batch * p.in[0] * p.in[1];
    p.batch = p.in[0] = p.out[0] = 1;
  }
#if defined(__AVX512F__)
  if (cpu::has_amx_int8()) return for_tasks(p, run_task_on_tiles);
  if (__builtin_cpu_supports("avx512vnni")) return for_tasks(p, run_task<true>);
#endif
  for_tasks(p, run_task<false>);
}

// ---- pooling --------------------------------------------------------------------------------------------

// The greatest of the `count` pixels at `from`, channel by channel.
void greatest(const uint8_t* const* from, int64_t count, int64_t channels, uint8_t* to) {
  using Bytes = GemmVec<uint8_t>;
  int64_t c = 0;
  for (; c + kGemmVecBytes <= channels; c += kGemmVecBytes) {
    Bytes most{};
    for (int64_t i = 0; i < count; ++i) {
      const Bytes v = gemm_load(from[i] + c);
      most = v > most ? v : most;
    }
    gemm_store(to + c, most);
  }
  for (; c < channels; ++c) {
    uint8_t most = 0;
    for (int64_t i = 0; i < count; ++i) most = from[i][c] > most ? from[i][c] : most;
    to[c] = most;
  }
}

void max_pool_bytes(const LaunchContext&, const BytePoolPlan& p) {
  const int64_t row = p.out[1] * p.channels, taps = p.kernel[0] * p.kernel[1];
  cpu::parallel_for(p.batch * p.out[0], 65536 / (row * taps + 1) + 1, [&](int64_t begin, int64_t end) {
    auto* from = static_cast<const uint8_t**>(cpu::thread_scratch(size_t(taps) * sizeof(const uint8_t*)));
    for (int64_t i = begin; i < end; ++i) {
      const uint8_t* image = p.x + i / p.out[0] * p.in[0] * p.in[1] * p.channels;
      const int64_t top = i % p.out[0] * p.stride[0] - p.padding[0];
      for (int64_t x = 0; x < p.out[1]; ++x) {
        const int64_t left = x * p.stride[1] - p.padding[1];
        int64_t count = 0;
        for (int64_t ky = 0; ky < p.kernel[0]; ++ky) {
          const int64_t y = top + ky * p.dilation[0];
          if (y < 0 || y >= p.in[0]) continue;
          for (int64_t kx = 0; kx < p.kernel[1]; ++kx) {
            const int64_t at = left + kx * p.dilation[1];
            if (at >= 0 && at < p.in[1]) from[count++] = image + (y * p.in[1] + at) * p.channels;
          }
        }
        greatest(from, count, p.channels, p.out_data + i * row + x * p.channels);
      }
    }
  });
}

void quantize_bytes(const LaunchContext&, int64_t n, const float* x, float inverse, float zero,
                    uint8_t* out) {
  cpu::parallel_for(n, 65536, [&](int64_t begin, int64_t end) {
    int64_t i = begin;
#if defined(__AVX512F__)
    for (; i + 16 <= end; i += 16) {
      const __m512 v = _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse)),
                                     _mm512_set1_ps(zero));  // max gives its second operand for NaN
      const __m512 limited = _mm512_min_ps(_mm512_max_ps(v, _mm512_setzero_ps()), _mm512_set1_ps(255));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                       _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(limited)));
    }
#endif
    for (; i < end; ++i) {
      const float v = x[i] * inverse + zero, above = v > 0 ? v : 0;
      out[i] = uint8_t(__builtin_nearbyintf(above < 255 ? above : 255));
    }
  });
}

}  // namespace

WT_KERNEL(int8_conv, int8_conv);
WT_KERNEL(max_pool_bytes, max_pool_bytes);
WT_KERNEL(quantize_bytes, quantize_bytes);

}  // namespace warptape::kernels::WARPTAPE_ISA
