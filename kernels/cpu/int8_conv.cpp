// Convolution on bytes, channels innermost: tiles of a few positions of the output by a few panels of 16
// outputs. What a position sees of an image are runs of memory, one a kernel row, that the tile reads where
// they lie; images with padding are copied first, as many rows as a task needs. The dot product of bytes is
// VNNI's where the processor has it, else one of 16-bit pairs; both are exact.
#include "kernels/int8_conv.h"

#include "kernels/cpu/bounds.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/interrupt.h"
#include "kernels/cpu/parallel.h"
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

template <bool Vnni>
void run_task(const Int8ConvPlan& p, const Tasks& tasks, int64_t i) {
  const int64_t panel = i % tasks.panel_tasks * tasks.panels_each,
                image = i / tasks.panel_tasks / tasks.across;
  const int64_t begin = i / tasks.panel_tasks % tasks.across * kTaskPositions;
  const int64_t end = least(begin + kTaskPositions, tasks.positions), y0 = begin / p.out[1];
  const int64_t last_panel = least(panel + tasks.panels_each, tasks.panels);
  const int64_t pitch = gemm_ceil(p.in_channels, 4) * 4;
  Padded d{(p.out[1] - 1) * p.stride[1] + (p.kernel[1] - 1) * p.dilation[1] + 1, pitch};
  const uint8_t* from = p.x + image * p.in[0] * p.in[1] * p.in_channels;
  if (pitch != p.in_channels || p.padding[0] || p.padding[1]) {
    const int64_t rows = ((end - 1) / p.out[1] - y0) * p.stride[0] + (p.kernel[0] - 1) * p.dilation[0] + 1;
    auto* copy = static_cast<uint8_t*>(cpu::thread_scratch(size_t(rows * d.row())));
    copy_rows(p, d, from, y0 * p.stride[0] - p.padding[0], rows, copy);
    from = copy;
  } else {
    d.width = p.in[1];
    from += y0 * p.stride[0] * d.row();
  }
  const bool joined = p.dilation[1] == 1;  // neighbours of a kernel row are neighbours in memory
  const Runs runs{(joined ? p.kernel[1] : 1) * pitch / 4, joined ? 1 : p.kernel[1], p.kernel[0],
                  p.dilation[1] * pitch, p.dilation[0] * d.row()};
  const int64_t panel_bytes = p.kernel[0] * p.kernel[1] * pitch * kPanelOutputs;
  for (int64_t q = panel; q < last_panel;) {
    const int64_t together = last_panel - q >= kPanels ? kPanels : 1;
    for (int64_t m = begin; m < end; m += kRows) {
      const int64_t rows = least(kRows, end - m);
      const uint8_t* x[kRows];
      for (int64_t r = 0; r < rows; ++r)
        x[r] = from + ((m + r) / p.out[1] - y0) * p.stride[0] * d.row() +
               (m + r) % p.out[1] * p.stride[1] * pitch;
      const int64_t position = image * tasks.positions + m;
      if (together == kPanels)
        tile_of<Vnni, kPanels>(rows, p, runs, x, q, panel_bytes, position);
      else
        tile_of<Vnni, 1>(rows, p, runs, x, q, panel_bytes, position);
    }
    q += together;
    cpu::poll_interrupt();
  }
}

template <bool Vnni>
void run(const Int8ConvPlan& p) {
  const Tasks tasks(p);
  cpu::parallel_for(tasks.count(p.batch), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run_task<Vnni>(p, tasks, i);
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
  if (__builtin_cpu_supports("avx512vnni")) return run<true>(p);
#endif
  run<false>(p);
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
