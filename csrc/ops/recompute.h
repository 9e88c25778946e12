// Second gradients of what has a fused kernel: through a composed form of the same function.
#pragma once

#include <vector>

#include "autograd/engine.h"
#include "ops/view/view.h"

namespace warptape::ops {

// The gradients, recorded: those of composed(inputs), run anew on inputs that are the graph's only leaves.
// `saved` are the inputs in the node's order; those not given are undefined.
template <class F>
void recomputed_backward(std::span<const Tensor> saved, Gradients& g, F&& composed) {
  std::vector<Tensor> in(saved.begin(), saved.end()), inputs;
  for (size_t i = 0; i < saved.size(); ++i) {
    if (!saved[i].defined() || !g.wants(i)) continue;
    in[i] = view(saved[i], saved[i].sizes());
    inputs.push_back(in[i]);
  }
  const Tensor out = composed(std::span<const Tensor>(in));
  BackwardOptions options;
  options.create_graph = options.retain_graph = options.allow_unused = true;
  options.accumulate = false;
  std::vector<Tensor> found = run_backward({&out, 1}, {&g[0], 1}, inputs, options);
  for (size_t i = 0, k = 0; i < saved.size(); ++i)
    if (saved[i].defined() && g.wants(i)) g.set(i, std::move(found[k++]));
}

}  // namespace warptape::ops
