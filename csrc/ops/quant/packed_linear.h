// Linear layers on weights that are packed once, for inference: a row of the output depends on its own row of
// the input alone, to the bit, whatever rows share the call and however many threads run.
//
// Shapes: N outputs, K inputs, P = ceil(N / 16).
#pragma once

#include "op/op.h"

namespace warptape::ops {

// weight [N, K] -> [P, K, 16] of float32, [P, ceil(K / 2), 16, 2] of bfloat16.
extern WT_API const Op<Tensor(const Tensor&)> pack_linear_weight;
// input [..., K], packed, out_features N, bias [N] -> [..., N]
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, int64_t, const OptTensor&)> packed_linear;

// Checks of linear layers without a gradient: `op` is their name.
void check_inference(const char* op, const Tensor& input, const OptTensor& bias);
// The sizes of the result [..., out_features]; throws unless the input is [..., in_features].
Shape linear_sizes(const char* op, const Tensor& input, int64_t in_features, int64_t out_features);
// The bias as [out_features], contiguous, undefined where absent; of the input's dtype.
Tensor linear_bias(const char* op, const Tensor& input, const OptTensor& bias, int64_t out_features);

}  // namespace warptape::ops
