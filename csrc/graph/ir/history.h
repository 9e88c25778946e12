// What the tape says of a tensor, to bring back after a call that is undone.
#pragma once

#include "autograd/tape.h"

namespace warptape::graph {

struct History {
  Tensor tensor;
  Edge edge;
  bool requires_grad = false;

  static History of(const Tensor& t) {
    if (!t->extra) return {t, {}, false};
    const AutogradMeta& m = *meta_of(t);
    return {t, {m.node, m.output}, m.requires_grad};
  }
  void restore() const {
    if (!tensor.defined() || !tensor->extra) return;
    AutogradMeta& m = *meta_of(tensor);
    if (m.node.get() == edge.node.get() && m.output == edge.index && m.requires_grad == requires_grad) return;
    set_gradient_edge(tensor, edge);
    m.requires_grad = requires_grad;
  }
};

}  // namespace warptape::graph
