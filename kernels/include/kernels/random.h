// Counter-based random numbers: number i of a key is word i % 4 of Philox4x32-10 (Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011) with key (seed low, seed high) and counter (i / 4 low, i / 4
// high, call low, call high).
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Slot "dropout": out = x / (1 - p) where number `offset` + i of the key is at least p 2^32, else 0. out and
// x are contiguous and of one floating dtype. The same call on the gradient is the backward.
using DropoutFn = void(const LaunchContext&, const View& out, const View& x, double p, PhiloxKey key,
                       uint64_t offset);

// Slot "philox": out (contiguous int64) = the numbers themselves, each in [0, 2^32).
using PhiloxFn = void(const LaunchContext&, const View& out, PhiloxKey key, uint64_t offset);

// Slot "normal": x (contiguous Float32, uniform numbers of [0, 1)) becomes normal numbers, in place, in
// blocks of 16 whose element j is paired with j + 8 (Box and Muller's transform). Numbers after the last
// block stay.
using NormalFn = void(const LaunchContext&, const View& x, double mean, double std);

}  // namespace warptape::kernels
