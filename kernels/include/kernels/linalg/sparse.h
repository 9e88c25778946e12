// Matrices by compressed rows. Legend: A [m, k] has the elements `values` [nnz], those of row i at
// crow[i]..crow[i + 1], in the columns `col`; B is [k, n]. Indices are contiguous int64, floats contiguous;
// a column outside of [0, k) is reported as a fault.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

enum class RowReduction : uint8_t { Sum, Mean, Max, Min };

// Slot "csr_matmul": out [m, n] = the sum of values[e] * B[col[e]] over each row's elements e, in their
// order, or their mean, maximum or minimum; 0 for a row without any. For Max and Min `from` [m, n] int64 gets
// the element that each result came from, nnz where there is none.
using CsrMatmulFn = void(const LaunchContext&, const View& out, const View& from, const View& crow,
                         const View& col, const View& values, const View& dense, int64_t m, int64_t k,
                         int64_t n, int64_t nnz, RowReduction how);

// Slot "csr_sample": out [nnz], out[e] = the dot product of row i of `left` [m, n], where e is in row i, and
// of row col[e] of `right` [k, n].
using CsrSampleFn = void(const LaunchContext&, const View& out, const View& crow, const View& col,
                         const View& left, const View& right, int64_t m, int64_t k, int64_t n, int64_t nnz);

// Slot "csr_transpose": ccol [k + 1], row [nnz] and order [nnz], A by compressed columns: elements of a
// column by growing rows, the e-th of which is A's element order[e].
using CsrTransposeFn = void(const LaunchContext&, const View& ccol, const View& row, const View& order,
                            const View& crow, const View& col, int64_t m, int64_t k, int64_t nnz);

}  // namespace warptape::kernels
