// Attention of sequences of several lengths that lie one behind the other.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, left, right, seqused_k
extern WT_API const Op<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                  const Tensor&, int64_t, int64_t, std::optional<double>,
                                                  int64_t, int64_t, const OptTensor&)>
    varlen_attention;

}  // namespace warptape::ops
