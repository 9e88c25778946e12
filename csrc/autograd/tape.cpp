#include "autograd/tape.h"

#include <mutex>

#include "autograd/engine.h"
#include "autograd/view.h"
#include "core/errors.h"
#include "core/free_list.h"
#include "kernels/cpu/interrupt.h"

namespace warptape {

std::string (*capture_traceback)() = nullptr;

void* AutogradMeta::operator new(size_t size) { return FreeList<AutogradMeta>::allocate(size); }
void AutogradMeta::operator delete(void* p) { FreeList<AutogradMeta>::deallocate(p); }
AutogradMeta::~AutogradMeta() {
  if (retain_hook) retain_hook->tensor_gone();
}

AutogradMeta& make_meta(const Tensor& t) {
  if (!t->extra) t->extra = std::make_unique<AutogradMeta>();
  return *meta_of(t);
}

void set_requires_grad(const Tensor& t, bool value) {
  if (value) {
    WT_CHECK(is_differentiable(t.dtype()), Error,
             "only Tensors of floating point and complex dtype can require gradients, got ", t.dtype());
    WT_CHECK(!t->inference || thread_state.inference_mode, Error,
             "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed.");
  } else {
    if (!t->extra) return;
    WT_CHECK(is_leaf(t), Error,
             "you can only change requires_grad flags of leaf variables. If you want to use a computed "
             "variable in a "
             "subgraph that doesn't require differentiation use var_no_grad = var.detach().");
  }
  AutogradMeta& m = make_meta(t);
  if (!m.node) m.requires_grad = value;
}

bool any_requires_grad(TensorList inputs) {
  for (const Tensor& t : inputs)
    if (requires_grad(t)) return true;
  return false;
}

// ---- leaves --------------------------------------------------------------------------------------------

namespace {

std::mutex accumulator_mutex;  // guards AutogradMeta::accumulator of every leaf

struct LeafData {
  Tensor leaf;
  Node* self;
  ~LeafData() {
    std::lock_guard lock(accumulator_mutex);
    AutogradMeta* m = meta_of(leaf);
    if (m->accumulator == self) m->accumulator = nullptr;
  }
};

void accumulate(AutogradMeta& m, const Tensor& leaf, Tensor gradient) {
  if (!m.grad.defined()) {
    // Taken over when nobody else holds it and it is laid out as the leaf; under create_graph it stays as it
    // is.
    bool own = gradient.ref()->use_count() == 1 && gradient.storage().use_count() == 1 && !gradient->python;
    bool same_layout = gradient.strides() == leaf.strides() || gradient.is_contiguous();
    if (thread_state.grad_mode) {
      m.grad = gradient;
    } else if (own && same_layout) {
      m.grad = std::move(gradient);
    } else {
      m.grad = empty_like_layout(leaf, leaf.dtype());
      raw_copy(m.grad, gradient);
    }
  } else if (thread_state.grad_mode) {
    m.grad = tape_add(m.grad, gradient);
  } else {
    raw_add(m.grad, m.grad, gradient);
    m.grad.bump_version();
  }
}

void accumulate_backward(Node& node, Gradients& g) {
  const Tensor& leaf = node.data<LeafData>().leaf;
  if (!g[0].defined()) return;
  AutogradMeta& m = *meta_of(leaf);
  Tensor gradient = std::move(const_cast<Tensor&>(g[0]));
  // By number and held: a hook may register more, which moves the list.
  for (size_t i = 0; i < m.hooks.size(); ++i) std::shared_ptr(m.hooks[i])->call(gradient);
  if (!gradient.defined()) return;
  static std::array<std::mutex, 16> stripes;  // several backward passes may reach one leaf
  {
    std::lock_guard lock(stripes[reinterpret_cast<uintptr_t>(&m) / sizeof(m) % stripes.size()]);
    kernels::cpu::Uninterrupted scope;
    accumulate(m, leaf, std::move(gradient));
  }
  Tensor kept = leaf;
  for (size_t i = 0; i < m.post_accumulate_hooks.size(); ++i)
    std::shared_ptr(m.post_accumulate_hooks[i])->call(kept);
}

const NodeType kAccumulateGrad{"AccumulateGrad", accumulate_backward};

}  // namespace

bool is_accumulator(const Node& node) { return node.type == &kAccumulateGrad; }
const Tensor* accumulator_leaf_or_null(Node& node) {
  return is_accumulator(node) ? &node.data<LeafData>().leaf : nullptr;
}

Ref<Node> gradient_accumulator(const Tensor& leaf) {
  AutogradMeta& m = *meta_of(leaf);
  std::lock_guard lock(accumulator_mutex);
  if (m.accumulator && m.accumulator->try_retain()) return Ref<Node>::adopt(m.accumulator);
  auto node = Ref<Node>::adopt(new Node(&kAccumulateGrad));
  node->emplace<LeafData>(leaf, node.get());
  node->outputs.emplace_back(OutputMeta{leaf.sizes(), leaf.dtype(), leaf.device()});
  m.accumulator = node.get();
  return node;
}

// ---- recording -----------------------------------------------------------------------------------------

Edge gradient_edge(const Tensor& t) {
  if (!t.defined() || !t->extra) return {};
  AutogradMeta& m = *meta_of(t);
  if (m.node || m.view) {
    if (Ref<Node> n = grad_fn(t)) return {std::move(n), m.output};
  }
  if (m.requires_grad) return {gradient_accumulator(t), 0};
  return {};
}

void set_gradient_edge(const Tensor& t, Edge edge) {
  AutogradMeta& m = make_meta(t);
  if (m.retain_hook && m.node && m.node->extras)  // retain_grad is about the tensor's value as it is now
    std::erase_if(m.node->extras->retain_grad, [&](auto& h) { return h.hook == m.retain_hook; });
  m.node = std::move(edge.node);
  m.output = edge.index;
  m.requires_grad = false;
  if (m.retain_hook && m.node) m.node->more().retain_grad.push_back({m.output, m.retain_hook});
}

Ref<Node> make_node(const NodeType& type) {
  auto n = Ref<Node>::adopt(new Node(&type));
  if (thread_state.anomaly_mode && capture_traceback) {
    n->more().traceback = capture_traceback();
    n->more().parent = Ref<Node>::share(current_node());
  }
  return n;
}

void add_edge(Node& node, const Tensor& input) { node.edges.push_back(gradient_edge(input)); }

Ref<Node> record_list(const NodeType& type, TensorList inputs) {
  Ref<Node> n = make_node(type);
  for (const Tensor& t : inputs) add_edge(*n, t);
  return n;
}

void set_history(const Tensor& out, const Ref<Node>& node) {
  auto index = static_cast<uint32_t>(node->outputs.size());
  node->outputs.emplace_back(OutputMeta{out.sizes(), out.dtype(), out.device()});
  if (is_differentiable(out.dtype())) set_gradient_edge(out, {node, index});
}

Tensor detach(const Tensor& t) {
  Tensor out = alias(t);
  return out;
}

// ---- the tape's own two ops ----------------------------------------------------------------------------

namespace {

void sum_backward(Node&, Gradients& g) {
  g.set(0, g[0]);
  g.set(1, g[0]);
}
const NodeType kTapeAdd{"AddBackward0", sum_backward};

void reduce_to_backward(Node& node, Gradients& g) {
  const Shape& sizes = node.data<Shape>();
  // The result stands for an input that was repeated: every repetition gets the gradient.
  g.set(0, tape_expand(g[0], sizes));
}
const NodeType kReduceTo{"SumToSizeBackward0", reduce_to_backward};

void expand_backward(Node& node, Gradients& g) { g.set(0, tape_reduce_to(g[0], node.data<Shape>())); }
const NodeType kTapeExpand{"ExpandBackward0", expand_backward};

void cast_backward(Node& node, Gradients& g) { g.set(0, tape_cast(g[0], node.data<DType>())); }
const NodeType kTapeCast{"ToCopyBackward0", cast_backward};

}  // namespace

Tensor tape_cast(const Tensor& t, DType dtype) {
  Tensor out = raw_cast(t, dtype);
  if (out.same(t)) return out;
  if (needs_grad(t)) {
    Ref<Node> n = record(kTapeCast, t);
    n->emplace<DType>(t.dtype());
    set_history(out, n);
  }
  return out;
}

Tensor tape_add(const Tensor& a, const Tensor& b) {
  Tensor out = empty_like_layout(a, a.dtype());
  raw_add(out, a, b);
  if (needs_grad(a, b)) set_history(out, record(kTapeAdd, a, b));
  return out;
}

Tensor tape_reduce_to(const Tensor& t, IntList sizes) {
  Tensor out = raw_reduce_to(t, sizes);
  if (needs_grad(t)) {
    Ref<Node> n = record(kReduceTo, t);
    n->emplace<Shape>(t.sizes());
    set_history(out, n);
  }
  return out;
}

Tensor tape_expand(const Tensor& t, IntList sizes) {
  Tensor out = expand_view(t, sizes);
  if (out.same(t)) out = alias(t);
  if (needs_grad(t)) {
    Ref<Node> n = record(kTapeExpand, t);
    n->emplace<Shape>(t.sizes());
    set_history(out, n);
  }
  return out;
}

}  // namespace warptape
