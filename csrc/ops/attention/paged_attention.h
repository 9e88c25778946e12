// Attention over keys and values in pages: see kernels/attention/paged_attention.h. For inference: nothing is
// recorded.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// key_pages, value_pages, k, v, slots, key_scales, value_scales
extern WT_API const Op<void(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                            const OptTensor&, const OptTensor&)>
    paged_store;

// q, key_pages, value_pages, page_table, starts, lengths, scale, window, key_scales, value_scales, cap, sinks
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, std::optional<double>, std::optional<int64_t>, const OptTensor&,
                              const OptTensor&, std::optional<double>, const OptTensor&)>
    paged_attention;

}  // namespace warptape::ops
