// grad_fn as Python sees it: name(), next_functions, hooks, saved tensors.
#include "bindings/autograd/autograd.h"

#include "autograd/engine.h"

namespace warptape::bindings {
namespace {

struct NodeObject {
  PyObject_HEAD Ref<Node> node;
};
PyTypeObject* node_type;

Node& node_of(PyObject* o) { return *reinterpret_cast<NodeObject*>(o)->node; }

void dealloc(PyObject* self) {
  auto* n = reinterpret_cast<NodeObject*>(self);
  if (n->node->python == self) n->node->python = nullptr;
  n->node.~Ref();
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* repr(PyObject* self) {
  return PyUnicode_FromFormat("<%s object at %p>", node_of(self).type->name,
                              static_cast<void*>(&node_of(self)));
}
PyObject* node_name(PyObject* self, PyObject*) { return PyUnicode_FromString(node_of(self).type->name); }

PyObject* next_functions(PyObject* self, void*) {
  return guarded([&] {
    auto& edges = node_of(self).edges;
    Object out = checked(PyTuple_New(static_cast<Py_ssize_t>(edges.size())));
    for (size_t i = 0; i < edges.size(); ++i) {
      PyObject* pair = Py_BuildValue("(NI)", wrap_node(edges[i].node), edges[i].index);
      PyTuple_SET_ITEM(out.get(), static_cast<Py_ssize_t>(i), checked(pair).release());
    }
    return out.release();
  });
}

PyObject* saved_tensors(PyObject* self, void*) {
  return guarded([&] {
    Node& n = node_of(self);
    check_not_released(n);
    std::vector<Tensor> saved;
    for (size_t i = 0; i < n.saved_count(); ++i) saved.push_back(n.saved(i));
    return wrap_tuple(saved);
  });
}

PyObject* variable(PyObject* self, void*) {
  return guarded([&] {
    const Tensor* leaf = accumulator_leaf_or_null(node_of(self));
    return leaf ? wrap(*leaf) : Py_NewRef(Py_None);
  });
}

PyObject* dict_in(std::vector<std::shared_ptr<NodeHook>>& hooks) {
  return guarded([&] {
    for (auto& h : hooks)
      if (auto d = std::dynamic_pointer_cast<HookDict>(h)) return Py_NewRef(d->dict);
    auto made = std::make_shared<HookDict>();
    hooks.push_back(made);
    return Py_NewRef(made->dict);
  });
}
PyObject* post_dict(PyObject* self, PyObject*) { return dict_in(node_of(self).more().post_hooks); }
PyObject* pre_dict(PyObject* self, PyObject*) { return dict_in(node_of(self).more().pre_hooks); }

PyObject* metadata(PyObject* self, void*) {
  return guarded([&] {
    auto& kept = node_of(self).more().metadata;
    if (!kept) kept = std::make_shared<HookDict>();
    return Py_NewRef(static_cast<HookDict*>(kept.get())->dict);
  });
}

PyGetSetDef getset[] = {
    {"next_functions", next_functions, nullptr, "((node, index), ...): where gradients go.", nullptr},
    {"saved_tensors", saved_tensors, nullptr, "The tensors kept for backward.", nullptr},
    {"variable", variable, nullptr, "The leaf of an AccumulateGrad node.", nullptr},
    {"metadata", metadata, nullptr, "A dict for whoever wants to note something of the node.", nullptr},
    {}};
PyMethodDef node_methods[] = {{"name", node_name, METH_NOARGS, "The op's name."},
                              {"_post_hook_dict", post_dict, METH_NOARGS, nullptr},
                              {"_pre_hook_dict", pre_dict, METH_NOARGS, nullptr},
                              {}};
PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                       {Py_tp_repr, reinterpret_cast<void*>(repr)},
                       {Py_tp_getset, getset},
                       {Py_tp_methods, node_methods},
                       {Py_tp_doc, const_cast<char*>("One recorded op.")},
                       {}};
PyType_Spec spec = {"warptape.autograd.graph.Node", sizeof(NodeObject), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

}  // namespace

PyObject* wrap_node(const Ref<Node>& node) {
  if (!node) Py_RETURN_NONE;
  if (node->python) return Py_NewRef(static_cast<PyObject*>(node->python));
  PyObject* o = node_type->tp_alloc(node_type, 0);
  if (!o) throw PythonErrorSet();
  new (&reinterpret_cast<NodeObject*>(o)->node) Ref<Node>(node);
  node->python = o;
  return o;
}

static PyObject* current_node_py(PyObject*, PyObject*) {
  return guarded([] { return wrap_node(Ref<Node>::share(current_node())); });
}
static PyObject* current_pass_py(PyObject*, PyObject*) { return PyLong_FromLongLong(current_pass_number()); }
static PyMethodDef pass_functions[] = {{"_current_autograd_node", current_node_py, METH_NOARGS, nullptr},
                                       {"_current_graph_task_id", current_pass_py, METH_NOARGS, nullptr},
                                       {}};

void init_nodes(PyObject* module) {
  node_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)).release());
  checked(PyModule_AddObjectRef(module, "Node", reinterpret_cast<PyObject*>(node_type)));
  PyModule_AddFunctions(module, pass_functions);
}

}  // namespace warptape::bindings
