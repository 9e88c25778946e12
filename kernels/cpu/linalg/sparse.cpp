// Products with matrices by compressed rows: rows of the result are cut into parts of about equal work, and
// columns into strips whose sums stay in registers.
#include "kernels/linalg/sparse.h"

#include "kernels/cpu/common/walk.h"
#include "kernels/dispatch.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

using cpu::parallel_for;
using cpu::report_index;
using Floats = Types<float, double>;

// Rows that make up a part, where elements are spread evenly.
int64_t rows_of_part(int64_t m, int64_t nnz, int64_t n) {
  const int64_t work = (nnz / (m + 1) + 1) * (n + 8);
  return cpu::kWalkGrain / work + 1;
}

// Whether rows [first, last) lie in the elements that there are, and these in the columns.
bool indices_fit(const LaunchContext& ctx, const int64_t* crow, const int64_t* col, int64_t first,
                 int64_t last, int64_t k, int64_t nnz) {
  for (int64_t i = first; i < last; ++i)
    if (crow[i] < 0 || crow[i] > crow[i + 1] || crow[i + 1] > nnz) {
      report_index(ctx, crow[i + 1], nnz + 1);
      return false;
    }
  for (int64_t e = crow[first]; e < crow[last]; ++e)
    if (col[e] < 0 || col[e] >= k) {
      report_index(ctx, col[e], k);
      return false;
    }
  return true;
}

template <class T>
struct Row {
  const int64_t* col;
  const T *values, *dense;
  int64_t n, begin, end;

  template <int kWidth>
  void sum(T* out, int64_t at, T factor) const {
    T total[kWidth] = {};
    for (int64_t e = begin; e < end; ++e) {
      const T v = values[e];
      const T* from = dense + col[e] * n + at;
#pragma GCC unroll 64
      for (int j = 0; j < kWidth; ++j) total[j] += v * from[j];
    }
    for (int j = 0; j < kWidth; ++j) out[at + j] = total[j] * factor;
  }

  void sum_all(T* out, T factor) const {
    int64_t j = 0;
    for (; j + 64 <= n; j += 64) sum<64>(out, j, factor);
    for (; j + 16 <= n; j += 16) sum<16>(out, j, factor);
    for (; j + 4 <= n; j += 4) sum<4>(out, j, factor);
    for (; j < n; ++j) sum<1>(out, j, factor);
  }

  // A NaN is the extreme of what it is in, as in other reductions.
  void extreme(T* out, int64_t* from, bool largest, int64_t nnz) const {
    for (int64_t j = 0; j < n; ++j) out[j] = 0, from[j] = nnz;
    for (int64_t e = begin; e < end; ++e) {
      const T v = values[e];
      const T* row = dense + col[e] * n;
      for (int64_t j = 0; j < n; ++j) {
        const T x = v * row[j];
        const bool better = largest ? x > out[j] : x < out[j];
        if (e == begin || better || (x != x && out[j] == out[j])) out[j] = x, from[j] = e;
      }
    }
  }
};

void csr_matmul(const LaunchContext& ctx, const View& out, const View& from, const View& crow,
                const View& col, const View& values, const View& dense, int64_t m, int64_t k, int64_t n,
                int64_t nnz, RowReduction how) {
  dispatch(Floats{}, out.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const int64_t* start = crow.as<int64_t>();
    parallel_for(m, rows_of_part(m, nnz, n), [&](int64_t first, int64_t last) {
      if (!indices_fit(ctx, start, col.as<int64_t>(), first, last, k, nnz)) return;
      for (int64_t i = first; i < last; ++i) {
        const Row<T> row{col.as<int64_t>(), values.as<T>(), dense.as<T>(), n, start[i], start[i + 1]};
        T* to = out.as<T>() + i * n;
        if (how >= RowReduction::Max) {
          row.extreme(to, from.as<int64_t>() + i * n, how == RowReduction::Max, nnz);
        } else {
          const int64_t count = row.end - row.begin;
          row.sum_all(to, how == RowReduction::Mean && count ? T(1) / T(count) : T(1));
        }
      }
    });
  });
}

template <class T>
T dot(const T* a, const T* b, int64_t n) {
  constexpr int kLanes = 16;
  T part[kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes)
#pragma GCC unroll 16
    for (int l = 0; l < kLanes; ++l) part[l] += a[j + l] * b[j + l];
  T sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += part[l];
  for (; j < n; ++j) sum += a[j] * b[j];
  return sum;
}

void csr_sample(const LaunchContext& ctx, const View& out, const View& crow, const View& col,
                const View& left, const View& right, int64_t m, int64_t k, int64_t n, int64_t nnz) {
  dispatch(Floats{}, out.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const int64_t *start = crow.as<int64_t>(), *c = col.as<int64_t>();
    parallel_for(m, rows_of_part(m, nnz, n), [&](int64_t first, int64_t last) {
      if (!indices_fit(ctx, start, c, first, last, k, nnz)) return;
      for (int64_t i = first; i < last; ++i)
        for (int64_t e = start[i]; e < start[i + 1]; ++e)
          out.as<T>()[e] = dot(left.as<T>() + i * n, right.as<T>() + c[e] * n, n);
    });
  });
}

void csr_transpose(const LaunchContext& ctx, const View& ccol, const View& row, const View& order,
                   const View& crow, const View& col, int64_t m, int64_t k, int64_t nnz) {
  const int64_t *start = crow.as<int64_t>(), *c = col.as<int64_t>();
  int64_t *to = ccol.as<int64_t>(), *rows = row.as<int64_t>(), *from = order.as<int64_t>();
  auto* next = static_cast<int64_t*>(ctx.scratch((k + 1) * sizeof(int64_t)));
  std::memset(to, 0, (k + 1) * sizeof(int64_t));
  if (!indices_fit(ctx, start, c, 0, m, k, nnz)) return;
  for (int64_t e = start[0]; e < start[m]; ++e) ++to[c[e] + 1];
  for (int64_t j = 0; j < k; ++j) to[j + 1] += to[j];
  std::memcpy(next, to, (k + 1) * sizeof(int64_t));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t e = start[i]; e < start[i + 1]; ++e) {
      const int64_t at = next[c[e]]++;
      rows[at] = i;
      from[at] = e;
    }
}

}  // namespace

WT_KERNEL(csr_matmul, csr_matmul);
WT_KERNEL(csr_sample, csr_sample);
WT_KERNEL(csr_transpose, csr_transpose);

}  // namespace warptape::kernels::WARPTAPE_ISA
