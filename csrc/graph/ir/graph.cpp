// Checking a graph, and running it.
#include "graph/ir/graph.h"

#include "graph/ir/call.h"
#include "graph/ir/packed_weights.h"
#include "graph/run/run_memory.h"
#include "ops/autocast.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::graph {
namespace {

// Whether the declaration takes the argument.
struct Accepts {
  const Arg& arg;
  bool is(ArgType t) const { return arg.type == t; }

  bool operator()(std::monostate) const { return arg.optional; }
  bool operator()(ValueId r) const { return is(ArgType::Tensor) && (arg.optional || r.id != ValueId::kNone); }
  bool operator()(const std::vector<ValueId>& list) const {
    const bool all = std::ranges::none_of(list, [](ValueId r) { return r.id == ValueId::kNone; });
    return is(ArgType::OptTensorList) || (is(ArgType::TensorList) && all);
  }
  bool operator()(Dim) const { return is(ArgType::Int) || is(ArgType::Scalar); }
  bool operator()(double) const { return is(ArgType::Double) || is(ArgType::Scalar); }
  bool operator()(bool) const { return is(ArgType::Bool) || is(ArgType::Scalar); }
  bool operator()(Complex<double>) const { return is(ArgType::Scalar); }
  bool operator()(const Dims&) const { return is(ArgType::IntList); }
  bool operator()(const std::vector<Dims>&) const { return is(ArgType::IntLists); }
  bool operator()(const std::vector<double>&) const { return is(ArgType::DoubleList); }
  bool operator()(const std::vector<Scalar>&) const { return is(ArgType::ScalarList); }
  bool operator()(DType) const { return is(ArgType::DType); }
  bool operator()(Device) const { return is(ArgType::Device); }
  bool operator()(const std::string&) const { return is(ArgType::String); }
};

// What control flow asks of a call: how many graphs, and which arguments they take.
void check_control(const GraphCall& c) {
  const size_t graphs = c.callee == Callee::Scan ? 1 : 2;
  WT_CHECK(c.graphs.size() == graphs, Error, "graph: ", c.name(), " has ", c.graphs.size(), " graphs");
  const size_t lists = c.callee == Callee::Scan ? 3 : 2;
  WT_CHECK(c.args.size() == lists, Error, "graph: ", c.name(), " has ", c.args.size(), " arguments");
  size_t operands = 0;
  for (size_t i = 0; i < lists; ++i) {
    const bool one = c.callee == Callee::Cond && i == 0;
    const auto* list = std::get_if<std::vector<ValueId>>(&c.args[i]);
    WT_CHECK(one ? std::holds_alternative<ValueId>(c.args[i]) : list != nullptr, Error, "graph: argument ", i,
             " of ", c.name(), " is of another kind");
    if (list) operands += list->size();
  }
  for (const auto& g : c.graphs)
    WT_CHECK(g->inputs.size() == operands, Error, "graph: a graph of ", c.name(), " takes ", g->inputs.size(),
             " inputs and gets ", operands);
  const auto carried = [&] { return std::get<std::vector<ValueId>>(c.args[0]).size(); };
  const auto results = [&](size_t i) { return c.graphs[i]->outputs.size(); };
  const bool fits = c.callee == Callee::Cond ? results(0) == c.out.size() && results(1) == c.out.size()
                    : c.callee == Callee::WhileLoop
                        ? results(0) == 1 && results(1) == c.out.size() && c.out.size() == carried()
                        : results(0) == c.out.size() && c.out.size() >= carried();
  WT_CHECK(fits, Error, "graph: the graphs of ", c.name(), " have another number of results");
}

class Checker {
 public:
  explicit Checker(Graph& g) : g_(g), defined_(g.values.size()), bound_(g.symbols.size()) {}

  void check() {
    for (size_t i = 0; i < g_.values.size(); ++i) {
      check(g_.values[i].sizes, g_.values[i].kind != GraphValue::Kind::Constant);
      if (g_.values[i].kind != GraphValue::Kind::Constant) continue;
      WT_CHECK(g_.values[i].tensor.defined(), Error, "graph: constant %", i, " has no tensor");
      defined_[i] = true;
    }
    for (const Expr& e : g_.exprs) check(e);
    for (const Symbol& s : g_.symbols)
      WT_CHECK(0 <= s.min && s.min <= s.max, Error, "graph: the range [", s.min, ", ", s.max, "] of ", s.name,
               " is none of sizes");
    for (ValueId r : g_.inputs) {
      make(r, GraphValue::Kind::Input);
      for (Dim d : g_.values[r.id].sizes) each_symbol(d, [&](uint8_t s) { bound_[s] = true; });
    }
    for (GraphCall& c : g_.calls) {
      try {
        check(c);
      } catch (const Error& e) {
        throw Error(message(e.what(), ", in call ", &c - g_.calls.data(), " (", c.name(), ")",
                            c.source.empty() ? "" : " of ", c.source));
      }
    }
    for (ValueId r : g_.outputs) read(r);
  }

 private:
  void read(ValueId r) const {
    WT_CHECK(r.id < defined_.size() && defined_[r.id], Error, "graph: value %", static_cast<int64_t>(r.id),
             " is read before it is made");
  }
  void make(ValueId r, GraphValue::Kind kind) {
    WT_CHECK(r.id < defined_.size() && !defined_[r.id] && g_.values[r.id].kind == kind, Error,
             "graph: value %", static_cast<int64_t>(r.id), " cannot be made here");
    defined_[r.id] = true;
  }
  template <class F>
  void each_symbol(Dim d, F&& f) const {
    if (d.expr < 0) return;
    for (const Expr::Term& t : g_.exprs[static_cast<size_t>(d.expr)].terms)
      for (uint8_t s : t.symbols) f(s);
  }
  void check_bound(Dim d) const {
    each_symbol(d, [&](uint8_t s) {
      WT_CHECK(bound_[s], Error, "graph: nothing before tells what ", g_.symbols[s].name, " is");
    });
  }
  void bind(GraphCall& c) {
    c.binds = false;
    for (ValueId r : c.out)
      if (r.id != ValueId::kNone)
        for (Dim d : g_.values[r.id].sizes)
          if (const auto s = g_.symbol(d); s && !bound_[*s]) bound_[*s] = c.binds = true;
    for (ValueId r : c.out)
      if (r.id != ValueId::kNone)
        for (Dim d : g_.values[r.id].sizes) check_bound(d);
  }
  void check(const Expr& e) const {
    bool known = e.divisor > 0;
    for (const Expr::Term& t : e.terms)
      for (uint8_t s : t.symbols) known &= s < g_.symbols.size();
    WT_CHECK(known, Error, "graph: an expression with unknown symbols");
  }
  void check(Dim d, bool may_be_unknown = false) const {
    const bool known =
        d.expr == Dim::kNumber || (d.expr >= 0 && static_cast<size_t>(d.expr) < g_.exprs.size());
    WT_CHECK(known || (may_be_unknown && d.expr == Dim::kUnknown), Error, "graph: unknown expression ",
             d.expr);
  }
  void check(const Dims& dims, bool may_be_unknown = false) const {
    for (const Dim& d : dims) check(d, may_be_unknown);
  }
  void check(GraphCall& c) {
    if (c.callee == Callee::Op) {
      WT_CHECK(c.args.size() == c.op->args.size(), Error, "graph: ", c.args.size(), " arguments instead of ",
               c.op->args.size());
      for (size_t i = 0; i < c.args.size(); ++i)
        WT_CHECK(std::visit(Accepts{c.op->args[i]}, c.args[i]), Error, "graph: argument ", c.op->args[i].name,
                 " is of another type");
    } else {
      check_control(c);
    }
    for (const Attr& a : c.args) {
      each_dim(a, [&](Dim d) { check(d), check_bound(d); });
    }
    each_id(c, [&](ValueId r) {
      if (r.id != ValueId::kNone) read(r);
    });
    for (ValueId r : c.out)
      if (r.id != ValueId::kNone) make(r, GraphValue::Kind::Result);
    bind(c);
  }

  Graph& g_;
  std::vector<bool> defined_, bound_;  // by value, by symbol
};

// One run of a graph: the tensors of its values, and the sizes of its symbols.
class Run {
 public:
  Run(const Graph& g, std::span<const Tensor> inputs, std::span<const std::pair<uint32_t, Tensor>> constants)
      : g_(g), values_(g.values.size()) {
    WT_CHECK(inputs.size() == g.inputs.size(), TypeError, "graph: expected ", g.inputs.size(),
             " tensors, got ", inputs.size());
    for (size_t i = 0; i < g.values.size(); ++i) values_[i] = g.values[i].tensor;
    for (const auto& [id, t] : constants) {
      WT_CHECK(id < g.values.size() && g.values[id].kind == GraphValue::Kind::Constant, ValueError,
               "graph: %", static_cast<int64_t>(id), " is no constant");
      values_[id] = t;
    }
    for (size_t i = 0; i < inputs.size(); ++i) bind_input(i, inputs[i]);
    bind_symbols();
  }

  std::vector<Tensor> operator()() {
    for (size_t i = 0; i < g_.calls.size(); ++i) {
      call(g_.calls[i]);
      for (uint32_t id : g_.dead_after()[i]) values_[id] = Tensor();
    }
    return all(g_.outputs);
  }

 private:
  void bind_input(size_t i, const Tensor& t) {
    const GraphValue& v = g_.values[g_.inputs[i].id];
    WT_CHECK(t.defined(), TypeError, "graph: input ", i, " is None");
    WT_CHECK(t.dtype() == v.dtype, DtypeError, "graph: expected ", v.dtype, " for input ", i, ", got ",
             t.dtype());
    WT_CHECK(t.device() == v.device, DeviceError, "graph: expected input ", i, " on ", v.device, ", got ",
             t.device());
    WT_CHECK(v.any_sizes || t.sizes().size() == v.sizes.size(), ShapeError, "graph: expected ",
             v.sizes.size(), " dims of input ", i, ", got ", AsShape{t.sizes()});
    values_[g_.inputs[i].id] = t;
  }
  // A symbol is the first size that is it alone; every other size must agree.
  void bind_symbols() {
    symbols_.assign(g_.symbols.size(), -1);
    std::vector<bool> of_inputs(g_.symbols.size());
    each_size([&](Dim d, int64_t size, size_t) {
      if (const auto s = g_.symbol(d); s && symbols_[*s] < 0) symbols_[*s] = size;
      if (d.expr < 0) return;
      for (const Expr::Term& t : g_.exprs[static_cast<size_t>(d.expr)].terms)
        for (uint8_t s : t.symbols) of_inputs[s] = true;
    });
    each_size([&](Dim d, int64_t size, size_t) {
      if (d.expr >= 0) solve(g_.exprs[static_cast<size_t>(d.expr)], size);
    });
    for (size_t s = 0; s < symbols_.size(); ++s)
      if (of_inputs[s]) check_range(s);
    each_size([&](Dim d, int64_t size, size_t input) {
      WT_CHECK(number(d) == size, ShapeError, "graph: expected the size ", number(d), " in input ", input,
               " of shape ", AsShape{values_[g_.inputs[input].id].sizes()}, ", got ", size);
    });
  }
  void check_range(size_t s) const {
    const Symbol& of = g_.symbols[s];
    WT_CHECK(symbols_[s] >= of.min && symbols_[s] <= of.max, ShapeError, "graph: ", of.name, " = ",
             symbols_[s], " is outside of the range [", of.min, ", ", of.max, "] that it was exported for");
  }
  // Of 2 * n + 1 that is 7, n is 3. What does not come out even is refused with all sizes that do not agree.
  void solve(const Expr& e, int64_t size) {
    __int128 rest = static_cast<__int128>(size) * e.divisor, factor = 0;
    int symbol = -1;
    for (const Expr::Term& t : e.terms) {
      if (t.symbols.empty()) rest -= t.factor;
      if (t.symbols.empty()) continue;
      if (t.symbols.size() > 1 || symbol >= 0 || t.factor <= 0) return;
      symbol = t.symbols[0];
      factor = t.factor;
    }
    if (symbol < 0 || e.floor || symbols_[static_cast<size_t>(symbol)] >= 0 || rest < 0) return;
    const __int128 value = rest / factor;
    if (value <= INT64_MAX) symbols_[static_cast<size_t>(symbol)] = static_cast<int64_t>(value);
  }
  // Of the inputs, those that the graph knows.
  template <class F>
  void each_size(F&& f) const {
    for (size_t i = 0; i < g_.inputs.size(); ++i) {
      const uint32_t id = g_.inputs[i].id;
      for (size_t d = 0; !g_.values[id].any_sizes && d < g_.values[id].sizes.size(); ++d)
        if (const Dim said = g_.values[id].sizes[d]; said.expr != Dim::kUnknown)
          f(said, values_[id].sizes()[d], i);
    }
  }

  int64_t number(Dim d) const {
    return d.expr == Dim::kNumber ? d.value : g_.exprs[static_cast<size_t>(d.expr)].value(symbols_);
  }
  std::vector<Tensor> all(const std::vector<ValueId>& refs) const {
    std::vector<Tensor> out;
    for (ValueId r : refs) out.push_back(values_[r.id]);
    return out;
  }

  void call(const GraphCall& c) {
    std::vector<Tensor> results = c.mode == CallMode() ? call_plain(c) : call_in_mode(c);
    WT_CHECK(results.size() == c.out.size(), Error, "graph: ", c.name(), " returned ", results.size(),
             " tensors instead of ", c.out.size(), c.source.empty() ? "" : " at ", c.source);
    for (size_t i = 0; i < results.size(); ++i) {
      if (c.out[i].id == ValueId::kNone) continue;
      if (c.binds) bind_symbols(g_.values[c.out[i].id], results[i]);
      check_result(c, g_.values[c.out[i].id], results[i]);
      values_[c.out[i].id] = std::move(results[i]);
    }
  }
  // Those that are a size of the result alone, and depend on values.
  void bind_symbols(const GraphValue& said, const Tensor& t) {
    for (size_t d = 0; d < std::min(said.sizes.size(), t.sizes().size()); ++d)
      if (const auto s = g_.symbol(said.sizes[d]); s && symbols_[*s] < 0) {
        symbols_[*s] = t.sizes()[d];
        check_range(*s);
      }
  }
  // What the graph says of a result, as far as it does: a graph of other results is none of this call.
  void check_result(const GraphCall& c, const GraphValue& said, const Tensor& t) const {
    WT_CHECK(t.defined(), Error, "graph: ", c.name(), " returned None instead of a tensor");
    if (said.any_sizes) return;
    bool same = said.sizes.size() == t.sizes().size();
    for (size_t d = 0; same && d < said.sizes.size(); ++d)
      same = said.sizes[d].expr == Dim::kUnknown || number(said.sizes[d]) == t.sizes()[d];
    WT_CHECK(same, ShapeError, "graph: ", c.name(), " returned a tensor of shape ", t.sizes(),
             ", which is not the one that the graph says", c.source.empty() ? "" : ": ", c.source);
  }
  std::vector<Tensor> call_plain(const GraphCall& c) {
    return c.callee == Callee::Op ? call_op(c) : call_control(c);
  }
  std::vector<Tensor> call_in_mode(const GraphCall& c);
  std::vector<Tensor> call_op(const GraphCall& c);
  bool may_write_onto(const Tensor& x, std::span<const Value> args, const GraphCall& c) const;
  std::vector<Tensor> call_control(const GraphCall& c);

  // Puts an argument into a Value; what that points to is kept as long as this run's current call.
  struct Box;

  const Graph& g_;
  std::vector<Tensor> values_;
  std::vector<int64_t> symbols_;
};

struct Run::Box {
  const Run& run;
  const Arg& arg;
  Value& v;
  std::deque<std::variant<std::vector<Tensor>, std::vector<OptTensor>, Shape, std::vector<Shape>>>& owned;

  template <class T>
  const T& retain(T x) const {
    return std::get<T>(owned.emplace_back(std::move(x)));
  }
  template <class List>
  void point(const List& list) const {
    v.list = {list.data(), list.size()};
  }
  Shape numbers(const Dims& dims) const {
    Shape out;
    for (Dim d : dims) out.push_back(run.number(d));
    return out;
  }

  void operator()(std::monostate) const { v.present = false; }
  void operator()(ValueId r) const {
    static const Tensor undefined;
    v.tensor = r.id == ValueId::kNone ? &undefined : &run.values_[r.id];
  }
  void operator()(const std::vector<ValueId>& refs) const {
    if (arg.type == ArgType::TensorList) return point(retain(run.all(refs)));
    std::vector<OptTensor> list;
    for (ValueId r : refs)
      list.push_back(r.id == ValueId::kNone ? OptTensor() : OptTensor(run.values_[r.id]));
    point(retain(std::move(list)));
  }
  void operator()(Dim d) const {
    if (arg.type == ArgType::Scalar)
      v.scalar = run.number(d);
    else
      v.i = run.number(d);
  }
  void operator()(double x) const {
    if (arg.type == ArgType::Scalar)
      v.scalar = x;
    else
      v.d = x;
  }
  void operator()(bool x) const {
    if (arg.type == ArgType::Scalar)
      v.scalar = x;
    else
      v.b = x;
  }
  void operator()(Complex<double> x) const { v.scalar = x; }
  void operator()(const Dims& dims) const { point(retain(numbers(dims))); }
  void operator()(const std::vector<Dims>& lists) const {
    std::vector<Shape> shapes;
    for (const Dims& dims : lists) shapes.push_back(numbers(dims));
    point(retain(std::move(shapes)));
  }
  void operator()(const std::vector<double>& list) const { point(list); }
  void operator()(const std::vector<Scalar>& list) const { point(list); }
  void operator()(DType t) const { v.dtype = t; }
  void operator()(Device d) const { v.device = d; }
  void operator()(const std::string& s) const { point(s); }
};

std::vector<Tensor> Run::call_op(const GraphCall& c) {
  WT_CHECK(!c.refused, NotImplementedError, "graph: op ", c.op->name,
           " is private: programs in files may call public ops alone");
  SmallVector<Value, 8> args;
  args.resize(c.args.size());
  std::deque<std::variant<std::vector<Tensor>, std::vector<OptTensor>, Shape, std::vector<Shape>>> owned;
  for (size_t i = 0; i < c.args.size(); ++i) {
    args[i].present = true;
    args[i].generator = nullptr;
    std::visit(Box{*this, c.op->args[i], args[i], owned}, c.args[i]);
  }
  const OpInfo* op = c.op;
  if (c.packed.defined() && is_packed(c, *args[1].tensor)) {
    op = reads_packed(c);
    args.resize(op->args.size());
    args.back().present = true, args.back().generator = nullptr, args.back().tensor = &c.packed;
  }
  Result out;
  if (c.in_place && may_write_onto(*args[0].tensor, args, c)) {
    for (size_t i = 0; i < args.size(); ++i)
      if (c.in_place->args[i].marks & kInPlace) args[i].b = true;
    c.in_place->call(*c.in_place, args.data(), out);
    out.tensor.storage().set_version(0);  // as of a new tensor
  } else {
    op->call(*op, args.data(), out);
  }
  std::vector<Tensor> results;
  each_result(out, [&](Tensor& t) { results.push_back(std::move(t)); });
  return results;
}

std::vector<Tensor> Run::call_in_mode(const GraphCall& c) {
  ThreadState& s = own_thread_state();
  const Restore<bool> grad(s.grad_mode, s.grad_mode && !c.mode.no_grad);
  if (!c.mode.autocast) return call_plain(c);
  constexpr uint32_t both = kAutocast | kAutocastCuda;
  const Restore<uint32_t> dispatch(s.dispatch, (s.dispatch & ~both) | c.mode.autocast);
  const Restore<DType> cpu(s.autocast_dtype, c.mode.cpu), cuda(s.autocast_cuda_dtype, c.mode.cuda);
  struct Entered {  // casts are kept as long as the call
    Entered() { enter_autocast(); }
    ~Entered() { leave_autocast(); }
  } const entered;
  return call_plain(c);
}

// Nobody else can see x's memory, no gradient needs it, and the result would be laid out as x is.
bool Run::may_write_onto(const Tensor& x, std::span<const Value> args, const GraphCall& c) const {
  if (thread_state().dispatch || x->use_count() != 1 || x.storage().use_count() != 1 || !is_dense(x))
    return false;
  bool may = true;
  each_tensor(*c.op, args, [&](const Tensor& t) {
    may &= !needs_grad(t) && (t.strides() == x.strides() || t.numel() < x.numel());
  });
  return may;
}

std::vector<Tensor> Run::call_control(const GraphCall& c) {
  std::vector<std::vector<Tensor>> operands;
  for (const Attr& a : c.args) {
    const auto* one = std::get_if<ValueId>(&a);
    operands.push_back(one ? std::vector{values_[one->id]} : all(std::get<std::vector<ValueId>>(a)));
  }
  return run_control(c, std::move(operands));
}

using Lists = std::vector<std::vector<Tensor>>;

std::vector<Tensor> loop(const GraphCall& c, Lists lists) {
  const size_t carried = lists[0].size();
  std::vector<Tensor> operands = std::move(lists[0]);
  std::ranges::move(lists[1], std::back_inserter(operands));
  while (item(c.graphs[0]->run(operands).at(0)).to_bool())
    std::ranges::move(c.graphs[1]->run(operands), operands.begin());
  operands.resize(carried);
  return operands;
}

std::vector<Tensor> scan(const GraphCall& c, Lists lists) {
  std::vector<Tensor> carry = std::move(lists[0]);
  const std::vector<Tensor>& xs = lists[1];
  const size_t carried = carry.size();
  WT_CHECK(!xs.empty() && xs[0].ndim() > 0, ShapeError, "scan: nothing to scan along dim 0");
  std::vector<std::vector<Tensor>> rows;
  for (int64_t i = 0; i < xs[0].sizes()[0]; ++i) {
    std::vector<Tensor> operands = std::move(carry);
    for (const Tensor& x : xs) operands.push_back(ops::select(x, 0, i));
    std::ranges::copy(lists[2], std::back_inserter(operands));
    std::vector<Tensor> out = c.graphs[0]->run(operands);
    rows.resize(out.size() - carried);
    for (size_t r = 0; r < rows.size(); ++r) rows[r].push_back(std::move(out[carried + r]));
    out.resize(carried);
    carry = std::move(out);
  }
  for (const auto& row : rows) carry.push_back(ops::stack(row, 0));
  return carry;
}

}  // namespace

const char* GraphCall::name() const {
  constexpr const char* kNames[] = {"", "cond", "while_loop", "scan"};
  return callee == Callee::Op ? op->name : kNames[static_cast<size_t>(callee)];
}

std::vector<Tensor> run_control(const GraphCall& c, std::vector<std::vector<Tensor>> operands) {
  if (c.callee == Callee::WhileLoop) return loop(c, std::move(operands));
  if (c.callee == Callee::Scan) return scan(c, std::move(operands));
  return c.graphs[item(operands[0].at(0)).to_bool() ? 0 : 1]->run(operands[1]);
}

Dim Graph::size(const Expr& e, int64_t value) {
  const auto known = std::ranges::find(exprs, e);
  const auto number = static_cast<int32_t>(known - exprs.begin());
  if (known == exprs.end()) exprs.push_back(e);
  return {value, number};
}

ValueId Graph::add(GraphValue value) {
  value.memory = 0;
  for (const GraphValue& v : values) value.memory = std::max(value.memory, v.memory + 1);
  values.push_back(std::move(value));
  return {static_cast<uint32_t>(values.size() - 1)};
}

ValueId Graph::add_constant(const Tensor& t, std::string name) {
  GraphValue v;
  v.kind = GraphValue::Kind::Constant;
  v.dtype = t.dtype();
  v.device = t.device();
  for (int64_t n : t.sizes()) v.sizes.push_back({n});
  v.name = name.empty() ? message("constant_", values.size()) : std::move(name);
  v.tensor = t;
  return add(std::move(v));
}

void Graph::finish() {
  Checker(*this).check();
  std::vector<size_t> last(values.size(), SIZE_MAX);
  for (size_t i = 0; i < calls.size(); ++i) {
    each_id(calls[i], [&](ValueId r) {
      if (r.id != ValueId::kNone) last[r.id] = i;
    });
    for (ValueId r : calls[i].out)
      if (r.id != ValueId::kNone) last[r.id] = i;
  }
  for (ValueId r : outputs) last[r.id] = SIZE_MAX;
  dead_after_.assign(calls.size(), {});
  for (size_t v = 0; v < values.size(); ++v)
    if (last[v] != SIZE_MAX) dead_after_[last[v]].push_back(static_cast<uint32_t>(v));
}

std::vector<Tensor> Graph::run(std::span<const Tensor> tensors,
                               std::span<const std::pair<uint32_t, Tensor>> constants) const {
  const auto run = [&] { return Run(*this, tensors, constants)(); };
  const bool plain =
      !thread_state().grad_mode && !thread_state().dispatch && !PlannedRun::current() && constants.empty();
  return run_memory && plain ? run_memory->run(tensors, run) : run();
}

Tensor moved(const Tensor& t, Device device) {
  if (t.device() == device) return t;
  Tensor out = empty(t.sizes(), {t.dtype(), device});
  raw_copy(out, t);
  return out;
}

uint32_t signature_hash(const OpInfo& op) {
  uint32_t hash = 2166136261u;  // FNV-1a
  const auto add = [&](uint8_t byte) { hash = (hash ^ byte) * 16777619u; };
  for (const Arg& a : op.args) {
    for (const char* p = a.name; *p; ++p) add(static_cast<uint8_t>(*p));
    add(static_cast<uint8_t>(a.type));
    add(a.optional);
    add(a.marks & (kWritten | kUpdated));
  }
  add(static_cast<uint8_t>(op.returns));
  return hash;
}

// Other private ops trust their caller or set the process's state.
bool may_be_in_files(const OpInfo& op) { return (op.flags & kPlaces) != kPrivate || (op.flags & kChecked); }

const OpInfo& find_op(std::string_view name, uint32_t signature) {
  bool named = false;
  for (const OpInfo* op = all_ops(); op; op = op->next) {
    if (name != op->name) continue;
    if (signature_hash(*op) == signature) return *op;
    named = true;
  }
  throw NotImplementedError(
      named ? message("graph: op ", name,
                      " has other arguments in this version than in the one that made the graph")
            : message("graph: there is no op ", name));
}

}  // namespace warptape::graph
