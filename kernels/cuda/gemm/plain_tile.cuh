// A tile of C of any dtype, of operands with any strides: 256 threads make 32 x 32 of it, each thread 2 x 2,
// from slices of A and B in shared memory. Sums run along k in order. Products without a library
// (matmul_plain.cu), and grouped ones that tensor cores do not take.
#pragma once

#include "kernels/cuda/common/memory.cuh"
#include "kernels/linalg/matmul.h"

namespace warptape::kernels::cuda {

// Integers wrap: unsigned sums of at least their width, cut off at the end.
template <class T, bool Integer = std::is_integral_v<T>>
struct SumOfProducts {
  using type = Compute<T>;
};
template <class T>
struct SumOfProducts<T, true> {
  using type = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
};

template <class T>
struct PlainTile {
  static constexpr int kSide = 32;         // rows and columns of C
  static constexpr int kDepth = 16;        // along k
  static constexpr int kThreadsDown = 16;  // and across
  static constexpr int kThreads = kThreadsDown * kThreadsDown;
  using Sum = typename SumOfProducts<T>::type;

  struct Slices {
    Sum left[kSide][kDepth + 1], right[kSide][kDepth + 1];  // of B, by columns
  };

  // C from (i0, j0) on of one matrix of the plan at each of these addresses, by the whole block.
  WT_DEVICE static void run(const MatmulPlan& p, const T* a, const T* b, T* c, int64_t i0, int64_t j0,
                            Slices& slices) {
    const int ty = threadIdx.x / kThreadsDown, tx = threadIdx.x % kThreadsDown;
    Sum sums[2][2] = {};
    for (int64_t k0 = 0; k0 < p.k; k0 += kDepth) {
      load(slices.left, a, p.a.row_stride, p.a.col_stride, i0, p.m, k0, p.k);
      load(slices.right, b, p.b.col_stride, p.b.row_stride, j0, p.n, k0, p.k);
      __syncthreads();
      for (int q = 0; q < kDepth; ++q)
        for (int r = 0; r < 2; ++r)
          for (int s = 0; s < 2; ++s)
            sums[r][s] =
                sums[r][s] + slices.left[ty + r * kThreadsDown][q] * slices.right[tx + s * kThreadsDown][q];
      __syncthreads();
    }
    for (int r = 0; r < 2; ++r)
      for (int s = 0; s < 2; ++s) {
        const int64_t i = i0 + ty + r * kThreadsDown, j = j0 + tx + s * kThreadsDown;
        if (i < p.m && j < p.n) store(p, c, i, j, sums[r][s]);
      }
  }

 private:
  template <class V>
  WT_DEVICE static Sum widened(V x) {
    if constexpr (std::is_integral_v<V>)
      return Sum(int64_t(x));
    else
      return widen<Sum>(x);
  }

  // X[first + r, k0 + q], 0 outside.
  WT_DEVICE static void load(Sum (*slice)[kDepth + 1], const T* x, int64_t row_stride, int64_t col_stride,
                             int64_t first, int64_t rows, int64_t k0, int64_t k) {
    // Neighbouring threads take neighbouring memory, whichever dim that is.
    const bool by_rows = row_stride == 1;
    for (int i = threadIdx.x; i < kSide * kDepth; i += kThreads) {
      const int r = by_rows ? i % kSide : i / kDepth, q = by_rows ? i / kSide : i % kDepth;
      const bool inside = first + r < rows && k0 + q < k;
      slice[r][q] = inside ? widened(x[(first + r) * row_stride + (k0 + q) * col_stride]) : Sum(0);
    }
  }

  WT_DEVICE static void store(const MatmulPlan& p, T* c, int64_t i, int64_t j, Sum sum) {
    T* at = c + i * p.c.row_stride + j;
    Sum alpha, beta;
    if constexpr (std::is_integral_v<T>)
      alpha = Sum(int64_t(p.alpha)), beta = Sum(int64_t(p.beta));
    else
      alpha = Sum(p.alpha), beta = Sum(p.beta);
    Sum value = alpha * sum;
    if (p.bias) value = value + widened(static_cast<const T*>(p.bias)[j]);
    if (p.beta != 0) value = value + beta * widened(*at);  // C is not read otherwise: it may hold anything
    if constexpr (std::is_integral_v<T>)
      *at = T(value);
    else
      *at = narrow<T>(value);
  }
};

}  // namespace warptape::kernels::cuda
