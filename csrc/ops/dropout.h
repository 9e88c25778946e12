// Dropout by counter-based random numbers: nothing but a key is kept for the backward.
#pragma once

#include "ops/op.h"

namespace warptape::ops {

// input, p, training, inplace
extern WT_API const Op<Tensor(const Tensor&, double, bool, bool)> dropout;
// A fresh key of the rank's generator.
WT_API kernels::PhiloxKey next_dropout_key(Device device);
void check_probability(const char* op, double p);

}  // namespace warptape::ops
