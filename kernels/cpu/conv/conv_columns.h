// Between images and the matrices of a convolution: rows are (channel, ky, kx), columns are output positions.
//
// A few channels of one image are first laid out as [channel][row][phase][step] with their padding, where
// phase and step are the column's remainder and quotient by the stride: so what one kernel element sees along
// an output row is contiguous, whatever stride and dilation are.
#pragma once

#include "kernels/conv/conv.h"
#include "kernels/cpu/gemm/gemm_pack.h"

namespace warptape::kernels::WARPTAPE_ISA {

// Elements that are neighbours in the frame, and where they lie elsewhere.
struct ConvRun {
  int64_t frame, other, count;
};

struct ConvFrame {
  int64_t rows, phases, steps;  // of one channel
  int64_t taps;                 // kernel elements of one channel
  ConvPlan p;

  explicit ConvFrame(const ConvPlan& plan) : p(plan) {
    for (int d = 0; d < 2; ++d)
      if (p.out[d] == 1) p.stride[d] = 1;
    rows = (p.out[0] - 1) * p.stride[0] + (p.kernel[0] - 1) * p.dilation[0] + 1;
    phases = p.stride[1];
    steps = p.out[1] + (p.kernel[1] - 1) * p.dilation[1] / p.stride[1] + 1;
    taps = p.kernel[0] * p.kernel[1];
  }
  WT_INLINE int64_t channel_size() const { return rows * phases * steps; }
  // Where matrix row (channel, tap) starts.
  WT_INLINE int64_t row_offset(int64_t k) const {
    int64_t c = k / taps, ky = k % taps / p.kernel[1], x = k % taps % p.kernel[1] * p.dilation[1];
    return c * channel_size() + ((ky * p.dilation[0]) * phases + x % phases) * steps + x / phases;
  }
  WT_INLINE bool row_used(int64_t r) const {
    if (p.stride[0] == 1 && p.dilation[0] == 1) return true;
    for (int64_t k = 0; k < p.kernel[0]; ++k)
      if (r >= k * p.dilation[0] && (r - k * p.dilation[0]) % p.stride[0] == 0) return true;
    return false;
  }
  WT_INLINE bool phase_used(int64_t f) const {
    if (phases == 1) return true;
    for (int64_t k = 0; k < p.kernel[1]; ++k)
      if (k * p.dilation[1] % phases == f) return true;
    return false;
  }
  // The runs of used elements that lie in the image, where neighbours are `phases` elements apart. What lies
  // outside is never written and stays 0.
  WT_INLINE int64_t image_runs(ConvRun* out) const {
    int64_t count = 0;
    for (int64_t r = 0; r < rows; ++r) {
      int64_t y = r - p.padding[0];
      if (y < 0 || y >= p.in[0] || !row_used(r)) continue;
      for (int64_t phase = 0; phase < phases; ++phase) {
        // The first and the last step whose column phase + step * phases - padding lies in the image.
        int64_t low = p.padding[1] - phase, high = p.in[1] - 1 + low;
        int64_t first = low <= 0 ? 0 : (low + phases - 1) / phases;
        int64_t last = high < 0 ? -1 : high / phases;
        if (last > steps - 1) last = steps - 1;
        if (first > last || !phase_used(phase)) continue;
        out[count++] = {(r * phases + phase) * steps + first, y * p.in[1] + first * phases - low,
                        last - first + 1};
      }
    }
    return count;
  }
  // The output positions [begin, end) as runs along output rows; `other` is the position.
  WT_INLINE int64_t position_runs(int64_t begin, int64_t end, ConvRun* out) const {
    int64_t count = 0;
    for (int64_t j = begin; j < end;) {
      int64_t y = j / p.out[1], x = j % p.out[1];
      int64_t n = p.out[1] - x < end - j ? p.out[1] - x : end - j;
      out[count++] = {y * p.stride[0] * phases * steps + x, j - begin, n};
      j += n;
    }
    return count;
  }
};

// What is computed once for all images and channels: the frame's runs, where matrix rows start, and the runs
// of a block of output positions.
class ConvTables {
 public:
  // Values of memory that the tables need, for `depth` matrix rows and blocks of `cols` positions.
  WT_INLINE static int64_t size(const ConvFrame& f, int64_t depth, int64_t cols) {
    return depth + 3 * (f.rows * f.phases + cols);
  }
  WT_INLINE ConvTables(const ConvFrame& frame, int64_t depth, int64_t* memory)
      : f(frame), offsets(memory), images(reinterpret_cast<ConvRun*>(memory + depth)) {
    for (int64_t k = 0; k < depth; ++k) memory[k] = f.row_offset(k);
    image_count = f.image_runs(images);
    positions = images + f.rows * f.phases;
  }
  WT_INLINE void block(int64_t begin, int64_t end) {
    if (begin == begin_ && end == end_) return;
    position_count = f.position_runs(begin, end, positions);
    begin_ = begin, end_ = end;
  }
  // frame = channels of the image; the frame was zeroed once.
  template <class T>
  WT_INLINE void load(T* frame, const T* image, int64_t channels) const {
    constexpr int64_t L = kGemmVecBytes / sizeof(T);
    for (int64_t c = 0; c < channels; ++c, frame += f.channel_size(), image += f.p.in[0] * f.p.in[1])
      for (const ConvRun* r = images; r < images + image_count; ++r) {
        T* to = frame + r->frame;
        const T* from = image + r->other;
        int64_t i = 0;
        if (f.phases == 1) {
          for (; i + L <= r->count; i += L) gemm_store(raw(to + i), gemm_load(raw(from + i)));
          if constexpr (sizeof(T) >= 4) {
            if (i < r->count)
              gemm_store_part(raw(to + i), gemm_load_part(raw(from + i), r->count - i), r->count - i);
            continue;
          }
        }
        for (; i < r->count; ++i) to[i] = from[i * f.phases];
      }
  }
  // The image's channels from the frame, whose elements outside are dropped; image elements nobody saw become
  // 0.
  template <class T, class A>
  WT_INLINE void store(T* image, const A* frame, int64_t channels) const {
    int64_t size = f.p.in[0] * f.p.in[1];
    std::memset(static_cast<void*>(image), 0, channels * size * sizeof(T));
    for (int64_t c = 0; c < channels; ++c, frame += f.channel_size(), image += size)
      for (const ConvRun* r = images; r < images + image_count; ++r)
        for (int64_t i = 0; i < r->count; ++i) image[r->other + i * f.phases] = T(frame[r->frame + i]);
  }
  // The matrix's rows [0, depth) at the block's positions, `ld` values apart; writes up to one vector beyond.
  template <class T>
  WT_INLINE void columns(T* to, int64_t ld, const T* frame, int64_t depth) const {
    constexpr int64_t L = kGemmVecBytes / sizeof(T);
    for (int64_t k = 0; k < depth; ++k, to += ld)
      for (const ConvRun* r = positions; r < positions + position_count; ++r)
        for (int64_t i = 0; i < r->count; i += L)
          gemm_store(raw(to + r->other + i), gemm_load(raw(frame + offsets[k] + r->frame + i)));
  }
  // The transpose: adds rows to the places of the frame that they were copied from.
  template <class A>
  WT_INLINE void add_columns(A* frame, const A* rows, int64_t ld, int64_t depth) const {
    constexpr int64_t L = kGemmVecBytes / sizeof(A);
    for (int64_t k = 0; k < depth; ++k, rows += ld)
      for (const ConvRun* r = positions; r < positions + position_count; ++r) {
        A* to = frame + offsets[k] + r->frame;
        const A* from = rows + r->other;
        int64_t i = 0, n = r->count;
        for (; i + L <= n; i += L) gemm_store(to + i, gemm_load(to + i) + gemm_load(from + i));
        if (i < n)
          gemm_store_part(to + i, gemm_load_part(to + i, n - i) + gemm_load_part(from + i, n - i), n - i);
      }
  }

 private:
  // 16-bit values are moved as integers.
  template <class T>
  WT_INLINE static auto* raw(T* p) {
    using U = std::conditional_t<sizeof(T) == 2, uint16_t, std::remove_const_t<T>>;
    return reinterpret_cast<std::conditional_t<std::is_const_v<T>, const U, U>*>(p);
  }
  const ConvFrame& f;
  int64_t* offsets;
  ConvRun *images, *positions;
  int64_t image_count, position_count = 0, begin_ = -1, end_ = -1;
};

}  // namespace warptape::kernels::WARPTAPE_ISA
