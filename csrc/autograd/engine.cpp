// One backward pass: find the nodes that can be reached, count for each how many gradients it waits for, then
// run what is ready, newest first. Iterative throughout: the depth of the graph costs no stack.
#include "autograd/engine.h"

#include <atomic>
#include <cmath>
#include <exception>

#include "autograd/pass.h"
#include "core/errors.h"
#include "core/profiler.h"
#include "kernels/runtime/interrupt.h"
#include "tensor/deferral.h"
#include "tensor/memory_format.h"

namespace warptape {
namespace {

struct Running {
  Node* node = nullptr;
  Pass* pass = nullptr;
};
PerThread<Running> running;

struct BackwardRegion {
  explicit BackwardRegion(bool begins)
      : begins_(begins && !thread_state().deferral && installed_deferred_calls()) {
    if (begins_) installed_deferred_calls()->begin_backward();
  }
  // Throws what a kernel throws, unless the pass has thrown before.
  ~BackwardRegion() noexcept(false) {
    if (!begins_) return;
    try {
      installed_deferred_calls()->end_backward();
    } catch (...) {
      if (std::uncaught_exceptions() == exceptions_) throw;
    }
  }

 private:
  bool begins_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

Pass::State* Pass::find(Node* n) {
  if (n->task.load(std::memory_order_acquire) == this) return &states_[n->task_index];
  if (elsewhere_.empty()) return nullptr;
  auto it = elsewhere_.find(n);
  return it == elsewhere_.end() ? nullptr : &states_[it->second];
}

Pass::State& Pass::state(Node* n) {
  if (State* s = find(n)) return *s;
  void* expected = nullptr;
  if (n->task.compare_exchange_strong(expected, this, std::memory_order_acq_rel)) {
    n->task_index = static_cast<uint32_t>(states_.size());
  } else {
    elsewhere_.emplace(n, states_.size());
  }
  State& s = states_.emplace_back();
  s.node = n;
  noted |= n->noted;
  s.gradients.resize(n->outputs.size());
  return s;
}

void Pass::discover(std::span<const Edge> roots) {
  std::vector<Node*> open;
  for (const Edge& e : roots) {
    keep_.push_back(e.node);
    size_t known = states_.size();
    state(e.node.get());
    if (states_.size() > known) open.push_back(e.node.get());
  }
  walk(std::move(open));
}

void Pass::walk(std::vector<Node*> open) {
  while (!open.empty()) {
    Node* n = open.back();
    open.pop_back();
    const SmallVector<bool, 16>* left = find(n)->left;
    for (size_t i = 0; i < n->edges.size(); ++i) {
      const Edge& e = n->edges[i];
      if (!e || (left && !(*left)[i])) continue;
      size_t known = states_.size();
      ++state(e.node.get()).waiting;
      if (states_.size() > known) open.push_back(e.node.get());
    }
  }
}

void Pass::capture(const Edge& edge, size_t slot) {
  if (results.size() <= slot) results.resize(slot + 1);
  if (!edge) return;
  if (State* s = find(edge.node.get())) s->captures.push_back({edge.index, slot});
}

// With inputs given, a node runs only if it leads to a captured one. Edges lead to smaller sequence numbers,
// so one walk in that order sees every node after all that it leads to.
void Pass::keep_only_needed() {
  std::vector<size_t> order(states_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  auto rank = [&](size_t i) { return is_accumulator(*states_[i].node) ? 0 : states_[i].node->sequence; };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
  for (size_t i : order) {
    State& s = states_[i];
    s.needed = !s.captures.empty();
    for (const Edge& e : s.node->edges) s.needed |= e && find(e.node.get())->needed;
  }
}

static Tensor fit(const Tensor& gradient, const OutputMeta& meta, const Node& from, size_t index) {
  Tensor g = gradient;
  if (g.sizes() != meta.sizes) {
    bool expanded = g.sizes().size() >= meta.sizes.size();
    size_t shift = expanded ? g.sizes().size() - meta.sizes.size() : 0;
    for (size_t i = 0; expanded && i < meta.sizes.size(); ++i)
      expanded = meta.sizes[i] == 1 || meta.sizes[i] == g.sizes()[shift + i];
    WT_CHECK(expanded, ShapeError, "Function ", from.type->name, " returned an invalid gradient at index ",
             index, " - got ", g.sizes(), " but expected shape compatible with ", meta.sizes);
    g = tape_reduce_to(g, meta.sizes);
  }
  if (g.dtype() != meta.dtype) {
    // A complex gradient of a real number counts by its real part.
    WT_CHECK(is_differentiable(g.dtype()), DtypeError, "Function ", from.type->name,
             " returned a gradient of dtype ", g.dtype(), " at index ", index, ", expected ", meta.dtype);
    g = tape_cast(g, meta.dtype);
  }
  WT_CHECK(g.device() == meta.device, DeviceError, "Function ", from.type->name, " returned a gradient on ",
           g.device(), " at index ", index, ", expected ", meta.device);
  return g;
}

void Pass::seed(const Edge& edge, Tensor gradient) {
  Tensor& into = state(edge.node.get()).gradients[edge.index];
  into = into.defined() ? tape_add(into, gradient) : std::move(gradient);
}

void Pass::deliver(const Edge& edge, Tensor gradient) {
  State& s = *find(edge.node.get());
  if (gradient.defined()) {
    Tensor& into = s.gradients[edge.index];
    if (!into.defined()) {
      into = std::move(gradient);
    } else if (!thread_state().grad_mode && into.ref()->use_count() == 1 && only_own(into.storage()) &&
               is_dense(into) && !into->python && !is_opaque(gradient)) {
      raw_add(into, into, gradient);
    } else {
      into = tape_add(into, gradient);
    }
  }
  if (--s.waiting == 0) ready_.emplace(priority(*s.node), static_cast<size_t>(&s - states_.data()));
}

static bool has_nan(const Tensor& t) {
  if (is_complex(t.dtype())) return has_nan(raw_parts(t));
  Tensor wide = empty(t.sizes(), {DType::Float64, {}});
  raw_copy(wide, t);
  for (int64_t i = 0; i < wide.numel(); ++i)
    if (std::isnan(wide.data_as<double>()[i])) return true;
  return false;
}

void Pass::check_nan(Node& node, std::span<const Tensor> gradients) {
  if (!thread_state().anomaly_check_nan) return;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined() || gradients[i].device().is_meta() || is_opaque(gradients[i])) continue;
    WT_CHECK(!has_nan(gradients[i]), Error, "Function '", node.type->name, "' returned nan values in its ", i,
             "th output.",
             node.extras && !node.extras->traceback.empty()
                 ? "\nThe forward call that recorded it:\n" + node.extras->traceback
                 : std::string());
  }
}

SmallVector<Tensor, 4> Pass::backward(Node& node, State& s, bool last) {
  SmallVector<Tensor, 4> inputs(node.edges.size());
  SmallVector<bool, 16> wanted(node.edges.size(), false);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = follows(s, i);
  bool any = false;
  for (const Tensor& g : s.gradients) any |= g.defined();
  if (any) {
    check_not_released(node);
    Gradients g({s.gradients.data(), s.gradients.size()}, {inputs.data(), inputs.size()}, wanted.data(),
                last);
    if (thread_state().deferral)
      thread_state().deferral->backward(node, g, last);
    else
      node.type->backward(node, g);
  }
  return inputs;
}

// Calls f with each hook, held: hooks may register more on their node, which moves the list.
template <class List, class F>
void each_hook(const List& hooks, F&& f) {
  for (size_t i = 0; i < hooks.size(); ++i) {
    const auto hook = hooks[i];
    f(hook);
  }
}

void Pass::run_node(State& s) {
  Node& node = *s.node;
  NodeExtras* extras = node.extras.get();
  if (extras && !s.left) {  // or the pass that left something has run them
    auto call = [&](const NodeExtras::OutputHook& h) {
      if (s.gradients[h.output].defined()) h.hook->call(s.gradients[h.output]);
    };
    each_hook(extras->tensor_hooks, call);
    each_hook(extras->retain_grad, call);
    each_hook(extras->pre_hooks, [&](auto& h) { h->call({}, {s.gradients.data(), s.gradients.size()}); });
  }
  const bool leaf = is_accumulator(node);
  if (leaf && !options_.accumulate && !s.captures.empty() && s.gradients[0].defined())  // of autograd.grad
    each_hook(meta_of(*accumulator_leaf_or_null(node))->hooks, [&](auto& h) { h->call(s.gradients[0]); });
  for (const Capture& c : s.captures) results[c.slot] = s.gradients[c.output];
  bool leads_on = false;
  for (size_t i = 0; i < node.edges.size(); ++i) leads_on |= follows(s, i);
  if (leaf ? !options_.accumulate : !leads_on) return;

  Restore<Node*> mark(running->node, &node);
  const ProfiledScope profiled(node.type->name, EventKind::Backward, leaf ? 0 : node.sequence);
  SmallVector<Tensor, 1> seen;
  if (extras && !extras->post_hooks.empty()) seen = s.gradients;
  const bool last = !options_.retain_graph && !defer(s);
  SmallVector<Tensor, 4> inputs = backward(node, s, last);
  if (extras)
    each_hook(extras->post_hooks,
              [&](auto& h) { h->call({inputs.data(), inputs.size()}, {seen.data(), seen.size()}); });
  if (thread_state().anomaly_mode) check_nan(node, {inputs.data(), inputs.size()});
  s.gradients.clear();
  if (last && !leaf) {
    node.release_saved();
    if (node.type->release) node.type->release(node);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Edge& e = node.edges[i];
    if (!follows(s, i)) continue;
    Tensor g = std::move(inputs[i]);
    const DeferMemory defers;
    if (g.defined()) g = fit(g, e.node->outputs[e.index], node, i);
    deliver(e, std::move(g));
  }
}

void Pass::run() {
  const BackwardRegion region(noted);
  Restore<Pass*> mark(running->pass, this);
  for (size_t i = 0; i < states_.size(); ++i)
    if (states_[i].waiting == 0) ready_.emplace(priority(*states_[i].node), i);
  // A node whose consumers are all skipped never becomes ready by delivery; it is not needed then.
  while (!ready_.empty()) {
    size_t i = ready_.top().second;
    ready_.pop();
    kernels::cpu::poll_interrupt();
    if (states_[i].needed) run_node(states_[i]);
  }
  if (rest_) defer_roots();
  for (size_t i = 0; i < callbacks.size(); ++i) std::exchange(callbacks[i], nullptr)();  // may queue more
}

static Tensor root_gradient(const Tensor& root, const Tensor& given) {
  if (given.defined()) {
    WT_CHECK(given.sizes() == root.sizes(), ShapeError,
             "backward: Mismatch in shape: the gradient has a shape of ", given.sizes(),
             " and the output has a shape of ", root.sizes());
    WT_CHECK(given.device() == root.device(), DeviceError, "backward: expected a gradient on ", root.device(),
             ", got one on ", given.device());
    return given.dtype() == root.dtype() ? given : tape_cast(given, root.dtype());
  }
  WT_CHECK(root.numel() == 1, ShapeError,
           "backward: grad can be implicitly created only for scalar outputs, got shape ", root.sizes(),
           "; pass gradient= or reduce the output");
  WT_CHECK(is_floating(root.dtype()), DtypeError,
           "backward: grad can be implicitly created only for real scalar outputs but got ", root.dtype());
  if (has_dispatch(root)) return tape_frontend()->ones_like(root);
  return full(root.sizes(), 1.0, options_of(root));
}

Node* current_node() { return running->node; }

bool in_backward_pass() { return running->pass != nullptr; }

int64_t current_pass_number() { return running->pass ? running->pass->number : -1; }

int64_t Pass::next_number() {
  static std::atomic<int64_t> passes = 0;
  return passes.fetch_add(1, std::memory_order_relaxed);
}

void queue_callback(std::function<void()> f) {
  WT_CHECK(running->pass, Error, "Final callbacks can only be installed during backward pass.");
  running->pass->callbacks.push_back(std::move(f));
}

std::vector<Tensor> run_backward(TensorList roots, std::span<const Tensor> gradients, TensorList inputs,
                                 const BackwardOptions& options, DeferredBackward* rest) {
  std::vector<Edge> starts;
  std::vector<Tensor> seeds;
  for (size_t i = 0; i < roots.size(); ++i) {
    Edge e = gradient_edge(roots[i]);
    WT_CHECK(e, Error, "backward: element ", i,
             " of tensors does not require grad and does not have a grad_fn");
    seeds.push_back(root_gradient(roots[i], i < gradients.size() ? gradients[i] : Tensor()));
    starts.push_back(std::move(e));
  }
  std::vector<Edge> ends;
  for (const Tensor& t : inputs) {
    WT_CHECK(requires_grad(t), Error, "One of the differentiated Tensors does not require grad");
    ends.push_back(gradient_edge(t));
  }

  GradMode mode(options.create_graph);
  Pass pass(options, rest);
  pass.discover(starts);
  if (!inputs.empty()) {
    for (size_t i = 0; i < ends.size(); ++i) pass.capture(ends[i], i);
    pass.keep_only_needed();
  }
  for (size_t i = 0; i < starts.size(); ++i) pass.seed(starts[i], std::move(seeds[i]));
  pass.run();

  if (!options.allow_unused && !options.accumulate)
    for (size_t i = 0; i < inputs.size(); ++i)
      WT_CHECK(pass.results[i].defined(), Error,
               "One of the differentiated Tensors appears to not have been used in the graph. Set "
               "allow_unused=True if "
               "this is the desired behavior.");
  return std::move(pass.results);
}

}  // namespace warptape
