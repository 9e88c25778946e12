// Products with matrices by compressed rows, split by rows: a group of lanes takes a row of the result and a
// column each, and goes through the row's elements in their order, so that equal calls give equal bits. A row
// of B is read side by side. Rows of very different length make warps wait for the longest.
#include "kernels/linalg/sparse.h"

#include "kernels/cuda/common/memory.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 128;
using Reals = Types<float, double>;

struct CsrArgs {
  const int64_t *crow, *col;
  int64_t m, k, n, nnz;
  FaultSink sink;

  // The elements of a row; none where its bounds are not elements that there are.
  WT_DEVICE bool bounds(int64_t row, int64_t& begin, int64_t& end) const {
    begin = crow[row], end = crow[row + 1];
    if (begin >= 0 && begin <= end && end <= nnz) return true;
    sink.report(end, nnz + 1);
    return false;
  }
  WT_DEVICE bool column(int64_t e, int64_t& c) const {
    c = col[e];
    if (c >= 0 && c < k) return true;
    sink.report(c, k);
    return false;
  }
};

template <class T, RowReduction How>
__global__ void __launch_bounds__(kThreads)
    matmul_kernel(CsrArgs a, T* out, int64_t* from, const T* values, const T* dense, int group) {
  const int64_t row = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / group;
  if (row >= a.m) return;
  int64_t begin, end;
  if (!a.bounds(row, begin, end)) return;
  for (int64_t j = threadIdx.x % group; j < a.n; j += group) {
    T total = 0;
    int64_t best = a.nnz;
    for (int64_t e = begin; e < end; ++e) {
      int64_t c;
      if (!a.column(e, c)) break;
      const T x = values[e] * dense[c * a.n + j];
      if constexpr (How == RowReduction::Sum || How == RowReduction::Mean) {
        total += x;
      } else {  // a NaN is the extreme of what it is in
        const bool better = How == RowReduction::Max ? x > total : x < total;
        if (e == begin || better || (isnan(x) && !isnan(total))) total = x, best = e;
      }
    }
    if (How == RowReduction::Mean && end > begin) total *= T(1) / T(end - begin);
    out[row * a.n + j] = total;
    if (How >= RowReduction::Max) from[row * a.n + j] = best;
  }
}

// Lanes of a row: a power of 2 up to a warp.
int group_of(int64_t n) {
  int group = 1;
  while (group < kWarp && group < n) group *= 2;
  return group;
}

void csr_matmul(const LaunchContext& ctx, const View& out, const View& from, const View& crow,
                const View& col, const View& values, const View& dense, int64_t m, int64_t k, int64_t n,
                int64_t nnz, RowReduction how) {
  const CsrArgs a{crow.as<const int64_t>(),      col.as<const int64_t>(), m, k, n, nnz,
                  fault_sink(ctx, "_csr_matmul")};
  if (n == 0) return;
  const int group = group_of(n);
  dispatch(Reals{}, out.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const auto run = [&](auto kernel) {
      launch(ctx, "csr_matmul", kernel, dim3(unsigned(ceil_div(m * group, kThreads))), dim3(kThreads), 0, a,
             out.as<T>(), from.as<int64_t>(), values.as<const T>(), dense.as<const T>(), group);
    };
    switch (how) {
      case RowReduction::Sum:
        return run(matmul_kernel<T, RowReduction::Sum>);
      case RowReduction::Mean:
        return run(matmul_kernel<T, RowReduction::Mean>);
      case RowReduction::Max:
        return run(matmul_kernel<T, RowReduction::Max>);
      case RowReduction::Min:
        return run(matmul_kernel<T, RowReduction::Min>);
    }
  });
}

// A warp an element: its row is the last one that begins at or before it.
template <class T>
__global__ void __launch_bounds__(kThreads) sample_kernel(CsrArgs a, T* out, const T* left, const T* right) {
  const int64_t e = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (e >= a.nnz) return;
  int64_t low = 0, high = a.m;  // crow[low] <= e < crow[high], where crow grows
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (a.crow[middle] <= e ? low : high) = middle;
  }
  int64_t c;
  if (!a.column(e, c)) return;
  T sum = 0;
  const int lane = threadIdx.x % kWarp;
  for (int64_t j = lane; j < a.n; j += kWarp) sum += left[low * a.n + j] * right[c * a.n + j];
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  if (lane == 0) out[e] = sum;
}

void csr_sample(const LaunchContext& ctx, const View& out, const View& crow, const View& col,
                const View& left, const View& right, int64_t m, int64_t k, int64_t n, int64_t nnz) {
  if (m == 0) return;
  const CsrArgs a{crow.as<const int64_t>(),      col.as<const int64_t>(), m, k, n, nnz,
                  fault_sink(ctx, "_csr_sample")};
  dispatch(Reals{}, out.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    launch(ctx, "csr_sample", sample_kernel<T>, dim3(unsigned(ceil_div(nnz * kWarp, kThreads))),
           dim3(kThreads), 0, a, out.as<T>(), left.as<const T>(), right.as<const T>());
  });
}

}  // namespace

WT_KERNEL(csr_matmul, csr_matmul);
WT_KERNEL(csr_sample, csr_sample);

}  // namespace warptape::kernels::cuda
