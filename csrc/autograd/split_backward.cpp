#include "autograd/split_backward.h"

#include "autograd/pass.h"
#include "autograd/tape.h"
#include "core/errors.h"

namespace warptape {

// Starts where the pass that made `rest` stopped. Its nodes lead to that pass's inputs, the edges left do
// not: so no node of `rest` with edges left is reached from another.
void Pass::resume(const DeferredBackward& rest) {
  std::vector<Node*> open;
  for (const DeferredBackward::Entry& entry : rest.entries) {
    keep_.push_back(entry.node);
    State& s = state(entry.node.get());
    if (!entry.left.empty()) s.left = &entry.left;
    s.gradients = entry.gradients;
    open.push_back(entry.node.get());
  }
  walk(std::move(open));
}

// Notes what this pass leaves of a node; false when nothing.
bool Pass::defer(const State& s) {
  if (!rest_ || is_accumulator(*s.node)) return false;
  DeferredBackward::Entry entry{Ref<Node>::share(s.node), s.gradients, {}};
  bool any = false;
  for (size_t i = 0; i < s.node->edges.size(); ++i) {
    entry.left.push_back(s.node->edges[i] && !follows(s, i));
    any |= entry.left[i];
  }
  if (any) rest_->entries.push_back(std::move(entry));
  return any;
}

// Roots that lead elsewhere only: nothing else delivers to a node that is not needed.
void Pass::defer_roots() {
  auto defined = [](const Tensor& g) { return g.defined(); };
  for (State& s : states_)
    if (!s.needed && std::any_of(s.gradients.begin(), s.gradients.end(), defined))
      rest_->entries.push_back({Ref<Node>::share(s.node), std::move(s.gradients), {}});
}

std::vector<Tensor> run_backward_inputs(TensorList roots, std::span<const Tensor> gradients,
                                        TensorList inputs, DeferredBackward& rest) {
  WT_CHECK(!inputs.empty(), Error, "backward: expected inputs whose gradients come first, got none");
  return run_backward(roots, gradients, inputs, {.allow_unused = true, .accumulate = false}, &rest);
}

void run_deferred(DeferredBackward& rest) {
  GradMode mode(false);
  const BackwardOptions options;
  Pass pass(options);
  pass.resume(rest);
  pass.run();
  rest.entries.clear();
}

}  // namespace warptape
