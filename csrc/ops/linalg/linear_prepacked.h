// linear on a weight that was packed once, to the bit as linear.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// `packed` may be what pack_linear_weight() made of the weight. What a frozen graph calls.
using LinearPrepackedOp = Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, const OptTensor&)>;
extern WT_API const LinearPrepackedOp linear_prepacked;
// The weight of linear_prepacked as its kernel reads it; undefined where that does not read it packed.
WT_API Tensor pack_linear_weight(const Tensor& weight);
// linear, with the packed weight or null.
Tensor linear_with(const Tensor& x, const Tensor& w, const OptTensor& bias, const void* packed);

}  // namespace warptape::ops
