// The backward pass.
#pragma once

#include <functional>

#include "autograd/node.h"

namespace warptape {

struct DeferredBackward;  // split_backward.h: where a pass notes what it leaves

struct BackwardOptions {
  bool retain_graph = false;
  bool create_graph = false;
  bool allow_unused = false;
  bool accumulate = true;  // into .grad of the leaves; false for autograd.grad
};

// Runs the graph from `roots` with the gradients given (an undefined gradient of a one-element root is 1).
// With `inputs`, only what leads to them runs, and their gradients are returned in order (undefined when
// unused) unless `accumulate` is set, in which case they are added to the inputs' .grad. Backward inside
// backward is allowed; several threads may run passes over shared graphs.
WT_API std::vector<Tensor> run_backward(TensorList roots, std::span<const Tensor> gradients,
                                        TensorList inputs, const BackwardOptions& options,
                                        DeferredBackward* rest = nullptr);

// Calls `f` at the end of the pass that runs on this thread, if the pass gets there; otherwise `f` is just
// destroyed. RuntimeError outside of a backward pass.
WT_API void queue_callback(std::function<void()> f);

// Throws a RuntimeError when a backward pass freed what the node had saved.
WT_API void check_not_released(const Node& node);

// The node whose backward runs on this thread, or null.
WT_API Node* current_node();
// Whether a backward pass runs on this thread, hooks included.
WT_API bool in_backward_pass();
// The number of the pass that runs on this thread, -1 outside of one.
WT_API int64_t current_pass_number();

}  // namespace warptape
