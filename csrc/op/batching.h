// Batching rules that declarations name: of ops that none of the general ones fits.
#pragma once

#include "op/op.h"

namespace warptape::batching {

// Constants, so that declarations may name them whatever the order of initialisation.
extern WT_API const OpFacts product, linear, addmm, baddbmm, addmv, conv1d, conv2d, conv3d, unsqueeze,
    squeeze, permute, t, cat, stack, as_strided, flatten, index, index_put, index_select, index_slices,
    embedding, layer_norm, rms_norm, group_norm, batch_norm, attention, cross_entropy;

}  // namespace warptape::batching
