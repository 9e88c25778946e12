// Nodes whose backward is a Python function: autograd.Function stands on them.
#include <map>
#include <string>

#include "bindings/autograd/autograd.h"

#include "autograd/engine.h"

namespace warptape::bindings {
namespace {

// The context object of the call. It points back to the node by a capsule without a reference, cleared at our
// end.
struct FunctionData final : PythonPart {
  explicit FunctionData(Object c) : ctx(std::move(c)) {}
  ~FunctionData() override {
    if (!Py_IsInitialized()) {
      ctx.release();
      return;
    }
    GilGuard gil;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (PyObject_SetAttrString(ctx.get(), "_node", Py_None) < 0) PyErr_Clear();
    ctx = Object();
    PyErr_Restore(type, value, trace);
  }
  int visit(visitproc visit, void* arg) const override {
    Py_VISIT(ctx.get());
    return 0;
  }
  Object ctx;
};

void backward(Node& node, Gradients& g) {
  GilGuard gil;
  Object grads = checked(PyTuple_New(static_cast<Py_ssize_t>(g.outputs())));
  for (size_t j = 0; j < g.outputs(); ++j)
    PyTuple_SET_ITEM(grads.get(), static_cast<Py_ssize_t>(j), checked(wrap(g[j])).release());
  Object wanted = checked(PyTuple_New(static_cast<Py_ssize_t>(g.inputs())));
  for (size_t i = 0; i < g.inputs(); ++i)
    PyTuple_SET_ITEM(wanted.get(), static_cast<Py_ssize_t>(i), PyBool_FromLong(g.wants(i)));
  PyObject* ctx = node.data<FunctionData>().ctx.get();
  // ctx._backward checks the number of gradients and returns one Tensor or None per tensor input.
  Object out = checked(
      from_python([&] { return PyObject_CallMethod(ctx, "_backward", "OO", grads.get(), wanted.get()); }));
  for (size_t i = 0; i < g.inputs(); ++i) {
    PyObject* item = PyTuple_GET_ITEM(out.get(), static_cast<Py_ssize_t>(i));
    if (item != Py_None) g.set(i, tensor_arg(item, node.type->name));
  }
}

const void* python_part(Node& node) { return static_cast<const PythonPart*>(&node.data<FunctionData>()); }

// One type per name, kept forever: nodes refer to it.
const NodeType& type_named(const char* name) {
  static auto* types = new std::map<std::string, NodeType>;
  auto [it, fresh] = types->try_emplace(name);
  if (fresh) it->second = NodeType{it->first.c_str(), backward, nullptr, python_part};
  return it->second;
}

Node& node_in(PyObject* capsule) {
  auto* n = static_cast<Node*>(PyCapsule_GetPointer(capsule, "warptape.node"));
  if (!n) throw PythonErrorSet();
  return *n;
}

int position(PyObject* o, PyObject* dirty, PyObject* outputs) {
  int shift = dirty == Py_None ? 0 : 1;
  if (o == dirty && shift) return 0;
  for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(outputs); ++j)
    if (PyTuple_GET_ITEM(outputs, j) == o) return static_cast<int>(j) + shift;
  return -1;
}

// _function_record(ctx, name, inputs, dirty, outputs, saved): gives the outputs a node whose backward is
// ctx._backward. `dirty` is the input that forward changed in place and returned, or None; it is output 0
// then. Each of `saved` is a tensor or None. Returns a capsule that ctx keeps as _node.
PyObject* record_py(PyObject*, PyObject* args) {
  PyObject *ctx, *inputs, *dirty, *outputs, *saved;
  const char* name;
  if (!PyArg_ParseTuple(args, "OsO!OO!O!", &ctx, &name, &PyTuple_Type, &inputs, &dirty, &PyTuple_Type,
                        &outputs, &PyTuple_Type, &saved))
    return nullptr;
  return guarded([&] {
    if (dirty != Py_None) check_inplace(tensor_arg(dirty, name), name, true);
    for (PyObject* tuple : {inputs, outputs, saved})
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
        if (PyObject* item = PyTuple_GET_ITEM(tuple, i); tuple != saved || item != Py_None)
          tensor_arg(item, name);
    Ref<Node> n = make_node(type_named(name));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i)
      add_edge(*n, tensor_of(PyTuple_GET_ITEM(inputs, i)));
    n->emplace<FunctionData>(Object::share(ctx));
    if (dirty != Py_None) {
      tensor_of(dirty).bump_version();
      rebase_history(tensor_of(dirty), n);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); ++i)
      set_history(tensor_of(PyTuple_GET_ITEM(outputs, i)), n);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(saved); ++i) {
      PyObject* item = PyTuple_GET_ITEM(saved, i);
      Tensor t = item == Py_None ? Tensor() : tensor_of(item);
      int output = position(item, dirty, outputs);
      if (output >= 0) {
        n->save_output(t, static_cast<uint32_t>(output));
      } else {
        n->save(t);
      }
    }
    return PyCapsule_New(n.get(), "warptape.node", nullptr);
  });
}

// _function_saved(capsule): the saved tensors, with their versions checked.
PyObject* saved_py(PyObject*, PyObject* capsule) {
  return guarded([&] {
    Node& n = node_in(capsule);
    check_not_released(n);
    std::vector<Tensor> out;
    for (size_t i = 0; i < n.saved_count(); ++i) out.push_back(n.saved(i));
    return wrap_tuple(out);
  });
}

// _function_output(tensor, is_input): what forward returned, as an output: an input or a view is given a
// fresh handle.
PyObject* output_py(PyObject*, PyObject* args) {
  PyObject* o;
  int is_input;
  if (!PyArg_ParseTuple(args, "Op", &o, &is_input)) return nullptr;
  return guarded([&] {
    const Tensor& t = tensor_arg(o, "_function_output");
    if (!is_input && !t->extra) return Py_NewRef(o);
    Tensor out = alias(t);
    if (is_view(t) || is_input) {
      GradMode on(true);
      set_view(out, t, ViewOrigin::CustomFunction);
    }
    return wrap(out);
  });
}

PyMethodDef function_methods[] = {{"_function_record", record_py, METH_VARARGS, nullptr},
                                  {"_function_saved", saved_py, METH_O, nullptr},
                                  {"_function_output", output_py, METH_VARARGS, nullptr},
                                  {}};

}  // namespace

void init_functions(PyObject* module) { checked(PyModule_AddFunctions(module, function_methods)); }

}  // namespace warptape::bindings
