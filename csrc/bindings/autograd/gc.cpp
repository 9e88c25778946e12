// Note [Garbage collection of the tape]: Python's collector must see that a hook (or a custom function's
// context) that is kept by a graph that is kept by a tensor refers back to that tensor. traverse_autograd
// walks from a tensor through what it alone keeps alive: a node or impl is entered when as many references to
// it were met on the walk as it has. The walk is skipped while no Python object is inside any graph, which is
// the usual case. A collection of young objects visits every tensor made since the last one, some thousand
// calls ago: it walks a bounded part of each graph, or every call would cost time by the depth of the graph
// that it continues. A full collection walks all. Leaving references out is safe, as long as all passes of
// one collection leave out the same.
#include <atomic>
#include <string_view>
#include <unordered_map>

#include "bindings/autograd/autograd.h"

namespace warptape::bindings {
namespace {

std::atomic<int64_t> python_parts{0};
constexpr size_t kYoungWalk = 1024;  // nodes and tensors
size_t longest_walk = SIZE_MAX;      // in the collection that runs; guarded by the GIL

class Walk {
 public:
  Walk(visitproc visit, void* arg) : visit_(visit), arg_(arg) {}

  int run(TensorImpl* root) {
    enter(root);
    for (size_t entered = 0; !failed_ && entered < longest_walk && (!nodes_.empty() || !impls_.empty());
         ++entered) {
      if (!nodes_.empty()) {
        Node* n = nodes_.back();
        nodes_.pop_back();
        enter(n);
      } else {
        TensorImpl* t = impls_.back();
        impls_.pop_back();
        if (t->owns_python) visit_object(static_cast<PyObject*>(t->python));
        enter(t);
      }
    }
    return failed_;
  }

 private:
  void visit_object(PyObject* o) {
    if (o && !failed_) failed_ = visit_(o, arg_);
  }
  void visit_part(const void* hook, const PythonPart* part) {
    // A hook that somebody else shares (a handle being used) is not ours alone.
    if (part && hook && !failed_) failed_ = part->visit(visit_, arg_);
  }
  template <class H>
  void visit_hooks(const std::vector<std::shared_ptr<H>>& hooks) {
    for (auto& h : hooks)
      if (h.use_count() == 1) visit_part(h.get(), dynamic_cast<const PythonPart*>(h.get()));
  }
  void meet(Node* n) {
    if (n && static_cast<size_t>(++seen_nodes_[n]) == n->use_count()) nodes_.push_back(n);
  }
  void meet(const Tensor& t) {
    if (t.defined() && static_cast<size_t>(++seen_impls_[t.impl()]) == t.ref()->use_count())
      impls_.push_back(t.impl());
  }
  void enter(TensorImpl* t) {
    auto* m = static_cast<AutogradMeta*>(t->extra.get());
    if (!m) return;
    visit_hooks(m->hooks);
    visit_hooks(m->post_accumulate_hooks);
    meet(m->node.get());
    meet(m->grad);
    if (m->view) meet(m->view->base);
  }
  void enter(Node* n) {
    for (const Edge& e : n->edges) meet(e.node.get());
    for (size_t i = 0; i < n->saved_count(); ++i) {
      meet(n->saved_raw(i).raw());
      const PackedTensor* packed = n->saved_raw(i).packed();
      if (packed && packed->use_count() == 1) visit_part(packed, dynamic_cast<const PythonPart*>(packed));
    }
    if (const Tensor* leaf = accumulator_leaf_or_null(*n)) meet(*leaf);
    if (n->type->python_part) visit_part(n, static_cast<const PythonPart*>(n->type->python_part(*n)));
    if (NodeExtras* extras = n->extras.get()) {
      for (auto* list : {&extras->tensor_hooks, &extras->retain_grad})
        for (auto& h : *list)
          if (h.hook.use_count() == 1)
            visit_part(h.hook.get(), dynamic_cast<const PythonPart*>(h.hook.get()));
      visit_hooks(extras->pre_hooks);
      visit_hooks(extras->post_hooks);
    }
  }

  visitproc visit_;
  void* arg_;
  int failed_ = 0;
  std::vector<Node*> nodes_;
  std::vector<TensorImpl*> impls_;
  std::unordered_map<Node*, int> seen_nodes_;
  std::unordered_map<TensorImpl*, int> seen_impls_;
};

}  // namespace

void count_python_parts(int change) { python_parts.fetch_add(change, std::memory_order_relaxed); }
PythonPart::PythonPart() { count_python_parts(1); }
PythonPart::~PythonPart() { count_python_parts(-1); }

int traverse_autograd(const Tensor& t, visitproc visit, void* arg) {
  if (!t->extra || t.ref()->use_count() != 1 || python_parts.load(std::memory_order_relaxed) == 0) return 0;
  return Walk(visit, arg).run(t.impl());
}

namespace {

// The oldest generation that is collected without a call. Python 3.14.0 to 3.14.4 collect in increments, of
// generation 1; a build with the headers of any 3.14 runs under all.
long full_generation() {
#if PY_VERSION_HEX >= 0x030E0000
  return Py_Version < 0x030E0500 ? 1 : 2;
#else
  return 2;
#endif
}

// Called by the collector: on_collection("start" or "stop", {"generation": ..}).
PyObject* on_collection(PyObject*, PyObject* args) {
  const char* phase;
  PyObject* info;
  if (!PyArg_ParseTuple(args, "sO!", &phase, &PyDict_Type, &info)) return nullptr;
  PyObject* generation = PyDict_GetItemString(info, "generation");
  const bool young = generation && PyLong_AsLong(generation) < full_generation();
  longest_walk = young && phase == std::string_view("start") ? kYoungWalk : SIZE_MAX;
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef collection_callback = {"_on_collection", on_collection, METH_VARARGS, nullptr};

}  // namespace

void init_gc(PyObject* module) {
  Object function = checked(PyCFunction_NewEx(&collection_callback, nullptr, nullptr));
  checked(PyModule_AddObjectRef(module, "_on_collection", function.get()));
  Object gc = checked(PyImport_ImportModule("gc"));
  Object callbacks = checked(PyObject_GetAttrString(gc.get(), "callbacks"));
  checked(PyList_Append(callbacks.get(), function.get()));
}

void clear_autograd(const Tensor& t) {
  if (!t->extra) return;
  AutogradMeta& m = *meta_of(t);
  auto hooks = std::move(m.hooks);
  auto post = std::move(m.post_accumulate_hooks);
  Ref<Node> node = std::move(m.node);
  Tensor grad = std::move(m.grad);
  m.hooks.clear();
  m.post_accumulate_hooks.clear();
  m.node = {};
  m.grad = {};
}

}  // namespace warptape::bindings
