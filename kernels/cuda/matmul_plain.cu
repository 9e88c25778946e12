// The matrix product without a library. float32 goes to the ladder's best step (gemm/warp_tiles.cu); of other
// dtypes a block of 256 threads makes a tile of C, each thread 2 x 2 of it, from slices of A and B in shared
// memory. Sums run along k in order in both.
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/plain.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kTile = 32;   // rows and columns of C
constexpr int kSlice = 16;  // along k
constexpr int kSide = 16;   // threads

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
using Sum = typename SumOfProducts<T>::type;

template <class T>
WT_DEVICE Sum<T> widened(T x) {
  if constexpr (std::is_integral_v<T>)
    return Sum<T>(int64_t(x));
  else
    return widen<Sum<T>>(x);
}

// Fills [kTile][kSlice + 1] of `slice` with X[first + r, k0 + q], 0 outside.
template <class T>
WT_DEVICE void load_slice(Sum<T> (*slice)[kSlice + 1], const T* x, int64_t row_stride, int64_t col_stride,
                          int64_t first, int64_t rows, int64_t k0, int64_t k) {
  const int thread = threadIdx.x;
  // Neighbouring threads take neighbouring memory, whichever dim that is.
  const bool by_rows = row_stride == 1;
  for (int i = thread; i < kTile * kSlice; i += kSide * kSide) {
    const int r = by_rows ? i % kTile : i / kSlice, q = by_rows ? i / kTile : i % kSlice;
    const bool inside = first + r < rows && k0 + q < k;
    slice[r][q] = inside ? widened(x[(first + r) * row_stride + (k0 + q) * col_stride]) : Sum<T>(0);
  }
}

template <class T>
WT_DEVICE void store_result(const MatmulPlan& p, T* c, int64_t i, int64_t j, Sum<T> sum) {
  using S = Sum<T>;
  T* at = c + i * p.c.row_stride + j;
  S alpha, beta;
  if constexpr (std::is_integral_v<T>)
    alpha = S(int64_t(p.alpha)), beta = S(int64_t(p.beta));
  else
    alpha = S(p.alpha), beta = S(p.beta);
  S value = alpha * sum;
  if (p.bias) value = value + widened(static_cast<const T*>(p.bias)[j]);
  if (p.beta != 0) value = value + beta * widened(*at);  // C is not read otherwise: it may hold anything
  if constexpr (std::is_integral_v<T>)
    *at = T(value);
  else
    *at = narrow<T>(value);
}

template <class T>
__global__ void __launch_bounds__(kSide* kSide) multiply(MatmulPlan p, int64_t across) {
  __shared__ Sum<T> left[kTile][kSlice + 1];
  __shared__ Sum<T> right[kTile][kSlice + 1];  // of B, by columns
  const int64_t i0 = blockIdx.x / across * kTile, j0 = blockIdx.x % across * kTile;
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
  for (int64_t batch = blockIdx.y; batch < p.batch[0] * p.batch[1]; batch += gridDim.y) {
    const int64_t b0 = batch / p.batch[1], b1 = batch % p.batch[1];
    auto matrix = [&](const MatrixRef& x) {
      return static_cast<T*>(x.data) + b0 * x.batch_strides[0] + b1 * x.batch_strides[1];
    };
    const T *a = matrix(p.a), *b = matrix(p.b);
    Sum<T> sums[2][2] = {};
    for (int64_t k0 = 0; k0 < p.k; k0 += kSlice) {
      load_slice<T>(left, a, p.a.row_stride, p.a.col_stride, i0, p.m, k0, p.k);
      load_slice<T>(right, b, p.b.col_stride, p.b.row_stride, j0, p.n, k0, p.k);
      __syncthreads();
      for (int q = 0; q < kSlice; ++q)
        for (int r = 0; r < 2; ++r)
          for (int s = 0; s < 2; ++s)
            sums[r][s] = sums[r][s] + left[ty + r * kSide][q] * right[tx + s * kSide][q];
      __syncthreads();
    }
    T* c = matrix(p.c);
    for (int r = 0; r < 2; ++r)
      for (int s = 0; s < 2; ++s) {
        const int64_t i = i0 + ty + r * kSide, j = j0 + tx + s * kSide;
        if (i < p.m && j < p.n) store_result<T>(p, c, i, j, sums[r][s]);
      }
  }
}

using NumberTypes = Types<double, BFloat16, Half, int64_t, int32_t, int16_t, int8_t, uint8_t, Complex<float>,
                          Complex<double>>;

}  // namespace

void matmul_plain(const LaunchContext& ctx, const MatmulPlan& plan) {
  const int64_t batch = plan.batch[0] * plan.batch[1];
  if (plan.m == 0 || plan.n == 0 || batch == 0) return;
  if (plan.dtype == DType::Float32) return matmul_warp_tiles(ctx, plan);
  const int64_t down = ceil_div(plan.m, kTile), across = ceil_div(plan.n, kTile);
  const dim3 grid(static_cast<unsigned>(down * across),
                  static_cast<unsigned>(batch < kMaxGridY ? batch : kMaxGridY));
  dispatch(NumberTypes{}, plan.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    launch(ctx, "matmul", multiply<T>, grid, dim3(kSide * kSide), 0, plan, across);
  });
}

}  // namespace warptape::kernels::cuda
