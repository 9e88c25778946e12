// Convolutions and transposed convolutions over one or two spatial dims. Shapes: input [N, C, (H,) W] or
// without N, weight [O, C / groups, (KH,) KW] (transposed: [C, O / groups, ...]), bias [O].
#pragma once

#include "op/op.h"

namespace warptape::ops {

using ConvOp = Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, IntList, IntList, IntList, int64_t)>;
using ConvNamedOp =
    Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, IntList, std::string_view, IntList, int64_t)>;
using ConvTransposeOp =
    Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, IntList, IntList, IntList, int64_t, IntList)>;
extern WT_API const ConvOp conv1d, conv2d, conv3d;
extern WT_API const ConvNamedOp conv1d_named, conv2d_named, conv3d_named;  // padding "same" or "valid"
// relu(conv2d(input, weight, bias, ..) + residual), without what is None or false, to the bit; `packed` may
// be what pack_conv_weight() made of the weight. What a frozen graph calls.
using ConvAddReluOp = Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, const OptTensor&, IntList,
                                IntList, IntList, int64_t, bool, const OptTensor&, bool)>;
extern WT_API const ConvAddReluOp conv2d_add_relu;
// The weight of conv2d_add_relu as its kernel reads it; undefined where that does not read it packed.
WT_API Tensor pack_conv_weight(const Tensor& weight, int64_t groups);
extern WT_API const ConvTransposeOp conv_transpose1d, conv_transpose2d, conv_transpose3d;

}  // namespace warptape::ops
