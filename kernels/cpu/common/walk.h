// Walking several strided operands of one shape together, from any linear position, a run of the last dim at
// a time.
#pragma once

#include "kernels/cpu/index/fault.h"
#include "kernels/runtime/parallel.h"
#include "kernels/types.h"

namespace warptape::kernels::cpu {

inline constexpr int64_t kWalkGrain = 16384;  // elements a task of moderate cost should have

template <int N>
struct Walk {
  int ndim = 0;
  int64_t sizes[kMaxDims];
  int64_t strides[N][kMaxDims];

  WT_INLINE void add_dim(int64_t size) { sizes[ndim++] = size; }
  WT_INLINE int64_t numel() const {
    int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= sizes[d];
    return n;
  }
  WT_INLINE int64_t inner(int operand) const { return ndim ? strides[operand][ndim - 1] : 0; }
};

// The dims [first, last) of `shape` with the strides of each operand in those dims.
template <int N>
WT_INLINE Walk<N> make_walk(const View& shape, int first, int last, const View* const (&operands)[N]) {
  Walk<N> w;
  for (int d = first; d < last; ++d) {
    for (int k = 0; k < N; ++k) w.strides[k][w.ndim] = operands[k]->strides[d];
    w.add_dim(shape.sizes[d]);
  }
  return w;
}

// Calls f(offsets, length, coordinates) for the runs that make up positions [begin, end) in row-major order.
template <int N, class F>
WT_INLINE void walk(const Walk<N>& w, int64_t begin, int64_t end, F&& f) {
  if (begin >= end) return;
  int64_t at[kMaxDims], offset[N] = {};
  int64_t rest = begin;
  for (int d = w.ndim - 1; d >= 0; --d) {
    at[d] = rest % w.sizes[d];
    rest /= w.sizes[d];
    for (int k = 0; k < N; ++k) offset[k] += at[d] * w.strides[k][d];
  }
  const int last = w.ndim - 1;
  while (begin < end) {
    int64_t length = w.ndim ? w.sizes[last] - at[last] : 1;
    if (length > end - begin) length = end - begin;
    f(static_cast<const int64_t (&)[N]>(offset), length, static_cast<const int64_t*>(at));
    begin += length;
    if (begin >= end) return;
    // The run ended at the end of the last dim: step back to its start and carry.
    for (int k = 0; k < N; ++k) offset[k] -= at[last] * w.strides[k][last];
    at[last] = 0;
    for (int d = last - 1; d >= 0; --d) {
      for (int k = 0; k < N; ++k) offset[k] += w.strides[k][d];
      if (++at[d] < w.sizes[d]) break;
      for (int k = 0; k < N; ++k) offset[k] -= w.sizes[d] * w.strides[k][d];
      at[d] = 0;
    }
  }
}

}  // namespace warptape::kernels::cpu
