// Recording: what the tape knows about a tensor, and how an op puts a node on the tape.
#pragma once

#include "autograd/node.h"
#include "core/context.h"
#include "core/frontend.h"
#include "tensor/factory.h"

namespace warptape {

// How a view came to be decides whether it, its base or another view of its base may be changed in place.
enum class ViewOrigin : uint8_t { Recorded, NoGrad, MultipleOutputs, CustomFunction, Inference };

struct ViewInfo {
  Tensor base;  // never itself a view
  ViewOrigin origin = ViewOrigin::Recorded;
  uint32_t version = 0;  // at which the view's node was made
};

struct WT_API AutogradMeta final : TensorExtra {
  ~AutogradMeta() override;
  bool requires_grad = false;  // of a leaf
  bool retains_grad = false;
  uint32_t output = 0;          // of node
  Ref<Node> node;               // grad_fn; null for a leaf
  Node* accumulator = nullptr;  // of a leaf, while an edge leads to it; the node holds the tensor
  Tensor grad;
  std::unique_ptr<ViewInfo> view;
  std::vector<std::shared_ptr<TensorHook>> hooks;  // of a leaf
  std::vector<std::shared_ptr<TensorHook>> post_accumulate_hooks;
  std::shared_ptr<TensorHook> retain_hook;  // of retain_grad; also in the node, which may outlive this tensor
  static void* operator new(size_t size);
  static void operator delete(void* p);
};

inline AutogradMeta* meta_of(const Tensor& t) { return static_cast<AutogradMeta*>(t->extra.get()); }
WT_API AutogradMeta& make_meta(const Tensor& t);

inline bool requires_grad(const Tensor& t) {
  if (!t.defined() || !t->extra) return false;
  auto* m = meta_of(t);
  // A view that was made before its base came to require a gradient follows the base.
  return m->requires_grad || m->node || (m->view && requires_grad(m->view->base));
}
// RuntimeError unless the dtype is floating and the tensor is a leaf.
WT_API void set_requires_grad(const Tensor& t, bool value);
// With the node made anew when a view's base was changed in place. Error where that cannot be: see
// Note [In-place on views].
WT_API Ref<Node> grad_fn(const Tensor& t);
WT_API bool is_leaf(const Tensor& t);
WT_API Edge gradient_edge(const Tensor& t);  // empty when no gradient is required
WT_API void set_gradient_edge(const Tensor& t, Edge edge);
WT_API Ref<Node> gradient_accumulator(const Tensor& leaf);
WT_API const Tensor* accumulator_leaf_or_null(Node& node);  // of an AccumulateGrad node, else null

// Whether an op with these inputs is to be recorded.
template <class... T>
inline bool needs_grad(const T&... inputs) {
  return thread_state().grad_mode && (requires_grad(inputs) || ...);
}
inline bool requires_grad(const OptTensor& t) { return t && requires_grad(*t); }
WT_API bool any_requires_grad(TensorList inputs);

// Makes a node with one edge per input (an empty edge where no gradient is required). Call only when
// needs_grad().
//   if (needs_grad(a, b)) {
//     Ref<Node> n = record(kMulBackward, a, b);
//     n->save(a); n->save(b);
//     set_history(out, n);
//   }
WT_API Ref<Node> make_node(const NodeType& type);
WT_API void add_edge(Node& node, const Tensor& input);
inline void add_edge(Node& node, const OptTensor& input) { add_edge(node, input ? *input : Tensor()); }
template <class... T>
Ref<Node> record(const NodeType& type, const T&... inputs) {
  Ref<Node> n = make_node(type);
  (add_edge(*n, inputs), ...);
  return n;
}
WT_API Ref<Node> record_list(const NodeType& type, TensorList inputs);
// `out` becomes the node's next output. Tensors that cannot have a gradient (integers) are counted and left
// alone.
WT_API void set_history(const Tensor& out, const Ref<Node>& node);

// In-place ops: check before touching the data (throws PyTorch's errors for leaves and views that must not
// change), then bump the version after; then, when recorded, give the tensor its new history.
WT_API void check_inplace(const Tensor& t, const char* op, bool recorded);
WT_API void rebase_history(const Tensor& t, const Ref<Node>& node);

// Views: `view` shares the storage of `of`; remembers the base so that in-place changes reach the tape.
WT_API void set_view(const Tensor& view, const Tensor& of, ViewOrigin origin = ViewOrigin::Recorded);
inline bool is_view(const Tensor& t) { return t->extra && meta_of(t)->view; }
// Whether the memory of the tensor that `node` saved as number i can be reached through that alone.
WT_API bool only_saved(const Node& node, size_t i);
WT_API Tensor detach(const Tensor& t);  // a view (for version counting) without history

struct NoGrad : Restore<bool> {
  NoGrad() : Restore(own_thread_state().grad_mode, false) {}
};
struct GradMode : Restore<bool> {
  explicit GradMode(bool on) : Restore(own_thread_state().grad_mode, on) {}
};

// The ops that the tape itself needs, differentiable. Of opaque tensors those do it that OpaqueTape has.
WT_API Tensor tape_add(const Tensor& a, const Tensor& b);
WT_API Tensor tape_reduce_to(const Tensor& t, IntList sizes);
WT_API Tensor tape_cast(const Tensor& t, DType dtype);
WT_API Tensor tape_expand(const Tensor& t, IntList sizes);
struct Region;
struct OpaqueTape {
  decltype(&tape_add) add;
  decltype(&tape_reduce_to) reduce_to;
  decltype(&tape_expand) expand;
  decltype(&tape_cast) cast;
  Tensor (*detach)(const Tensor& t);
  Tensor (*take_region)(const Tensor& base_gradient, const Region& region);
  Tensor (*replace_region)(const Tensor& base_gradient, const Tensor& part, const Region& region);
};
WT_API void install(const OpaqueTape& tape);
inline bool is_opaque(const Tensor& t) { return t.defined() && t.storage().is_opaque(); }

// What the tape asks of Python, the part of Frontend that knows tensors: hooks on saved tensors, sparse
// tensors, opaque ones whose indices and values Python has, and tensors of classes that implement
// __torch_dispatch__, of which an op is a call of their class (kTorchDispatch), so that the tape reaches what
// they hold by ops alone.
class WT_API TapeFrontend {
 public:
  virtual ~TapeFrontend();
  // What the innermost hook makes of the tensor, while hooks are set (ThreadState::saved_tensor_hooks).
  virtual Ref<PackedTensor> pack(const Tensor& saved) = 0;
  virtual bool is_sparse(const Tensor& opaque) = 0;
  virtual Tensor add_sparse(const Tensor& a, const Tensor& b) = 0;  // one of them or both are sparse
  // A table's gradient [rows, dim] of the values [*, dim] at the indices [*], but for those of row `without`.
  virtual Tensor sparse_gradient(const Tensor& indices, const Tensor& values, int64_t rows,
                                 int64_t without) = 0;

  std::atomic<bool> any_dispatch{false};  // there was a tensor with __torch_dispatch__: before, none is asked
  virtual bool has_dispatch(const Tensor& t) = 0;  // of one that is not plain
  // What a leaf's gradient becomes with another; `old` is undefined where it has none.
  virtual Tensor accumulate(const Tensor& leaf, const Tensor& old, const Tensor& gradient) = 0;
  virtual Tensor ones_like(const Tensor& root) = 0;
};
inline TapeFrontend* tape_frontend() { return frontend().tape(); }  // null without Python
inline bool is_sparse(const Tensor& t) {
  return is_opaque(t) && tape_frontend() && tape_frontend()->is_sparse(t);
}
inline bool any_dispatch() {
  const TapeFrontend* tape = tape_frontend();
  return tape && tape->any_dispatch.load(std::memory_order_relaxed);
}
WT_API bool has_dispatch(const Tensor& t);

}  // namespace warptape
