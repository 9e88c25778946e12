#include "graph/record/trace.h"

#include "core/frontend.h"
#include "graph/ir/call.h"
#include "graph/ir/effects.h"
#include "graph/passes/passes.h"
#include "op/visit.h"
#include "tensor/factory.h"

namespace warptape::graph {
namespace {

PerThread<Tracer*> current_tracer;

Dims numbers(IntList list) {
  Dims out;
  for (int64_t x : list) out.push_back({x});
  return out;
}

// Gives the branch's graph inputs for all of `captured`, in their order, after those that it was begun with.
void add_inputs(Tracer::Branch& b, const std::vector<Tensor>& captured) {
  const size_t own = b.graph.inputs.size() - b.captured.size();
  const std::vector<ValueId> before = b.graph.inputs;
  b.graph.inputs.resize(own);
  for (const Tensor& t : captured) {
    const auto at = std::ranges::find_if(b.captured, [&](const Tensor& c) { return c.same(t); });
    if (at != b.captured.end()) {
      b.graph.inputs.push_back(before[own + static_cast<size_t>(at - b.captured.begin())]);
      continue;
    }
    b.graph.inputs.push_back({static_cast<uint32_t>(b.graph.values.size())});
    GraphValue& v = b.graph.values.emplace_back();
    v.kind = GraphValue::Kind::Input;
    v.dtype = t.dtype();
    v.device = t.device();
    v.sizes = numbers(t.sizes());
  }
}

}  // namespace

Result run_on_meta(const OpInfo& op, std::span<const Value> args,
                   const std::function<Tensor(const Tensor& t)>& like) {
  std::vector<Value> values(args.begin(), args.end());
  std::deque<Tensor> without;
  std::deque<std::vector<Tensor>> lists;
  std::deque<std::vector<OptTensor>> indices;
  const auto meta = [&](const Tensor& t) { return t.defined() ? like(t) : t; };
  for (size_t i = 0; i < args.size(); ++i) {
    if (!args[i].present) continue;
    if (op.args[i].type == ArgType::Tensor) values[i].tensor = &without.emplace_back(meta(*args[i].tensor));
    if (op.args[i].type == ArgType::TensorList) {
      auto& list = lists.emplace_back();
      for (const Tensor& t : ArgTraits<TensorList>::unbox(args[i])) list.push_back(meta(t));
      values[i].list = {list.data(), list.size()};
    }
    if (op.args[i].type == ArgType::OptTensorList) {
      auto& list = indices.emplace_back();
      for (const OptTensor& t : ArgTraits<std::span<const OptTensor>>::unbox(args[i]))
        list.push_back(t ? OptTensor(meta(*t)) : t);
      values[i].list = {list.data(), list.size()};
    }
  }
  const NoGrad no_grad;
  Result out;
  op.run(op, values.data(), out);
  return out;
}

bool reads_values(const OpInfo& op, std::span<const Value> args) {
  try {
    run_on_meta(op, args, [](const Tensor& t) {
      return empty_strided(t.sizes(), t.strides(), {t.dtype(), Device{DeviceType::Meta, -1}});
    });
  } catch (const Error&) {
    return true;
  }
  return false;
}

namespace {

bool trace(const OpInfo& op, std::span<Value> args, Result& out, Keep&) {
  (*current_tracer)->call(op, args, out);
  return true;
}

// Stands for the nodes of a call, which would hold what they save: see run_without_saving().
void refuse_backward(Node&, Gradients&) {
  throw NotImplementedError("a backward pass cannot be traced: its results have no history");
}
constexpr NodeType kTraced{"TracedBackward0", refuse_backward};

CallMode mode_of_thread() {
  CallMode mode;
  mode.no_grad = !thread_state().grad_mode;
  mode.autocast = thread_state().dispatch & (kAutocast | kAutocastCuda);
  if (mode.autocast & kAutocast) mode.cpu = thread_state().autocast_dtype;
  if (mode.autocast & kAutocastCuda) mode.cuda = thread_state().autocast_cuda_dtype;
  return mode;
}

bool returns_tensors(const OpInfo& op) {
  using Kind = Result::Kind;
  return op.returns == Kind::Tensor || op.returns == Kind::Tuple || op.returns == Kind::List ||
         op.returns == Kind::OneOrMany || op.returns == Kind::TensorAndList;
}

const Node* node_of(const Tensor& t) { return t.defined() && t->extra ? meta_of(t)->node.get() : nullptr; }

std::atomic<uint64_t> traces{0};

}  // namespace

Tracer* Tracer::current() { return *current_tracer; }
Tracer* Tracer::recording() { return (thread_state().dispatch & kTrace) ? *current_tracer : nullptr; }

Tracer::Tracer(std::span<const Tensor> inputs)
    : number(++traces),
      outer_(std::exchange(*current_tracer, this)),
      dispatch_(thread_state().dispatch),
      grad_mode_(thread_state().grad_mode),
      inference_mode_(thread_state().inference_mode) {
  if (outer_) {
    reads_are_errors = outer_->reads_are_errors;
  } else {
    own_thread_state().grad_mode = true;
    own_thread_state().inference_mode = false;
  }
  for (const Tensor& t : inputs) {
    Tensor own = alias(t);
    if (requires_grad(t)) set_requires_grad(own, true);
    graph_.inputs.push_back(add(own, GraphValue::Kind::Input));
    inputs_.push_back(std::move(own));
  }
  own_thread_state().dispatch = (dispatch_ | kTrace) & ~kCapture;
}

Tracer::~Tracer() { end(); }

void Tracer::end() {
  if (*current_tracer != this) return;
  *current_tracer = outer_;
  own_thread_state().dispatch = dispatch_;
  own_thread_state().grad_mode = grad_mode_;
  own_thread_state().inference_mode = inference_mode_;
  undo_writes();
}

void Tracer::name(const Tensor& t, std::string name) {
  named_.push_back(t);
  names_[t.impl()] = std::move(name);
}

bool Tracer::knows(const Tensor& t) const {
  return values_.contains(t.impl()) || names_.contains(t.impl()) || memories_.contains(&t.storage()) ||
         (outer_ && outer_->knows(t));
}

ValueId Tracer::add(const Tensor& t, GraphValue::Kind kind) {
  const ValueId r{static_cast<uint32_t>(graph_.values.size())};
  GraphValue& v = graph_.values.emplace_back();
  v.kind = kind;
  v.dtype = t.dtype();
  v.device = t.device();
  v.sizes = numbers(t.sizes());
  const bool result = kind == GraphValue::Kind::Result;
  const auto [memory, is_new] = memories_.try_emplace(&t.storage(), MemoryOf{next_memory_, 0, !result});
  next_memory_ += is_new;
  v.memory = memory->second.number;
  if (kind == GraphValue::Kind::Constant) v.tensor = t;
  memory->second.values += values_.insert_or_assign(t.impl(), Known{r, t}).second;
  if (result) live_.push_back(t.impl());
  return r;
}

// Forgets the results that nobody but the tracer holds: nothing can be called with them any more, and their
// memory is free as it would be in eager code.
void Tracer::drop_dead() {
  std::erase_if(live_, [&](const void* impl) {
    const auto at = values_.find(impl);
    if (at == values_.end()) return true;  // listed twice
    const Tensor& t = at->second.owner;
    if (t.impl()->use_count() != 1) return false;
    if (--memories_.at(&t.storage()).values == 0) memories_.erase(&t.storage());
    values_.erase(at);
    return true;
  });
}

ValueId Tracer::ref(const Tensor& t) {
  if (!t.defined()) return {};
  const void* key = t.impl();
  if (auto known = values_.find(key); known != values_.end()) return known->second.id;
  if (outer_) {  // the branch gets it as one more input
    outer_->ref(t);
    captured_.push_back(t);
    graph_.inputs.push_back(add(t, GraphValue::Kind::Input));
    return graph_.inputs.back();
  }
  const auto memory = memories_.find(&t.storage());
  WT_CHECK(memory == memories_.end() || memory->second.outside, NotImplementedError,
           "a graph cannot use a tensor that shares the memory of a result by other means than ops: ", t);
  const ValueId r = add(t, GraphValue::Kind::Constant);
  const auto named = names_.find(key);
  graph_.values[r.id].name = named != names_.end() ? named->second : message("constant_", r.id);
  return r;
}

Attr Tracer::attr(const Arg& arg, const Value& v) {
  if (!v.present) return std::monostate();
  const auto all = [](const auto& list, auto&& one) {
    std::vector<std::remove_cvref_t<decltype(one(*list.begin()))>> out;
    for (const auto& item : list) out.push_back(one(item));
    return out;
  };
  const auto itself = [](const auto& x) { return x; };
  return visit(
      arg.type, v,
      Overloaded{
          [](const auto& x) -> Attr { return x; },  // double, bool, DType, Device
          [&](const Tensor& t) -> Attr { return ref(t); },
          [&](TensorList list) -> Attr { return all(list, [&](const Tensor& t) { return ref(t); }); },
          [&](std::span<const OptTensor> list) -> Attr {
            return all(list, [&](const OptTensor& t) { return t ? ref(*t) : ValueId{}; });
          },
          [&](int64_t i) -> Attr { return dim(i); },
          [&](const Scalar& s) -> Attr { return scalar(s); },
          [&](IntList list) -> Attr { return dims(list); },
          [&](std::span<const Shape> list) -> Attr {
            return all(list, [&](const Shape& s) { return dims(s); });
          },
          [&](std::span<const double> list) -> Attr { return all(list, itself); },
          [&](ScalarList list) -> Attr { return all(list, itself); },
          [](std::string_view text) -> Attr { return std::string(text); },
          [](Generator* g) -> Attr {
            WT_CHECK(!g, NotImplementedError,
                     "a graph draws from the default generator: leave out `generator` in what is traced");
            return std::monostate();
          },
      });
}

// Memory from before the trace that the call writes: what it holds comes back at the end.
void Tracer::save_written(const GraphCall& call, std::span<const Tensor> tensors) {
  const std::vector<ValueId> ids = written(call);
  for (const Tensor& t : tensors) {
    const auto known = values_.find(t.impl());
    if (known == values_.end() || std::ranges::find(ids, known->second.id) == ids.end()) continue;
    if (!memories_.at(&t.storage()).outside || t.device().is_meta() || !t.storage().bytes()) continue;
    const auto same = [&](const Written& w) { return &w.all.storage() == &t.storage(); };
    if (std::ranges::any_of(written_, same)) continue;
    const NoGrad no_grad;
    const auto bytes = static_cast<int64_t>(t.storage().bytes());
    Tensor all = alias(t, {bytes}, {1}, 0, DType::UInt8);
    Tensor before = raw_clone(all);
    written_.push_back({std::move(all), std::move(before), t.version()});
  }
}

// What a call may make a tensor from before the trace say of itself.
void Tracer::save_history(const Tensor& t) {
  const auto memory = memories_.find(&t.storage());
  if (memory == memories_.end() || !memory->second.outside) return;
  const auto same = [&](const History& h) { return h.tensor.same(t); };
  if (std::ranges::none_of(histories_, same)) histories_.push_back(History::of(t));
}

void Tracer::undo_writes() {
  const NoGrad no_grad;
  const Restore<uint32_t> straight(own_thread_state().dispatch, 0);
  for (const Written& w : std::exchange(written_, {})) {
    raw_copy(w.all, w.before);
    w.all.storage().set_version(w.version);
  }
  for (const History& h : std::exchange(histories_, {})) h.restore();
}

// Tensors say of themselves what they do in eager code, and what it refuses is refused. But what backward
// needs would be held for as long as the trace runs: one node without it takes the place of the call's.
void Tracer::run_without_saving(const OpInfo& op, std::span<Value> args, std::span<const Tensor> tensors,
                                Result& out) {
  const bool recorded = thread_state().grad_mode && any_requires_grad(tensors);
  Ref<Node> traced;
  std::vector<std::pair<Tensor, const Node*>> before;
  if (recorded) traced = record_list(kTraced, {tensors.data(), tensors.size()});
  const auto with_base = [](const Tensor& t, auto&& f) {
    if (!t.defined()) return;
    f(t);
    if (is_view(t)) f(meta_of(t)->view->base);
  };
  for (const Tensor& t : tensors) {
    if (may_write(op)) with_base(t, [&](const Tensor& x) { save_history(x); });
    if (recorded) with_base(t, [&](const Tensor& x) { before.emplace_back(x, node_of(x)); });
  }
  {
    const Restore hooks(own_thread_state().saved_tensor_hooks, decltype(thread_state().saved_tensor_hooks)());
    try {
      op.run(op, args.data(), out);
    } catch (const NotImplementedError&) {
      // Layers in few bits refuse tensors that require a gradient before they do anything. The trace's grad
      // mode is not the caller's, who may have exported under no_grad().
      if (!recorded) throw;
      const NoGrad no_grad;
      op.run(op, args.data(), out);
      each_result(out, [&](const Tensor& t) {
        if (lacks_history(t)) set_history(t, traced);
      });
    }
  }
  if (!recorded) return;
  const auto replace = [&](const Tensor& t) {
    const Node* node = node_of(t);
    const auto was = std::ranges::find_if(before, [&](const auto& b) { return b.first.same(t); });
    if (node && node != traced.get() && (was == before.end() || was->second != node)) set_history(t, traced);
  };
  each_result(out, [&](const Tensor& t) { with_base(t, replace); });
  for (const auto& [t, node] : before) replace(t);
}

bool Tracer::are_sizes_unknown(const Tensor& t) const {
  const auto known = values_.find(t.impl());
  return known != values_.end() && known->second.unknown_sizes;
}

// They may where sizes of arguments do, and where the op does not work without values.
bool Tracer::sizes_depend_on_values(const OpInfo& op, std::span<const Value> args,
                                    std::span<const Tensor> tensors) const {
  bool unknown = false, meta = tensors.empty() || (op.flags & kRandom);
  for (const Tensor& t : tensors) {
    meta |= t.device().is_meta();
    unknown |= are_sizes_unknown(t);
  }
  return unknown || (!meta && returns_tensors(op) && reads_values(op, args));
}

// Python has what an op told of a tensor: the graph has no call of it.
void Tracer::tell(const OpInfo& op, std::span<Value> args, std::span<const Tensor> tensors, Result& out) {
  bool values, symbolic = false;
  if (has_marks(op, args)) refuse_size(op.name);
  {
    Restore<uint32_t> untraced(own_thread_state().dispatch, thread_state().dispatch & ~(kTrace | kCapture));
    op.run(op, args.data(), out);
    values = !tensors.empty() && reads_values(op, args);
  }
  for (const Tensor& t : tensors) {
    if (op.flags & kTellsAddress)  // another run has another, and a second trace may have the same by chance
      refuse(t, op.name);
    else if (values)
      read(t, op.name);
    else if (are_sizes_unknown(t) && !(op.flags & (kTellsNoSizes | kTellsDims)))
      symbolic = true;
    else if (!(op.flags & kTellsNoSizes))
      tell_sizes(t, op.name, op.flags & kTellsDims);
  }
  if (symbolic) tell_symbolic(op, args, tensors, out);
}

void Tracer::call(const OpInfo& op, std::span<Value> args, Result& out) {
  std::vector<Tensor> tensors;
  each_tensor(op, args, [&](const Tensor& t) { tensors.push_back(t); });
  if (!returns_tensors(op) && !may_write(op)) return tell(op, args, tensors, out);
  GraphCall call;
  call.op = &op;
  call.mode = mode_of_thread();
  for (size_t i = 0; i < args.size(); ++i) call.args.push_back(attr(op.args[i], args[i]));
  const bool marked = has_marks(op, args);
  if (marked) resolve_marks(op, args);
  save_written(call, tensors);
  bool unknown_sizes;
  {
    Restore<uint32_t> untraced(own_thread_state().dispatch, thread_state().dispatch & ~(kTrace | kCapture));
    unknown_sizes = marked || sizes_depend_on_values(op, args, tensors);
    run_without_saving(op, args, tensors, out);
  }
  each_result(out, [&](const Tensor& t) {
    call.out.push_back(t.defined() ? add(t, GraphValue::Kind::Result) : ValueId{});
    if (t.defined() && t.ndim() && unknown_sizes) {
      values_.at(t.impl()).unknown_sizes = true;
      for (Dim& d : graph_.values.back().sizes) d.expr = Dim::kUnknown;
    }
  });
  call.source = frontend().call_site();
  graph_.calls.push_back(std::move(call));
  tensors.clear();
  drop_dead();
}

std::vector<Tensor> Tracer::control(Callee callee, std::vector<std::vector<Tensor>> operands,
                                    std::vector<Branch> branches) {
  std::vector<Tensor> captured;  // by any of the branches: each of them gets it
  for (const Branch& b : branches)
    for (const Tensor& t : b.captured)
      if (std::ranges::none_of(captured, [&](const Tensor& c) { return c.same(t); })) captured.push_back(t);
  GraphCall call;
  call.callee = callee;
  call.mode.no_grad = !thread_state().grad_mode;
  for (Branch& b : branches) {
    add_inputs(b, captured);
    b.graph.finish();
    call.graphs.push_back(std::make_shared<Graph>(std::move(b.graph)));
  }
  std::ranges::copy(captured, std::back_inserter(operands.back()));
  for (size_t i = 0; i < operands.size(); ++i) {
    std::vector<ValueId> refs;
    for (const Tensor& t : operands[i]) refs.push_back(ref(t));
    if (callee == Callee::Cond && i == 0)
      call.args.push_back(refs.at(0));
    else
      call.args.push_back(std::move(refs));
  }
  std::vector<Tensor> out, inputs;
  for (const auto& list : operands) inputs.insert(inputs.end(), list.begin(), list.end());
  const bool grad_mode = thread_state().grad_mode, recorded = grad_mode && any_requires_grad(inputs);
  save_written(call, inputs);
  {
    const NoGrad no_grad;
    Restore<uint32_t> untraced(own_thread_state().dispatch, thread_state().dispatch & ~(kTrace | kCapture));
    out = run_control(call, std::move(operands));
  }
  for (Tensor& t : out) {
    // An operand that comes back is another value from here on.
    if (const auto at = values_.find(t.impl()); at != values_.end()) t = alias(t);
    if (grad_mode && is_view(t)) meta_of(t)->view->origin = ViewOrigin::Recorded;
    if (recorded && is_differentiable(t.dtype()) && !node_of(t)) set_history(t, record_list(kTraced, inputs));
    call.out.push_back(add(t, GraphValue::Kind::Result));
  }
  call.source = frontend().call_site();
  graph_.calls.push_back(std::move(call));
  return out;
}

Graph Tracer::finish(std::span<const Tensor> outputs) {
  WT_CHECK(*current_tracer == this, Error, "a trace that began later has not ended");
  for (const Tensor& t : outputs) graph_.outputs.push_back(ref(t));
  end();
  eliminate_dead_code(graph_);
  if (!outer_) graph_.finish();
  return std::move(graph_);
}

void Tracer::read(const Tensor& t, const char* by) const {
  if (!knows(t)) return;
  const std::string at = frontend().call_site();
  WT_CHECK(
      !reads_are_errors, Error, by, " reads a tensor's value", at.empty() ? "" : " at ", at,
      ", and a graph cannot depend on it. Write it with tensors: torch.where, torch.cond, torch.while_loop");
  const std::string text = message("TracerWarning: ", by, " reads a tensor's value", at.empty() ? "" : " at ",
                                   at, "; the graph is the one for this value");
  frontend().warn(text.c_str(), Frontend::Warning::Tracer);
}

void Tracer::refuse(const Tensor& t, const char* by) const {
  if (!knows(t)) return;
  const std::string at = frontend().call_site();
  throw NotImplementedError(message(by, " reads a tensor's value", at.empty() ? "" : " at ", at,
                                    ", or changes it, by other means than ops: a graph has no part of that. "
                                    "Write it with ops, or as an op of torch.library.custom_op"));
}

void Tracer::tell_sizes(const Tensor& t, const char* by, bool number_of_dims) {
  if (outer_) outer_->tell_sizes(t, by, number_of_dims);
  const auto known = values_.find(t.impl());
  if (known == values_.end() || graph_.values[known->second.id.id].kind == GraphValue::Kind::Constant) return;
  number_of_dims_told = true;
  if (number_of_dims) return;
  if (known->second.unknown_sizes) refuse_size(by);
  sizes_told = true;
}

void init_trace() { set_interceptor(kTrace, trace); }

}  // namespace warptape::graph
