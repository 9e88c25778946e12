// Weights of a frozen graph that their kernels read packed: each is packed once, beside the weight itself.
//
// GraphCall::packed is for the call's second argument, a constant that no call writes. Its storage has the
// version that the weight's had: what others write later, the weight's owner for one, is seen by that, and
// the call reads the weight itself from then on. Storages that others may write unseen are not packed.
#pragma once

#include "graph/ir/effects.h"
#include "ops/linalg/linear_prepacked.h"
#include "ops/linalg/matmul.h"

namespace warptape::graph {

// The op that takes GraphCall::packed as its last argument: the call's own, or one that gives the same bits.
inline const OpInfo* reads_packed(const GraphCall& c) {
  return c.op == &ops::linear ? &ops::linear_prepacked : c.op;
}

inline void set_packed(GraphCall& c, const Tensor& weight, Tensor packed) {
  c.packed = std::move(packed);
  if (c.packed.defined()) c.packed.storage().set_version(weight.storage().version());
}

inline bool is_packed(const GraphCall& c, const Tensor& weight) {
  return c.packed.defined() && c.packed.storage().version() == weight.storage().version() &&
         !weight.storage().exported();
}

void pack_linear_weights(Graph& g, const Effects& effects);

}  // namespace warptape::graph
