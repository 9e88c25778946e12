// Between images and the matrices of a convolution: rows are (channel, ky, kx), columns are output positions.
//
// A few channels of one image are first laid out as [channel][row][phase][step] with their padding, where
// phase and step are the column's remainder and quotient by the stride: so what one kernel element sees along
// an output row is contiguous, whatever stride and dilation are.
#pragma once

#include "kernels/conv.h"
#include "kernels/cpu/gemm_pack.h"

namespace warptape::kernels::WARPTAPE_ISA {

struct ConvFrame {
  int64_t rows, phases, steps;  // of one channel
  int64_t taps;                 // kernel elements of one channel
  ConvPlan p;

  explicit ConvFrame(const ConvPlan& plan) : p(plan) {
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
  // Calls f(frame offset, image offset, count) for every run of used elements that lie in the image, which
  // has `phases` elements between neighbours of the run; and zero(frame offset, count) for what lies outside.
  template <class F, class Z>
  WT_INLINE void runs(F&& f, Z&& zero) const {
    for (int64_t r = 0; r < rows; ++r) {
      if (!row_used(r)) continue;
      int64_t y = r - p.padding[0];
      for (int64_t phase = 0; phase < phases; ++phase) {
        if (!phase_used(phase)) continue;
        int64_t at = (r * phases + phase) * steps;
        // The first and the last step whose column phase + step * phases - padding lies in the image.
        int64_t low = p.padding[1] - phase, high = p.in[1] - 1 + low;
        int64_t first = low <= 0 ? 0 : (low + phases - 1) / phases;
        int64_t last = high < 0 ? -1 : high / phases;
        if (last > steps - 1) last = steps - 1;
        if (y < 0 || y >= p.in[0] || first > last) {
          zero(at, steps);
          continue;
        }
        zero(at, first);
        f(at + first, y * p.in[1] + first * phases - low, last - first + 1);
        zero(at + last + 1, steps - 1 - last);
      }
    }
  }
  // frame = channels of the image, padded.
  template <class T>
  WT_INLINE void load(T* frame, const T* image, int64_t channels) const {
    for (int64_t c = 0; c < channels; ++c) {
      T* to = frame + c * channel_size();
      const T* from = image + c * p.in[0] * p.in[1];
      runs(
          [&](int64_t at, int64_t i, int64_t n) {
            if (phases == 1)
              std::memcpy(to + at, from + i, n * sizeof(T));
            else
              for (int64_t s = 0; s < n; ++s) to[at + s] = from[i + s * phases];
          },
          [&](int64_t at, int64_t n) { std::memset(static_cast<void*>(to + at), 0, n * sizeof(T)); });
    }
  }
  // The image's channels from the frame, whose elements outside are dropped; image elements nobody saw become
  // 0.
  template <class T, class A>
  WT_INLINE void store(T* image, const A* frame, int64_t channels) const {
    int64_t size = p.in[0] * p.in[1];
    std::memset(static_cast<void*>(image), 0, channels * size * sizeof(T));
    for (int64_t c = 0; c < channels; ++c) {
      T* to = image + c * size;
      const A* from = frame + c * channel_size();
      runs(
          [&](int64_t at, int64_t i, int64_t n) {
            if (phases == 1)
              for (int64_t s = 0; s < n; ++s) to[i + s] = T(from[at + s]);
            else
              for (int64_t s = 0; s < n; ++s) to[i + s * phases] = T(from[at + s]);
          },
          [](int64_t, int64_t) {});
    }
  }
  // Calls f(frame offset, column, count) for the output positions [begin, end): one run per output row.
  template <class F>
  WT_INLINE void positions(int64_t begin, int64_t end, F&& f) const {
    for (int64_t j = begin; j < end;) {
      int64_t y = j / p.out[1], x = j % p.out[1];
      int64_t n = p.out[1] - x < end - j ? p.out[1] - x : end - j;
      f(y * p.stride[0] * phases * steps + x, j - begin, n);
      j += n;
    }
  }
};

// Copies n values by whole vectors: reads and writes up to one vector beyond.
template <class T>
WT_INLINE void conv_copy(T* to, const T* from, int64_t n) {
  for (int64_t i = 0; i < n; i += kGemmVecBytes / int64_t(sizeof(T))) gemm_store(to + i, gemm_load(from + i));
}

// The matrix's rows [0, depth) at output positions [begin, end), `ld` values apart.
template <class T>
void conv_columns(const ConvFrame& f, T* to, int64_t ld, const T* frame, int64_t depth, int64_t begin,
                  int64_t end) {
  using U = std::conditional_t<sizeof(T) == 2, uint16_t, T>;
  for (int64_t k = 0; k < depth; ++k) {
    const U* from = reinterpret_cast<const U*>(frame) + f.row_offset(k);
    U* row = reinterpret_cast<U*>(to) + k * ld;
    f.positions(begin, end, [&](int64_t at, int64_t j, int64_t n) { conv_copy(row + j, from + at, n); });
  }
}

// The transpose: adds rows to the places of the frame that they were copied from.
template <class A>
void conv_add_columns(const ConvFrame& f, A* frame, const A* rows, int64_t ld, int64_t depth, int64_t begin,
                      int64_t end) {
  constexpr int L = kGemmVecBytes / sizeof(A);
  for (int64_t k = 0; k < depth; ++k) {
    A* to = frame + f.row_offset(k);
    f.positions(begin, end, [&](int64_t at, int64_t j, int64_t n) {
      const A* from = rows + k * ld + j;
      int64_t i = 0;
      for (; i + L <= n; i += L) gemm_store(to + at + i, gemm_load(to + at + i) + gemm_load(from + i));
      if (i < n)
        gemm_store_part(to + at + i, gemm_load_part(to + at + i, n - i) + gemm_load_part(from + i, n - i),
                        n - i);
    });
  }
}

}  // namespace warptape::kernels::WARPTAPE_ISA
