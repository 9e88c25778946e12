// Recurrent layers.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// input, batch_sizes, hx, cx, weight_ih, weight_hh, bias_ih, bias_hh, weight_hr, mode, reverse
extern WT_API const Op<std::vector<Tensor>(const Tensor&, IntList, const Tensor&, const OptTensor&,
                                           const Tensor&, const Tensor&, const OptTensor&, const OptTensor&,
                                           const OptTensor&, std::string_view, bool)>
    recurrent_layer;

}  // namespace warptape::ops
