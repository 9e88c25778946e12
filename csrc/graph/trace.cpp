#include "graph/trace.h"

#include "graph/call.h"
#include "graph/effects.h"
#include "graph/passes.h"
#include "tensor/factory.h"

namespace warptape::graph {
namespace {

thread_local Tracer* current_tracer = nullptr;

Dims numbers(IntList list) {
  Dims out;
  for (int64_t x : list) out.push_back({x});
  return out;
}

Attr number(const Scalar& s) {
  if (s.is_complex()) return s.to_complex();
  if (s.is_floating()) return s.to_double();
  if (s.is_bool()) return s.to_bool();
  return Dim{s.to_int()};
}

// Gives the branch's graph inputs for all of `captured`, in their order, after those that it was begun with.
void take_inputs(Tracer::Branch& b, const std::vector<Tensor>& captured) {
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

bool reads_values(const OpInfo& op, std::span<const Value> args) {
  std::vector<Value> values(args.begin(), args.end());
  std::deque<Tensor> without;
  for (size_t i = 0; i < args.size(); ++i)
    if (op.args[i].type == ArgType::Tensor && args[i].present && args[i].tensor->defined())
      values[i].tensor =
          &without.emplace_back(empty_strided(args[i].tensor->sizes(), args[i].tensor->strides(),
                                              {args[i].tensor->dtype(), Device{DeviceType::Meta, -1}}));
  Result out;
  try {
    op.run(op, values.data(), out);
  } catch (const Error&) {
    return true;
  }
  return false;
}

namespace {

bool trace(const OpInfo& op, std::span<Value> args, Result& out, Keep&) {
  current_tracer->call(op, args, out);
  return true;
}

}  // namespace

std::string (*where_called)() = [] { return std::string(); };

Tracer* Tracer::current() { return current_tracer; }

Tracer::Tracer(std::span<const Tensor> inputs)
    : outer_(std::exchange(current_tracer, this)), dispatch_(thread_state.dispatch) {
  thread_state.dispatch = (dispatch_ | kTrace) & ~kCapture;
  reads_are_errors = outer_ && outer_->reads_are_errors;
  for (const Tensor& t : inputs) {
    // A tensor that is given twice is another value of its own: a later run may get two tensors.
    graph_.inputs.push_back(add(t, GraphValue::Kind::Input));
  }
}

Tracer::~Tracer() { end(); }

void Tracer::end() {
  if (current_tracer != this) return;
  current_tracer = outer_;
  thread_state.dispatch = dispatch_;
}

void Tracer::name(const Tensor& t, std::string name) {
  kept_.push_back(t);
  names_[t.impl()] = std::move(name);
}

ValueId Tracer::add(const Tensor& t, GraphValue::Kind kind) {
  const ValueId r{static_cast<uint32_t>(graph_.values.size())};
  GraphValue& v = graph_.values.emplace_back();
  v.kind = kind;
  v.dtype = t.dtype();
  v.device = t.device();
  v.sizes = numbers(t.sizes());
  v.memory = memories_.try_emplace(&t.storage(), static_cast<uint32_t>(memories_.size())).first->second;
  if (kind == GraphValue::Kind::Constant) v.tensor = t;
  ids_[t.impl()] = r;
  kept_.push_back(t);
  return r;
}

ValueId Tracer::ref(const Tensor& t) {
  if (!t.defined()) return {};
  const void* key = t.impl();
  if (auto known = ids_.find(key); known != ids_.end()) return known->second;
  if (outer_) {  // the branch gets it as one more input
    outer_->ref(t);
    captured_.push_back(t);
    graph_.inputs.push_back(add(t, GraphValue::Kind::Input));
    return graph_.inputs.back();
  }
  const ValueId r = add(t, GraphValue::Kind::Constant);
  const auto named = names_.find(key);
  graph_.values[r.id].name = named != names_.end() ? named->second : message("constant_", r.id);
  return r;
}

Attr Tracer::attr(const Arg& arg, const Value& v) {
  if (!v.present) return std::monostate();
  switch (arg.type) {
    case ArgType::Tensor:
      return ref(*v.tensor);
    case ArgType::TensorList: {
      std::vector<ValueId> out;
      for (const Tensor& t : ArgTraits<TensorList>::unbox(v)) out.push_back(ref(t));
      return out;
    }
    case ArgType::OptTensorList: {
      std::vector<ValueId> out;
      for (const OptTensor& t : ArgTraits<std::span<const OptTensor>>::unbox(v))
        out.push_back(t ? ref(*t) : ValueId{});
      return out;
    }
    case ArgType::Int:
      return Dim{v.i};
    case ArgType::Double:
      return v.d;
    case ArgType::Bool:
      return v.b;
    case ArgType::Scalar:
      return number(v.scalar);
    case ArgType::IntList:
      return numbers(ArgTraits<IntList>::unbox(v));
    case ArgType::IntLists: {
      std::vector<Dims> out;
      for (const Shape& s : ArgTraits<std::span<const Shape>>::unbox(v)) out.push_back(numbers(s));
      return out;
    }
    case ArgType::DoubleList: {
      const auto list = ArgTraits<std::span<const double>>::unbox(v);
      return std::vector<double>(list.begin(), list.end());
    }
    case ArgType::ScalarList: {
      const auto list = ArgTraits<ScalarList>::unbox(v);
      return std::vector<Scalar>(list.begin(), list.end());
    }
    case ArgType::DType:
      return v.dtype;
    case ArgType::Device:
      return v.device;
    case ArgType::String:
      return std::string(ArgTraits<std::string_view>::unbox(v));
    case ArgType::Generator:
      WT_CHECK(!v.generator, NotImplementedError,
               "a graph draws from the default generator: leave out `generator` in what is traced");
      return std::monostate();
  }
  return std::monostate();
}

void Tracer::call(const OpInfo& op, std::span<Value> args, Result& out) {
  GraphCall call;
  call.op = &op;
  for (size_t i = 0; i < args.size(); ++i) call.args.push_back(attr(op.args[i], args[i]));
  {
    Restore<uint32_t> untraced(thread_state.dispatch, thread_state.dispatch & ~(kTrace | kCapture));
    op.run(op, args.data(), out);
  }
  each_result(out, [&](const Tensor& t) {
    call.out.push_back(t.defined() ? add(t, GraphValue::Kind::Result) : ValueId{});
  });
  if (call.out.empty() && written(call).empty()) {  // Python has what it told of a tensor
    if (reads_values(op, args)) read(op.name);
    return;
  }
  call.source = where_called();
  graph_.calls.push_back(std::move(call));
}

std::vector<Tensor> Tracer::control(Callee callee, std::vector<std::vector<Tensor>> operands,
                                    std::vector<Branch> branches) {
  std::vector<Tensor> captured;  // by any of the branches: each of them gets it
  for (const Branch& b : branches)
    for (const Tensor& t : b.captured)
      if (std::ranges::none_of(captured, [&](const Tensor& c) { return c.same(t); })) captured.push_back(t);
  GraphCall call;
  call.callee = callee;
  for (Branch& b : branches) {
    take_inputs(b, captured);
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
  std::vector<Tensor> out;
  {
    Restore<uint32_t> untraced(thread_state.dispatch, thread_state.dispatch & ~(kTrace | kCapture));
    out = run_control(call, std::move(operands));
  }
  for (const Tensor& t : out) call.out.push_back(add(t, GraphValue::Kind::Result));
  call.source = where_called();
  graph_.calls.push_back(std::move(call));
  return out;
}

Graph Tracer::finish(std::span<const Tensor> outputs) {
  WT_CHECK(current_tracer == this, Error, "a trace that began later has not ended");
  for (const Tensor& t : outputs) graph_.outputs.push_back(ref(t));
  end();
  eliminate_dead_code(graph_);
  if (!outer_) graph_.finish();
  return std::move(graph_);
}

void Tracer::read(const char* by) const {
  const std::string at = where_called();
  WT_CHECK(
      !reads_are_errors, Error, by, " reads a tensor's value", at.empty() ? "" : " at ", at,
      ", and a graph cannot depend on it. Write it with tensors: torch.where, torch.cond, torch.while_loop");
  warn(message("TracerWarning: ", by, " reads a tensor's value", at.empty() ? "" : " at ", at,
               "; the graph is the one for this value"));
}

void init_trace() { set_interceptor(kTrace, trace); }

}  // namespace warptape::graph
