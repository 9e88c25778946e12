// Rows of a table by index, and the sum of gradients by index. Indices are contiguous int64 in [0, vocab);
// others are reported as a fault (negative ones too).
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Slot "embedding": out [count, dim] contiguous = table[indices], table [vocab, dim] contiguous, any dtype.
using EmbeddingFn = void(const LaunchContext&, const View& out, const View& table, const View& indices,
                         int64_t count, int64_t vocab, int64_t dim);

// Slot "embedding_backward": dtable [vocab, dim], wholly written, from grad [count, dim]. Rows of one index
// are added in the order of the indices; those of padding_idx (-1 for none) are left out.
using EmbeddingBackwardFn = void(const LaunchContext&, const View& dtable, const View& grad,
                                 const View& indices, int64_t count, int64_t vocab, int64_t dim,
                                 int64_t padding_idx);

// Bag b has the indices [starts[b], starts[b + 1]).
struct BagPlan {
  DType dtype;
  int64_t bags, vocab, dim, padding_idx;  // padding_idx -1: all indices count
  bool mean;
  const int64_t *starts, *indices;
};
// Slot "embedding_bag" of the CPU: out [bags, dim] = the sum of table[index], times its weight where these
// are not null, or the mean; zeros for a bag where no index counts. All contiguous and of the plan's dtype.
using EmbeddingBagFn = void(const LaunchContext&, const BagPlan&, void* out, const void* table,
                            const void* weights);

}  // namespace warptape::kernels
