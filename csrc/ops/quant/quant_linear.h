// Linear layers on weights of 8 or 4 bits, for inference. Layouts: kernels/quant/quant_linear.h.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// weight [N, K], bits, group, symmetric -> codes, scales and, unless symmetric, minima
extern WT_API const Op<std::vector<Tensor>(const Tensor&, int64_t, int64_t, bool)> quantize_linear_weight;
// codes [N, K], bits, half -> packed; kernels/quant/quant_linear.h
extern WT_API const Op<Tensor(const Tensor&, int64_t, int64_t)> pack_linear_codes;
// input [..., K], packed, scales, minima, out_features N, bits, group, bias [N] -> [..., N]
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, const OptTensor&, int64_t, int64_t,
                              int64_t, const OptTensor&)>
    quant_linear;
// input [..., K], weight [N, K], of float8_e4m3fn -> [..., N] of float32
extern WT_API const Op<Tensor(const Tensor&, const Tensor&)> float8_linear;

}  // namespace warptape::ops
