// Convolution over one or two spatial dims (one dim: height 1) and its gradients. A transposed convolution is
// the gradient by the input.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

struct ChainPlan;

// Shapes: input [N, C, H, W], weight [O, C / groups, KH, KW], output [N, O, OH, OW], all contiguous and of
// one floating dtype. Index 0 is the height. Output (y, x) reads input (y * stride[0] - padding[0] + ky *
// dilation[0], ...), zero outside: padding at the end follows from the output's size.
struct ConvPlan {
  DType dtype;
  int64_t batch, in_channels, out_channels, groups;
  int64_t in[2], out[2], kernel[2];
  int64_t stride[2], padding[2], dilation[2];
  // Of "conv" and "conv_channels_last" on the CPU: elementwise ops on the output, whose elements the plan
  // visits in their order in memory, run while they are in the cache.
  const ChainPlan* epilogue = nullptr;
  const void* packed = nullptr;  // of "conv_channels_last" on the CPU: see ConvPackFn
};

// Slot "conv": output = convolution + bias [O] (null for none).
using ConvFn = void(const LaunchContext&, const ConvPlan&, void* output, const void* input,
                    const void* weight, const void* bias);
// Slot "conv_channels_last_pack" on the CPU: packs the weight into memory aligned to 64 bytes, if `packed` is
// not null; returns the bytes that it takes. Of the plan dtype, channels, groups and kernel count.
using ConvPackFn = int64_t(const LaunchContext&, const ConvPlan&, void* packed, const void* weight);
// Slot "conv_backward_input": gradient of input, all of it.
using ConvBackwardInputFn = void(const LaunchContext&, const ConvPlan&, void* grad_input,
                                 const void* grad_output, const void* weight);
// Slot "conv_backward_weight": gradient of weight.
using ConvBackwardWeightFn = void(const LaunchContext&, const ConvPlan&, void* grad_weight,
                                  const void* grad_output, const void* input);

// The same with channels innermost: input [N, H, W, C], weight [O, KH, KW, C / groups], output [N, OH, OW,
// O]. Slots "conv_channels_last", "conv_channels_last_backward_input" and
// "conv_channels_last_backward_weight". Of one channel per group on both sides, on the CPU: "conv_depthwise",
// "conv_depthwise_backward_input", "conv_depthwise_backward_weight"; and row-major "conv_planes",
// "conv_planes_backward_input", "conv_planes_backward_weight".

}  // namespace warptape::kernels
