// Convolutions and transposed convolutions over one or two spatial dims. Shapes: input [N, C, (H,) W] or
// without N, weight [O, C / groups, (KH,) KW] (transposed: [C, O / groups, ...]), bias [O].
#pragma once

#include "ops/op.h"

namespace warptape::ops {

using ConvOp = Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, IntList, IntList, IntList, int64_t)>;
using ConvNamedOp =
    Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, IntList, std::string_view, IntList, int64_t)>;
using ConvTransposeOp =
    Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, IntList, IntList, IntList, int64_t, IntList)>;
extern WT_API const ConvOp conv1d, conv2d, conv3d;
extern WT_API const ConvNamedOp conv1d_named, conv2d_named, conv3d_named;  // padding "same" or "valid"
extern WT_API const ConvTransposeOp conv_transpose1d, conv_transpose2d, conv_transpose3d;

}  // namespace warptape::ops
