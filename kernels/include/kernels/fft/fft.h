// Discrete Fourier transforms along one dim.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Slot "fft": out[k] = scale * sum over j of in[j] exp(-+ 2 pi i j k / n), minus if `forward`. Both are
// contiguous, with equal sizes in the other dims; n > 0.
//   complex to complex: n is the size of both;
//   real to complex, forward: n is the size of `in` and even, out has its frequencies 0 .. n / 2;
//   complex to real, not forward: n is the size of `out` and even, `in` has the frequencies 0 .. n / 2, of
//   which the first and the last count as real.
using FftFn = void(const LaunchContext&, const View& out, const View& in, int dim, bool forward,
                   double scale);

// Slot "fft_plans" of devices that keep plans: how many there are, how many may be, and a new limit, `value`.
enum class FftPlans : uint8_t { Size, MaxSize, Limit };
using FftPlansFn = int64_t(const LaunchContext&, FftPlans what, int64_t value);

}  // namespace warptape::kernels
