#include "autograd/tape.h"

#include <mutex>

#include "autograd/engine.h"
#include "autograd/inplace_view.h"
#include "autograd/recording.h"
#include "core/errors.h"
#include "core/frontend.h"
#include "core/memory/free_list.h"
#include "kernels/runtime/interrupt.h"
#include "tensor/before_write.h"
#include "tensor/deferral.h"
#include "tensor/memory_format.h"

namespace warptape {

namespace {
const OpaqueTape* opaque_tape = nullptr;
}  // namespace

TapeFrontend::~TapeFrontend() = default;
void install(const OpaqueTape& tape) { opaque_tape = &tape; }
bool has_dispatch(const Tensor& t) {
  return t.defined() && !t->plain && any_dispatch() && tape_frontend()->has_dispatch(t);
}

int64_t& recording_transforms() { return own_thread_state().recording_transforms; }

void* AutogradMeta::operator new(size_t size) {
  return FreeList<AutogradMeta, Pooled::AutogradMeta>::allocate(size);
}
void AutogradMeta::operator delete(void* p) { FreeList<AutogradMeta, Pooled::AutogradMeta>::deallocate(p); }
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
    WT_CHECK(!t->inference || thread_state().inference_mode, Error,
             "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed.");
  } else {
    if (!t->extra) return;
    WT_CHECK(is_leaf(t), Error,
             "you can only change requires_grad flags of leaf variables. If you want to use a computed "
             "variable in a subgraph that doesn't require differentiation use var_no_grad = var.detach().");
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

// The first gradient of a leaf: taken over when nobody else holds it and it is laid out as the leaf; under
// create_graph it stays as it is.
Tensor as_first(const Tensor& leaf, Tensor gradient) {
  if (has_dispatch(gradient)) return tape_frontend()->accumulate(leaf, {}, gradient);
  if (thread_state().grad_mode || is_sparse(gradient)) return gradient;
  bool own = gradient.ref()->use_count() == 1 && only_own(gradient.storage()) && !gradient->python;
  bool same_layout = gradient.strides() == leaf.strides() ||
                     (gradient.is_contiguous() && (leaf.is_contiguous() || !is_dense(leaf)));
  if (own && same_layout) return gradient;
  Tensor out = empty_like_layout(leaf, leaf.dtype());
  raw_copy(out, gradient);
  return out;
}

// Adds outside of the leaf, where another pass adds to it no longer; what fails leaves the leaf as it was.
Tensor sum_with(AutogradMeta& m, std::mutex& stripe, const Tensor& leaf, Tensor old, const Tensor& gradient) {
  try {
    if (has_dispatch(old)) return tape_frontend()->accumulate(leaf, old, gradient);
    return tape_add(old, gradient);
  } catch (...) {
    std::lock_guard lock(stripe);
    if (!m.grad.defined()) m.grad = std::move(old);
    throw;
  }
}

// Several backward passes may reach one leaf. Under the lock nothing runs but a kernel: what may wait for
// another thread (Python's ops of sparse tensors, the calls that are pending on memory) comes before.
void accumulate(AutogradMeta& m, const Tensor& leaf, Tensor gradient) {
  static std::array<std::mutex, 16> stripes;
  std::mutex& stripe = stripes[reinterpret_cast<uintptr_t>(&m) / sizeof(m) % stripes.size()];
  const auto ready = [](const Tensor& t) { return !t.storage().pending() && !t.storage().is_deferred(); };
  // In a compiled region the sum is recorded, whatever is pending on the two.
  const bool records = thread_state().deferral;
  bool first = false;  // whether `gradient` may become the leaf's
  for (Tensor settled;;) {
    std::unique_lock lock(stripe);
    if (!m.grad.defined()) {
      if (first) return void(m.grad = std::move(gradient));
      lock.unlock();
      gradient = as_first(leaf, std::move(gradient));
      first = true;
    } else if (thread_state().grad_mode || is_opaque(m.grad) || is_opaque(gradient)) {
      Tensor old = std::exchange(m.grad, Tensor());
      lock.unlock();
      gradient = sum_with(m, stripe, leaf, std::move(old), gradient);
      first = true;
    } else if (m.grad.same(settled) || (!records && ready(m.grad) && ready(gradient))) {
      raw_add(m.grad, m.grad, gradient);
      return m.grad.bump_version();
    } else {
      settled = m.grad;
      lock.unlock();
      before_write(settled);
      for (const Tensor* t : {&settled, &gradient})
        if (!records && t->storage().is_deferred()) t->data();
    }
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
  {
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

bool is_leaf(const Tensor& t) {
  if (!t->extra) return true;
  const AutogradMeta& m = *meta_of(t);
  if (m.node || !m.view) return !m.node;
  return m.view->origin != ViewOrigin::Recorded || !grad_fn(t);
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
  n->noted = thread_state().deferral || thread_state().times_backward;
  if (thread_state().anomaly_mode) {
    n->more().traceback = frontend().traceback();
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

Tensor detach(const Tensor& t) { return is_opaque(t) || has_dispatch(t) ? opaque_tape->detach(t) : alias(t); }

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
  if (is_opaque(t)) return opaque_tape->cast(t, dtype);
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
  if (is_sparse(a) || is_sparse(b)) return tape_frontend()->add_sparse(a, b);
  if (is_opaque(a) || is_opaque(b)) return opaque_tape->add(a, b);
  Tensor out = empty_like_layout(a, a.dtype());
  raw_add(out, a, b);
  if (needs_grad(a, b)) set_history(out, record(kTapeAdd, a, b));
  return out;
}

Tensor tape_reduce_to(const Tensor& t, IntList sizes) {
  if (is_opaque(t)) return opaque_tape->reduce_to(t, sizes);
  Tensor out = raw_reduce_to(t, sizes);
  if (needs_grad(t)) {
    Ref<Node> n = record(kReduceTo, t);
    n->emplace<Shape>(t.sizes());
    set_history(out, n);
  }
  return out;
}

Tensor tape_expand(const Tensor& t, IntList sizes) {
  if (is_opaque(t)) return opaque_tape->expand(t, sizes);
  Tensor out = expand_view(t, sizes);
  if (out.same(t)) out = alias(t);
  if (needs_grad(t)) {
    Ref<Node> n = record(kTapeExpand, t);
    n->emplace<Shape>(t.sizes());
    set_history(out, n);
  }
  return out;
}

// ---- views ---------------------------------------------------------------------------------------------
//
// Note [In-place on views]: a view and its base share memory, so an in-place op on the view changes the
// base's history too. The base's new node (CopySlices) sends the gradient of everything outside of the region
// straight on and that of the region through the op's own node; the view's node is made anew, as a region of
// the base, when the version shows that anything was changed since. A view whose node that would override
// (one of several of one node, or a custom Function's) or that was made where nothing is recorded has no node
// that holds after such a change: using it, and changing it, is refused.

namespace {

// From the start of the memory that the tensor's offset counts from, here `offset`, to its last element's
// end.
int64_t bytes_to_end(const Tensor& t, int64_t offset) {
  for (size_t d = 0; d < t.sizes().size(); ++d) offset += (t.sizes()[d] - 1) * t.strides()[d];
  return (offset + 1) * static_cast<int64_t>(t.itemsize());
}

Region region_of(const Tensor& view, const Tensor& base) {
  Region r{base.sizes(), base.strides(), view.sizes(), view.strides(), view.offset() - base.offset()};
  if (view.dtype() != base.dtype()) {
    r.dtype = view.dtype(), r.base_dtype = base.dtype();
    const auto item = static_cast<int64_t>(view.itemsize()),
               base_item = static_cast<int64_t>(base.itemsize());
    const int64_t bytes = view.offset() * item - base.offset() * base_item;
    WT_CHECK(bytes % item == 0, NotImplementedError,
             "a view as complex numbers whose base begins within one");
    r.offset = bytes / item;
  }
  WT_CHECK(!has_overlap(base), NotImplementedError, "a view of ", view, " whose base, of strides ",
           r.base_strides,
           ", has several elements in one memory location; clone() the base before it is changed in place");
  // as_strided_ and its like may leave the base smaller than its views.
  WT_CHECK(view.numel() == 0 || (r.offset >= 0 && bytes_to_end(view, r.offset) <= bytes_to_end(base, 0)),
           Error, "a view of ", view, " reaches beyond its base, whose geometry was changed in place to ",
           r.base_sizes, " and strides ", r.base_strides, ": its gradient has no place there");
  return r;
}

Tensor region_view(const Tensor& whole, const Region& r) {
  return alias(whole, r.sizes, r.strides, r.offset, r.dtype.value_or(whole.dtype()));
}

void take_backward(Node& node, Gradients& g) {
  g.set(0, tape_replace_region(Tensor(), g[0], node.data<Region>()));
}
const NodeType kTakeRegion{"AsStridedBackward0", take_backward};

void replace_backward(Node& node, Gradients& g) {
  const Region& r = node.data<Region>();
  if (g.wants(0)) g.set(0, tape_replace_region(g[0], Tensor(), r));
  if (g.wants(1)) g.set(1, tape_take_region(g[0], r));
}
const NodeType kReplaceRegion{"AsStridedScatterBackward0", replace_backward};

struct CopySlicesData {
  Region region;
  Ref<Node> fn;  // what the in-place op recorded; its edge 0 is the view itself
};

void copy_slices_backward(Node& node, Gradients& g) {
  auto& d = node.data<CopySlicesData>();
  if (!g[0].defined()) return;
  check_not_released(*d.fn);
  Tensor part = tape_take_region(g[0], d.region);
  SmallVector<Tensor, 4> inner(d.fn->edges.size());
  SmallVector<bool, 8> wanted(d.fn->edges.size(), false);
  for (size_t i = 0; i < inner.size(); ++i) wanted[i] = g.wants(i);
  Gradients sub({&part, 1}, {inner.data(), inner.size()}, wanted.data(), false);
  d.fn->type->backward(*d.fn, sub);
  for (size_t i = 1; i < inner.size(); ++i) g.set(i, inner[i]);
  Tensor own = inner[0];
  if (own.defined() && own.sizes() != d.region.sizes) own = tape_expand(own, d.region.sizes);
  if (g.wants(0)) g.set(0, tape_replace_region(g[0], own, d.region));
}

void copy_slices_release(Node& node) {
  Node& fn = *node.data<CopySlicesData>().fn;
  fn.release_saved();
  if (fn.type->release) fn.type->release(fn);
}
const NodeType kCopySlices{"CopySlices", copy_slices_backward, copy_slices_release};

}  // namespace

Tensor tape_take_region(const Tensor& base_gradient, const Region& r) {
  if (is_opaque(base_gradient)) return opaque_tape->take_region(base_gradient, r);
  Tensor whole = empty_strided(r.base_sizes, r.base_strides, options_of(base_gradient));
  raw_copy(whole, base_gradient);
  Tensor out = raw_clone(region_view(whole, r));
  if (needs_grad(base_gradient)) {
    Ref<Node> n = record(kTakeRegion, base_gradient);
    n->emplace<Region>(r);
    set_history(out, n);
  }
  return out;
}

Tensor tape_replace_region(const Tensor& base_gradient, const Tensor& part, const Region& r) {
  if (is_opaque(base_gradient) || is_opaque(part)) return opaque_tape->replace_region(base_gradient, part, r);
  TensorOptions options = options_of(base_gradient.defined() ? base_gradient : part);
  if (r.base_dtype) options.dtype = *r.base_dtype;
  Tensor out = empty_strided(r.base_sizes, r.base_strides, options);
  if (base_gradient.defined()) {
    raw_copy(out, base_gradient);
  } else {
    raw_fill(out, 0);
  }
  Tensor region = region_view(out, r);
  const bool sums = part.defined() && may_overlap(region);
  if (base_gradient.defined() && (sums || !part.defined())) raw_fill(region, 0);
  if (sums)
    add_into(region, part);
  else if (part.defined())
    raw_copy(region, part);
  if (needs_grad(base_gradient, part)) {
    Ref<Node> n = record(kReplaceRegion, base_gradient, part);
    n->emplace<Region>(r);
    set_history(out, n);
  }
  return out;
}

bool only_saved(const Node& node, size_t i) {
  const SavedTensor& saved = node.saved_raw(i);
  const Tensor& t = saved.raw();
  if (saved.packed() || !t.defined()) return false;
  auto only_use = [](const Tensor& x) { return x.ref()->use_count() == 1 && !x->python; };
  // A view keeps its base alive, which is of the same memory.
  const bool view = is_view(t);
  return only_use(t) && (!view || only_use(meta_of(t)->view->base)) &&
         t.storage().use_count() == (view ? 2u : 1u);
}

void set_view(const Tensor& view, const Tensor& of, ViewOrigin origin) {
  if (thread_state().inference_mode && of->inference) return;
  const ViewInfo* outer = is_view(of) ? meta_of(of)->view.get() : nullptr;
  if (origin != ViewOrigin::CustomFunction && !thread_state().grad_mode)
    origin = thread_state().inference_mode ? ViewOrigin::Inference : ViewOrigin::NoGrad;
  if (outer && origin == ViewOrigin::Recorded) origin = outer->origin;
  auto info = std::make_unique<ViewInfo>();
  info->base = outer ? outer->base : of;
  info->origin = origin;
  info->version = view.version();
  make_meta(view).view = std::move(info);
}

namespace {

// What a view that has no history of its own says of its origin: see Note [In-place on views].
[[noreturn]] void refuse_change(const AutogradMeta& m, const char* changed) {
  const ViewOrigin origin = m.view->origin;
  const bool inference = origin == ViewOrigin::Inference;
  const std::string output =
      m.node ? message("Output ", m.output, " of ", m.node->type->name) : std::string();
  if (inference || origin == ViewOrigin::NoGrad) {
    const char* mode = inference ? "inference_mode" : "no_grad";
    throw Error(message(
        m.node ? output + " is a view of a view which was created in " : "A view was created in ",
        inference ? "inference" : "no_grad", " mode and ", changed, " modified inplace ",
        inference ? "in normal mode" : "with grad mode enabled",
        ". Given that this use case is ambiguous and error-prone, it is forbidden. You can clarify your code "
        "by "
        "moving both the view and the inplace either both inside the ",
        mode,
        " block (if you don't want the inplace to be tracked) or both outside (if you want the inplace to "
        "be tracked)."));
  }
  throw Error(message(
      m.node ? output + " is a view and " : "Output of a function is a view and ", changed,
      " modified inplace. ",
      origin == ViewOrigin::MultipleOutputs
          ? "This view is the output of a function that returns multiple views. Such functions do not allow "
            "the "
            "output views to be modified inplace. You should replace the inplace operation by an "
            "out-of-place one."
          : "This view was created inside a custom Function (or because an input was returned as-is) and the "
            "autograd logic to handle view+inplace would override the custom backward associated with the "
            "custom "
            "Function, leading to incorrect gradients. This behavior is forbidden. You can fix this by "
            "cloning the "
            "output of the custom Function."));
}

}  // namespace

Ref<Node> grad_fn(const Tensor& t) {
  if (!t->extra) return {};
  AutogradMeta& m = *meta_of(t);
  if (!m.view || m.view->version == t.version()) return m.node;
  const Tensor& base = m.view->base;
  if (!m.node && !requires_grad(base)) return {};
  if (m.view->origin != ViewOrigin::Recorded)
    refuse_change(m, "its base or another view of its base has been");
  Edge to = gradient_edge(base);
  auto n = Ref<Node>::adopt(new Node(&kTakeRegion));
  n->emplace<Region>(region_of(t, base));
  n->edges.push_back(std::move(to));
  n->outputs.emplace_back(OutputMeta{t.sizes(), t.dtype(), t.device()});
  set_gradient_edge(t, {n, 0});
  m.view->version = t.version();
  return n;
}

void check_inplace(const Tensor& t, const char* op, bool recorded) {
  if (is_opaque(t) && !has_dispatch(t)) t.data();  // raises
  before_write(t);
  for (int64_t d = 0; d < t.ndim() && t.numel() > 0; ++d)
    WT_CHECK(
        t.strides()[d] != 0 || t.sizes()[d] <= 1, Error, op,
        ": unsupported operation: more than one element of the written-to tensor refers to a single memory "
        "location. Please clone() the tensor before performing the operation.");
  WT_CHECK(!t->inference || thread_state().inference_mode, Error, op,
           ": Inplace update to inference tensor outside InferenceMode is not allowed.You can make a clone "
           "to get a normal tensor before doing inplace update.");
  if (!recorded) return;
  if (is_view(t)) {
    const AutogradMeta& m = *meta_of(t);
    if (m.view->origin != ViewOrigin::Recorded) refuse_change(m, "is being");
    WT_CHECK(!(requires_grad(t) && is_leaf(m.view->base)), Error, op,
             ": a view of a leaf Variable that requires grad is being used in an in-place operation.");
    WT_CHECK(
        !has_overlap(t), Error, op,
        ": unsupported operation: more than one element of the written-to tensor refers to a single memory "
        "location, whose gradient is not defined. Please clone() the tensor before performing the "
        "operation.");
  }
  WT_CHECK(
      !(requires_grad(t) && is_leaf(t)), Error, op,
      ": a leaf Variable that requires grad is being used in an in-place operation. Use torch.no_grad() or "
      "operate on t.detach().");
}

void rebase_history(const Tensor& t, const Ref<Node>& node) {
  node->outputs.clear();
  node->outputs.emplace_back(OutputMeta{t.sizes(), t.dtype(), t.device()});
  if (!is_view(t)) return set_gradient_edge(t, {node, 0});
  ViewInfo& v = *meta_of(t)->view;
  Ref<Node> outer = make_node(kCopySlices);
  outer->edges.push_back(gradient_edge(v.base));
  for (size_t i = 1; i < node->edges.size(); ++i) outer->edges.push_back(node->edges[i]);
  if (!node->edges.empty()) node->edges[0] = {};  // the view's old history; gradients go by way of the base
  outer->emplace<CopySlicesData>(region_of(t, v.base), node);
  outer->outputs.emplace_back(OutputMeta{v.base.sizes(), v.base.dtype(), v.base.device()});
  set_gradient_edge(v.base, {outer, 0});
  v.version = t.version() - 1;  // so that the view's node is made anew, from the base
  grad_fn(t);
}

}  // namespace warptape
