// Dropout by counter-based random numbers: nothing but a key is kept for the backward.
#pragma once

#include "kernels/random/random.h"
#include "op/op.h"

namespace warptape::ops {

// input, p, training, inplace
extern WT_API const Op<Tensor(const Tensor&, double, bool, bool)> dropout;
// A fresh key of the rank's generator.
WT_API kernels::PhiloxKey next_dropout_key(Device device);
void check_probability(const char* op, double p);

// Whether dropout on this device draws PyTorch's masks, and what it then multiplies by: fills `out` and
// returns it.
bool draws_as_pytorch(Device device);
Tensor dropout_factors(const Tensor& out, double p);

// Which numbers a tensor of those sizes draws, as `_set_drop_parts` says: of one whose last dim is
// attention's heads, or of dropout's input.
WT_API kernels::PhiloxPart drop_part(IntList sizes, bool heads);

}  // namespace warptape::ops
