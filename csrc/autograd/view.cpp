// Note [In-place on views]: a view and its base share memory, so an in-place op on the view changes the
// base's history too. The base's new node (CopySlices) sends the gradient of everything outside of the region
// straight on and that of the region through the op's own node; the view's node is made anew, as a region of
// the base, when the storage's version shows that anything was changed since.
#include "autograd/view.h"

#include "autograd/engine.h"

#include "core/errors.h"

namespace warptape {
namespace {

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

const char* refusal(ViewOrigin origin) {
  switch (origin) {
    case ViewOrigin::NoGrad:
      return "A view was created in no_grad mode and is being modified inplace with grad mode enabled.";
    case ViewOrigin::MultipleOutputs:
      return "Output of a function that returns multiple views is a view and is being modified inplace. This "
             "view is "
             "the output of a function that returns multiple views. Such functions do not allow the output "
             "views to "
             "be modified inplace. You should replace the inplace operation by an out-of-place one.";
    case ViewOrigin::CustomFunction:
      return "Output of a custom Function is a view and is being modified inplace. This view was created "
             "inside a "
             "custom Function (or because an input was returned as-is) and the autograd logic to handle "
             "view+inplace "
             "would override the custom backward associated with the custom Function.";
    case ViewOrigin::Recorded:
      break;
  }
  return nullptr;
}

}  // namespace

Tensor tape_take_region(const Tensor& base_gradient, const Region& r) {
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
  TensorOptions options = options_of(base_gradient.defined() ? base_gradient : part);
  if (r.base_dtype) options.dtype = *r.base_dtype;
  Tensor out = empty_strided(r.base_sizes, r.base_strides, options);
  if (base_gradient.defined()) {
    raw_copy(out, base_gradient);
  } else {
    raw_fill(out, 0);
  }
  Tensor region = region_view(out, r);
  if (part.defined()) {
    raw_copy(region, part);
  } else {
    raw_fill(region, 0);
  }
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
  if (thread_state.inference_mode && of->inference) return;
  const ViewInfo* outer = is_view(of) ? meta_of(of)->view.get() : nullptr;
  if (outer && outer->origin != ViewOrigin::Recorded) origin = outer->origin;
  if (origin == ViewOrigin::Recorded && !thread_state.grad_mode) origin = ViewOrigin::NoGrad;
  auto info = std::make_unique<ViewInfo>();
  info->base = outer ? outer->base : of;
  info->origin = origin;
  info->version = view.version();
  make_meta(view).view = std::move(info);
}

Ref<Node> grad_fn(const Tensor& t) {
  if (!t->extra) return {};
  AutogradMeta& m = *meta_of(t);
  if (!m.view || m.view->version == t.version() || t->unversioned) return m.node;
  const Tensor& base = m.view->base;
  if (!requires_grad(base) || m.view->origin != ViewOrigin::Recorded) return m.node;
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
  for (int64_t d = 0; d < t.ndim() && t.numel() > 0; ++d)
    WT_CHECK(
        t.strides()[d] != 0 || t.sizes()[d] <= 1, Error, op,
        ": unsupported operation: more than one element of the written-to tensor refers to a single memory "
        "location. Please clone() the tensor before performing the operation.");
  WT_CHECK(!t->inference || thread_state.inference_mode, Error, op,
           ": Inplace update to inference tensor outside InferenceMode is not allowed.You can make a clone "
           "to get a "
           "normal tensor before doing inplace update.");
  if (!recorded) return;
  if (is_view(t)) {
    const ViewInfo& v = *meta_of(t)->view;
    const char* why = refusal(v.origin);
    WT_CHECK(!why, Error, op, ": ", why);
    WT_CHECK(!(requires_grad(t) && is_leaf(v.base)), Error, op,
             ": a view of a leaf Variable that requires grad is being used in an in-place operation.");
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
