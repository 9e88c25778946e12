// Reductions and scans. `in` has any strides; `out` is contiguous and has as many dims as `in`, with size 1
// where a dim is reduced. Sums are blocked and pairwise, cut by size alone, so they do not depend on the
// number of threads. Narrow floats accumulate in float32, integers in int64.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Slots "sum", "prod", "mean", "logsumexp" (computed in out's dtype, to which `in` is converted; mean and
// logsumexp need floating outs; on the CPU prod takes complex numbers, of one dtype, too), "nansum" (of the
// CPU: sum without the NaNs), "amax", "amin" (out has in's dtype; NaN wins; in must not be empty), "any",
// "all" (out is Bool).
using ReduceFn = void(const LaunchContext&, const View& out, const View& in);

// Slot "norm": (sum |x|^p)^(1/p), for p = 0 the number of non-zero elements, for infinite p the largest or
// smallest |x|.
using NormFn = void(const LaunchContext&, const View& out, const View& in, double p);

// Slot "var": out = sum (x - mean)^2 / max(0, n - correction), its square root if `take_root`; `mean` has
// out's shape and dtype, or null data.
using VarFn = void(const LaunchContext&, const View& out, const View& mean, const View& in, double correction,
                   bool take_root);

// Slots "argmax", "argmin" over one dim: out is int64. "max_dim", "min_dim" give the values too. The first of
// equal values is taken; a NaN wins.
using ArgReduceFn = void(const LaunchContext&, const View& out, const View& in, int dim);
using ValueIndexFn = void(const LaunchContext&, const View& values, const View& indices, const View& in,
                          int dim);

// Slots "cumsum", "cumprod", "logcumsumexp": out (contiguous, in's shape) = running reduction along dim, in
// order. On the CPU cumprod takes complex numbers, packed and of one dtype, too.
using ScanFn = void(const LaunchContext&, const View& out, const View& in, int dim);
// Slots "cummax", "cummin": the last of equal values is taken.
using ScanIndexFn = void(const LaunchContext&, const View& values, const View& indices, const View& in,
                         int dim);

}  // namespace warptape::kernels
