// Graphs of ops, and how Python records them.
#include "graph/record/trace.h"

#include <map>

#include "bindings/bound_object.h"
#include "bindings/caller.h"
#include "graph/ir/effects.h"
#include "graph/passes/passes.h"
#include "graph/record/region.h"
#include "graph/run/run_memory.h"
#include "graph/text/graph_file.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace warptape::bindings {
void init_symbolic_int(py::module_& m);  // symbolic_int.cpp

template <>
inline constexpr bool kBound<graph::Graph> = true;
template <>
inline constexpr bool kBound<graph::Tracer> = true;

namespace {
using graph::Dim;
using graph::Dims;
using graph::Graph;
using graph::GraphValue;
using graph::Tracer;
using graph::ValueId;

py::object object(PyObject* owned) { return py::reinterpret_steal<py::object>(checked(owned).release()); }

py::list wrap_list(const std::vector<Tensor>& tensors) {
  py::list out;
  for (const Tensor& t : tensors) out.append(object(wrap(t)));
  return out;
}

// An expression of a graph, as Python sees it.
struct PyExpr {
  std::vector<std::pair<int64_t, std::vector<std::string>>> terms;
  int64_t divisor;
  int64_t value;
  bool floor;
};

// An argument of a call, as Python sees it.
struct Describe {
  const Graph& g;

  py::object operator()(std::monostate) const { return py::none(); }
  py::object operator()(ValueId r) const { return r.id == ValueId::kNone ? py::none() : py::cast(r); }
  py::object operator()(Dim d) const {
    if (d.expr == Dim::kNumber) return py::int_(d.value);
    if (d.expr == Dim::kUnknown) return py::none();
    const graph::Expr& e = g.exprs[static_cast<size_t>(d.expr)];
    PyExpr out{{}, e.divisor, d.value, e.floor};
    for (const auto& t : e.terms) {
      auto& names = out.terms.emplace_back(t.factor, std::vector<std::string>()).second;
      for (uint8_t s : t.symbols) names.push_back(g.symbols[s].name);
    }
    return py::cast(out);
  }
  py::object operator()(double x) const { return py::float_(x); }
  py::object operator()(bool x) const { return py::bool_(x); }
  py::object operator()(Complex<double> x) const { return object(PyComplex_FromDoubles(x.re, x.im)); }
  py::object operator()(const Scalar& s) const { return object(wrap(s)); }
  py::object operator()(DType t) const { return object(wrap(t)); }
  py::object operator()(Device d) const { return object(wrap(d)); }
  py::object operator()(const std::string& s) const { return py::str(s); }
  template <class List>
  py::object operator()(const List& list) const {
    py::list out;
    for (const auto& x : list) out.append((*this)(x));
    return out;
  }
};

py::list describe_values(const Graph& g) {
  constexpr const char* kinds[] = {"input", "constant", "result"};
  py::list out;
  for (const GraphValue& v : g.values)
    out.append(py::make_tuple(kinds[static_cast<int>(v.kind)], object(wrap(v.dtype)), Describe{g}(v.sizes),
                              v.name, v.memory));
  return out;
}

std::vector<uint32_t> ids(const std::vector<ValueId>& list) {
  std::vector<uint32_t> out;
  for (ValueId r : list) out.push_back(r.id);
  return out;
}

py::list describe_calls(const Graph& g) {
  py::list out;
  for (const graph::GraphCall& c : g.calls) {
    py::dict args;
    for (size_t i = 0; i < c.args.size(); ++i)
      args[py::str(c.op ? c.op->args[i].name : std::to_string(i))] = std::visit(Describe{g}, c.args[i]);
    py::list branches;
    for (const auto& b : c.graphs) branches.append(py::cast(*b));
    if (!c.graphs.empty()) args["graphs"] = branches;
    py::list results;
    for (ValueId r : c.out) results.append(r.id == ValueId::kNone ? py::none() : py::object(py::int_(r.id)));
    out.append(py::make_tuple(c.name(), args, results, c.source));
  }
  return out;
}

std::vector<uint32_t> flags_of(const Graph& g) {
  std::vector<uint32_t> out;
  for (const graph::GraphCall& c : g.calls) out.push_back(c.op ? c.op->flags : 0);
  return out;
}

std::vector<bool> are_pointwise(const Graph& g) {
  std::vector<bool> out;
  for (const graph::GraphCall& c : g.calls) out.push_back(c.op && c.op->batching == Batching::Pointwise);
  return out;
}

py::dict constants(const Graph& g) {
  py::dict out;
  for (size_t i = 0; i < g.values.size(); ++i)
    if (g.values[i].kind == GraphValue::Kind::Constant) out[py::int_(i)] = object(wrap(g.values[i].tensor));
  return out;
}

Graph parse(const std::string& text, const py::dict& tensors) {
  return Graph::parse(text, [&](std::string_view name) {
    const py::str key(name.data(), name.size());
    return tensors.contains(key) ? tensors_of(py::make_tuple(tensors[key]), "parse")[0] : Tensor();
  });
}

py::list run_graph(const Graph& g, const py::sequence& inputs,
                   const std::vector<std::pair<uint32_t, py::object>>& constants) {
  const std::vector<Tensor> tensors = tensors_of(inputs, "graph");
  std::vector<std::pair<uint32_t, Tensor>> others;
  for (const auto& [id, tensor] : constants)
    others.emplace_back(id, tensors_of(py::make_tuple(tensor), "graph")[0]);
  std::vector<Tensor> out;
  {
    const GilRelease release;
    out = g.run(tensors, others);
  }
  return wrap_list(out);
}

// {pass: what it changed}. Options by the names of PassOptions.
py::dict optimise(Graph& g, const py::kwargs& options) {
  graph::PassOptions o;
  std::map<std::string, bool*> flags{
      {"plan_memory", &o.plan_memory}, {"freeze", &o.freeze}, {"gradients", &o.gradients}};
  for (const graph::Pass& pass : graph::passes()) flags[pass.name] = &(o.*pass.wanted);
  for (const auto& [key, value] : options) {
    const auto name = key.cast<std::string>();
    const auto at = flags.find(name);
    WT_CHECK(at != flags.end(), TypeError, "optimise: there is no pass or option ", name);
    *at->second = value.cast<bool>();
  }
  const graph::PassCounts counts = graph::optimise(g, o);
  py::dict out;
  for (size_t i = 0; i < counts.size(); ++i) out[graph::passes()[i].name] = counts[i];
  return out;
}

void forget_sizes(Graph& g, bool number_of_dims) {
  for (GraphValue& v : g.values) {
    if (v.kind == GraphValue::Kind::Constant) continue;
    // What depends on values is known by no input's size.
    v.any_sizes = number_of_dims && std::ranges::none_of(v.sizes, [](Dim d) { return d.expr >= 0; });
    for (Dim& d : v.sizes)
      if (d.expr < 0) d.expr = Dim::kUnknown;
  }
  for (graph::GraphCall& c : g.calls)
    for (auto& branch : c.graphs) {
      auto made = std::make_shared<Graph>(*branch);
      forget_sizes(*made, number_of_dims);
      branch = std::move(made);
    }
  g.finish();
}

void set_constant(Graph& g, uint32_t id, const py::object& tensor) {
  WT_CHECK(id < g.values.size() && g.values[id].kind == GraphValue::Kind::Constant, ValueError, "graph: %",
           id, " is no constant");
  g.values[id].tensor = tensors_of(py::make_tuple(tensor), "graph")[0];
}

void add_constant(Graph& g, std::string name, const py::object& tensor) {
  g.add_constant(tensors_of(py::make_tuple(tensor), "graph")[0], std::move(name));
}

void set_min(Graph& g, size_t symbol, int64_t min) {
  WT_CHECK(symbol < g.symbols.size(), ValueError, "graph: there is no symbol ", symbol);
  g.symbols[symbol].min = min;
  g.finish();
}

void bind_graph(py::module_& m) {
  py::class_<ValueId>(m, "_Ref", py::module_local())
      .def_readonly("id", &ValueId::id)
      .def("__repr__", [](ValueId r) { return "%" + std::to_string(r.id); });
  py::class_<PyExpr>(m, "_Expr", py::module_local(), "sum(factor * product(symbols)) / divisor.")
      .def_readonly("terms", &PyExpr::terms)
      .def_readonly("divisor", &PyExpr::divisor)
      .def_readonly("value", &PyExpr::value)
      .def_readonly("floor", &PyExpr::floor, "Whether the quotient is rounded down; else it is an integer.");
  py::class_<Graph>(m, "_OpGraph", py::module_local())
      .def_property_readonly("inputs", [](const Graph& g) { return ids(g.inputs); })
      .def_property_readonly("outputs", [](const Graph& g) { return ids(g.outputs); })
      .def_property_readonly("values", describe_values, "[(kind, dtype, sizes, name, memory)] by value.")
      .def_property_readonly("calls", describe_calls, "[(op, arguments, results, source)] in order.")
      .def_property_readonly("constants", constants)
      .def_property_readonly("flags", flags_of, "OpFlag of each call's op.")
      .def_property_readonly("pointwise", are_pointwise,
                             "Whether each call's op computes element by element.")
      .def_property_readonly(
          "modes",
          [](const Graph& g) {
            py::list out;
            for (const graph::GraphCall& c : g.calls)
              out.append(py::make_tuple(c.mode.no_grad, c.mode.autocast != 0));
            return out;
          },
          "[(no_grad, autocast)]: in what state each call runs, whatever the caller's is.")
      .def("forget_sizes", forget_sizes, py::arg("number_of_dims"),
           "Takes inputs of any sizes, and any number of dims.")
      .def_property_readonly("symbols",
                             [](const Graph& g) {
                               py::dict out;
                               for (const graph::Symbol& s : g.symbols)
                                 out[py::str(s.name)] = py::make_tuple(s.min, s.max);
                               return out;
                             })
      .def("set_constant", set_constant)
      .def("add_constant", add_constant)
      .def("set_min", set_min)
      .def("text", &Graph::text)
      .def_property_readonly(
          "planned_bytes", [](const Graph& g) { return g.run_memory ? g.run_memory->bytes() : 0; },
          "Of the block that runs without gradients use; 0 before the first or without a plan.")
      .def("copy", [](const Graph& g) { return Graph(g); })
      .def("optimise", optimise, "Runs passes, all but those given as False; {pass: calls changed}.")
      .def(
          "written",
          [](const Graph& g) {
            std::vector<std::vector<uint32_t>> out;
            for (const graph::GraphCall& c : g.calls) out.push_back(ids(graph::written(c)));
            return out;
          },
          "By call, the values that it changes in place.")
      .def(
          "may_share_memory",
          [](const Graph& g) {
            std::vector<bool> out;
            for (const graph::GraphCall& c : g.calls) out.push_back(graph::may_share_memory(g, c));
            return out;
          },
          "By call, whether a result may lie on an argument's memory.")
      .def("verify_effects",
           [](const Graph& before, const Graph& after) { graph::verify_effects(before, after); })
      .def_static("parse", parse)
      .def("run", run_graph, py::arg("inputs"),
           py::arg("constants") = std::vector<std::pair<uint32_t, py::object>>(),
           "The results; `constants` are (number, tensor) that stand for the graph's own.")
      .def("to_bytes",
           [](const Graph& g, const std::string& spec) { return py::bytes(graph::to_bytes(g, spec)); })
      .def_static("from_bytes", [](const py::bytes& bytes) {
        auto [g, spec] = graph::from_bytes(std::string_view(bytes));
        return py::make_tuple(py::cast(std::move(g)), spec);
      });
}

using Captured = std::pair<Graph, py::list>;

py::list control(Tracer& t, const std::string& name, const std::vector<py::sequence>& operands,
                 const std::vector<std::pair<const Graph*, py::sequence>>& branches) {
  const auto callee = name == "cond"         ? graph::Callee::Cond
                      : name == "while_loop" ? graph::Callee::WhileLoop
                                             : graph::Callee::Scan;
  std::vector<std::vector<Tensor>> lists;
  for (const py::sequence& list : operands) lists.push_back(tensors_of(list, name.c_str()));
  std::vector<Tracer::Branch> graphs;
  for (const auto& [g, captured] : branches) graphs.push_back({*g, tensors_of(captured, name.c_str())});
  return wrap_list(t.control(callee, std::move(lists), std::move(graphs)));
}

void bind_tracer(py::module_& m) {
  py::class_<Tracer>(m, "_Tracer", py::module_local(),
                     "Records what this thread calls, until finish() or end().")
      .def(py::init(
          [](const py::sequence& inputs) { return std::make_unique<Tracer>(tensors_of(inputs, "trace")); }))
      .def_readwrite("reads_are_errors", &Tracer::reads_are_errors)
      .def_readonly("sizes_told", &Tracer::sizes_told)
      .def_readonly("number_of_dims_told", &Tracer::number_of_dims_told)
      .def_property_readonly(
          "inputs", [](const Tracer& t) { return wrap_list(t.inputs()); },
          "What the function is to be called with: tensors of their own on the inputs' memory.")
      .def("forget_input_sizes", &Tracer::forget_input_sizes)
      .def("set_name",
           [](Tracer& t, const py::object& tensor, std::string name) {
             t.name(tensors_of(py::make_tuple(tensor), "trace")[0], std::move(name));
           })
      .def("finish",
           [](Tracer& t, const py::sequence& outputs) { return t.finish(tensors_of(outputs, "trace")); })
      .def("end", &Tracer::end)
      .def_property_readonly("captured", [](const Tracer& t) { return wrap_list(t.captured()); })
      .def("control", control);
  m.def(
      "_tracer", [] { return py::cast(Tracer::recording(), py::return_value_policy::reference); },
      "The tracer that records what this thread calls, or None.");
  m.def("_generalise", [](std::vector<Graph> traces, const std::vector<uint64_t>& masks,
                          const std::vector<std::tuple<std::string, int64_t, int64_t>>& symbols,
                          const std::vector<int64_t>& low, const std::vector<int64_t>& high) {
    std::vector<graph::Symbol> list;
    for (const auto& [name, min, max] : symbols) list.push_back({name, min, max});
    return graph::generalise(std::move(traces), masks, std::move(list), low, high);
  });
  m.def("_missing_traces", [](std::vector<Graph> traces, const std::vector<uint64_t>& masks) {
    return graph::missing_traces(std::move(traces), masks);
  });
  m.def("_check_trace", [](Graph& g, const Graph& trace, const std::vector<int64_t>& symbols) {
    graph::check_trace(g, trace, symbols);
  });
}

}  // namespace

void init_trace(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  graph::init_trace();
  m.def("_set_package_folder", set_package_folder);
  bind_graph(m);
  bind_tracer(m);
  init_symbolic_int(m);
}

}  // namespace warptape::bindings
