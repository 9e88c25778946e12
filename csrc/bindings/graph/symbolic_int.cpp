#include "bindings/graph/symbolic_int.h"

#include "bindings/bound_object.h"
#include "graph/record/trace.h"

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace warptape::bindings {
namespace {

// Python computes with it by + - * and //, gives it to ops, and is told no more of it.
struct SymbolicInt {
  graph::Expr expr;
  uint64_t trace;
};

}  // namespace

template <>
inline constexpr bool kBound<SymbolicInt> = true;

namespace {

graph::Tracer* tracer_of(const SymbolicInt& x) {
  graph::Tracer* tracer = graph::Tracer::recording();
  return tracer && tracer->number == x.trace ? tracer : nullptr;
}

[[noreturn]] void refuse(const char* by) { graph::Tracer::refuse_size(by); }

using Combine = graph::Expr (*)(const graph::Expr& a, const graph::Expr& b);

graph::Expr difference(const graph::Expr& a, const graph::Expr& b) { return a + b * graph::constant(-1); }

py::object op(const char* name) { return py::module_::import("warptape._C").attr("_functions").attr(name); }

// a op b, or b op a, by the op of that name.
py::object call_op(const char* name, const py::object& a, const py::object& b, bool reflected) {
  return reflected ? op(name)(b, a) : op(name)(a, b);
}

// What is no integer is a tensor of the graph: a quotient, for one.
py::object as_tensor(const SymbolicInt& a, const py::object& b, const char* name, bool reflected) {
  if (is_tensor(b.ptr())) return call_op(name, py::cast(a), b, reflected);
  const bool number = PyLong_CheckExact(b.ptr()) || PyFloat_CheckExact(b.ptr());
  if (!number && !py::isinstance<SymbolicInt>(b))
    return py::reinterpret_borrow<py::object>(Py_NotImplemented);
  const auto tensor = [](const py::object& x) {
    const auto dtype = py::reinterpret_steal<py::object>(wrap(DType::Float64));
    return op("full")(py::tuple(), x, py::arg("dtype") = dtype);
  };
  return call_op(name, tensor(py::cast(a)), number ? b : tensor(b), reflected);
}

// A tensor, or an integer that depends on values as well.
template <Combine f>
py::object combine(const SymbolicInt& a, const py::object& b, const char* name, bool reflected) {
  if (is_tensor(b.ptr())) return call_op(name, py::cast(a), b, reflected);
  if (!tracer_of(a)) refuse(name);
  graph::Expr other;
  if (py::isinstance<SymbolicInt>(b)) {
    const auto& x = b.cast<const SymbolicInt&>();
    if (x.trace != a.trace) refuse(name);
    other = x.expr;
  } else if (PyLong_CheckExact(b.ptr())) {
    other = graph::constant(b.cast<int64_t>());
  } else {
    return py::reinterpret_borrow<py::object>(Py_NotImplemented);
  }
  try {
    const graph::Expr out = reflected ? f(other, a.expr) : f(a.expr, other);
    if (std::ranges::all_of(out.terms, [](const auto& t) { return t.symbols.empty(); }))
      return py::int_(out.value({}));
    return py::cast(SymbolicInt{out, a.trace});
  } catch (const NotImplementedError&) {
    refuse(name);
  }
}

template <Combine f>
void bind(py::class_<SymbolicInt>& c, const char* operation, const char* name) {
  c.def(("__" + std::string(operation) + "__").c_str(),
        [name](const SymbolicInt& a, const py::object& b) { return combine<f>(a, b, name, false); });
  c.def(("__r" + std::string(operation) + "__").c_str(),
        [name](const SymbolicInt& a, const py::object& b) { return combine<f>(a, b, name, true); });
}

}  // namespace

bool to_mark(PyObject* o, int64_t& out) {
  if (!graph::Tracer::recording() || !py::isinstance<SymbolicInt>(o)) return false;
  const auto& x = py::handle(o).cast<const SymbolicInt&>();
  graph::Tracer* tracer = tracer_of(x);
  if (!tracer) refuse("the branch of an op of control flow");
  out = tracer->mark_of(x.expr);
  return true;
}

PyObject* wrap_int(int64_t x) {
  graph::Tracer* tracer = graph::Tracer::recording();
  const graph::Expr* e = tracer ? tracer->expr_of(x) : nullptr;
  return e ? py::cast(SymbolicInt{*e, tracer->number}).release().ptr() : PyLong_FromLongLong(x);
}

PyObject* with_symbols(PyObject* tuple, IntList sizes) {
  const graph::Tracer* tracer = graph::Tracer::recording();
  for (size_t i = 0; tuple && tracer && i < sizes.size(); ++i) {
    if (!tracer->expr_of(sizes[i])) continue;
    const auto at = static_cast<Py_ssize_t>(i);
    Py_DECREF(PyTuple_GET_ITEM(tuple, at));
    PyTuple_SET_ITEM(tuple, at, wrap_int(sizes[i]));
  }
  return tuple;
}

void init_symbolic_int(py::module_& m) {
  py::class_<SymbolicInt> c(m, "_SymbolicInt", py::module_local(),
                            "A size that depends on values, in a function that a graph is recorded of.");
  bind<graph::operator+ >(c, "add", "add");
  bind<difference>(c, "sub", "sub");
  bind<graph::operator*>(c, "mul", "mul");
  bind<graph::floor_div>(c, "floordiv", "floor_divide");
  for (const auto& [operation, name] : {std::pair("truediv", "div"), std::pair("pow", "pow")})
    for (const bool reflected : {false, true})
      c.def((std::string(reflected ? "__r" : "__") + operation + "__").c_str(),
            [name, reflected](const SymbolicInt& a, const py::object& b) {
              return as_tensor(a, b, name, reflected);
            });
  c.def("__neg__", [](const SymbolicInt& a) { return SymbolicInt{a.expr * graph::constant(-1), a.trace}; });
  // Whatever else Python asks of a number would be baked into the graph.
  for (const char* name : {"__index__", "__int__", "__float__", "__bool__", "__hash__"})
    c.def(name, [name](const SymbolicInt&) -> py::object { refuse(name); });
  for (const char* name : {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"})
    c.def(name, [](const SymbolicInt&, const py::object&) -> py::object { refuse("a comparison"); });
}

}  // namespace warptape::bindings
