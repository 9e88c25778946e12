// A backward pass in two halves, as pipelines without bubbles want it: what another rank waits for comes
// first.
#pragma once

#include "autograd/engine.h"

namespace warptape {

// What a pass that stopped short has still to do: nodes, the gradients of their outputs, and which of their
// edges were not followed (none named: all, and the node itself has not run).
struct WT_API DeferredBackward {
  struct Entry {
    Ref<Node> node;
    SmallVector<Tensor, 1> gradients;
    SmallVector<bool, 16> left;
  };
  std::vector<Entry> entries;
};

// The gradients of `inputs` (undefined where unused), and in `rest` what leads elsewhere: to the parameters.
// run_deferred(rest) does that later and adds to the leaves' .grad. A node on the way to both runs twice,
// each time for other gradients; all others run once. What a node saved is freed when it has no more to do.
WT_API std::vector<Tensor> run_backward_inputs(TensorList roots, std::span<const Tensor> gradients,
                                               TensorList inputs, DeferredBackward& rest);
WT_API void run_deferred(DeferredBackward& rest);

}  // namespace warptape
