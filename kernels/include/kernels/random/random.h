// Counter-based random numbers: number i of a key is word i % 4 of Philox4x32-10 (Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011) with key (seed low, seed high) and counter (i / 4 low, i / 4
// high, call low, call high). Where key.captured is not null, the seed is captured[0] and the call is
// key.call + captured[1] (modulo 2^64), both read by the kernel when it runs.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Which number element i draws: number i, or, of a part of a larger tensor in which runs of `run` elements
// start `stride` apart, that of its place there. With `pair` it is two runs that do, the second `pair` after
// the first. With `columns` all that is of rows of so many elements, of rows of `width` from `column` on.
struct PhiloxPart {
  uint64_t first = 0;
  uint64_t run = 0;  // 0: the elements follow each other
  uint64_t stride = 0;
  uint64_t pair = 0;
  uint64_t columns = 0, width = 0, column = 0;

  constexpr uint64_t at(uint64_t i) const {
    return columns ? row(i / columns) * width + column + i % columns : row(i);
  }
  // How many elements from i on surely draw numbers that follow each other, of n.
  constexpr uint64_t together(uint64_t i, uint64_t n) const {
    const uint64_t each = columns ? columns : run;
    return each && each - i % each < n ? each - i % each : n;
  }

 private:
  constexpr uint64_t row(uint64_t i) const {
    if (run == 0) return first + i;
    const uint64_t n = i / run;
    return first + i % run + (pair ? n / 2 * stride + n % 2 * pair : n * stride);
  }
};

// Slot "dropout": out = x / (1 - p) where number part.at(i) of the key is at least p 2^32, else 0. out and
// x are contiguous and of one floating dtype. The same call on the gradient is the backward.
using DropoutFn = void(const LaunchContext&, const View& out, const View& x, double p, PhiloxKey key,
                       const PhiloxPart& part);

// Slot "philox": out (contiguous int64) = the numbers themselves, each in [0, 2^32).
using PhiloxFn = void(const LaunchContext&, const View& out, PhiloxKey key, const PhiloxPart& part);

// Slot "normal": x (contiguous Float32, uniform numbers of [0, 1)) becomes normal numbers, in place, in
// blocks of 16 whose element j is paired with j + 8 (Box and Muller's transform). Numbers after the last
// block stay.
using NormalFn = void(const LaunchContext&, const View& x, double mean, double std);

// ---- fills of device tensors (the CPU fills its own from the Mersenne Twister, as PyTorch does). out is
// contiguous; w[i] is number i of the key, in [0, 2^32); the element type is T, computed in Compute<T>.
//
// unit(i), of [0, 1): for Float64 (((w[2i] << 32) | w[2i + 1]) >> 11) 2^-53, else (w[i] >> 8) 2^-24.

// Slot "uniform_fill": out (floating) [i] = T(fma(unit(i), to - from, from)), with from and to rounded to T
// first; where rounding has made that `to` or more, it is `from`.
using UniformFillFn = void(const LaunchContext&, const View& out, double from, double to, PhiloxKey key);

// Slot "normal_fill": out (floating), in pairs (Box and Muller's transform): with u and v of pair j,
//   out[2j] = fma(sqrt(-2 log u) cos(2 pi v), std, mean),  out[2j + 1] the same with sin.
// Float64: u = 1 - unit(2j), v = unit(2j + 1). Else, in float: u = fma(w[2j], 2^-32, 2^-33) (above 0, so that
// tails reach 6.6 std), v = w[2j + 1] 2^-32.
using NormalFillFn = void(const LaunchContext&, const View& out, double mean, double std, PhiloxKey key);

// Slot "exponential_fill": out (floating) [i] = T(-log1p(-unit(i)) / rate).
using ExponentialFillFn = void(const LaunchContext&, const View& out, double rate, PhiloxKey key);

// Slot "bernoulli_fill": out (any type) [i] = T(w[i] < p 2^32), compared in double. p is the number, or,
// where probabilities.data is not null, element i of that view (contiguous, as many elements as out, Float32
// or Float64).
using BernoulliFillFn = void(const LaunchContext&, const View& out, double p, const View& probabilities,
                             PhiloxKey key);

// Slot "range_fill": out (any type) [i] = T(Compute<T>(int64(from + draw % range))), added modulo 2^64. draw
// is w[i] where 0 < range <= 2^32, else (w[2i] << 32) | w[2i + 1]; range 0 means 2^64 (no remainder is
// taken).
using RangeFillFn = void(const LaunchContext&, const View& out, int64_t from, uint64_t range, PhiloxKey key);

}  // namespace warptape::kernels
