// Hooks of tensors and nodes, retain_grad, saved-tensor hooks.
#include <mutex>

#include "autograd/recording.h"
#include "bindings/autograd/autograd.h"

namespace warptape::bindings {

HookDict::HookDict() : dict(PyODict_New()) {  // ordered and, unlike dict, weakly referable by handles
  if (!dict) throw PythonErrorSet();
}

HookDict::~HookDict() {
  if (!Py_IsInitialized()) return;
  GilGuard gil;
  Py_DECREF(dict);
}

int HookDict::visit(visitproc visit, void* arg) const {
  Py_VISIT(dict);
  return 0;
}

namespace {

// Hooks may remove themselves while they run.
Object snapshot(PyObject* dict) { return checked(PyDict_Values(dict)); }

// tuple or tensor or None that a node's hook returned, written over `into`.
void replace(std::span<Tensor> into, PyObject* result) {
  if (result == Py_None) return;
  Object items = is_tensor(result) ? checked(PyTuple_Pack(1, result)) : checked(PySequence_Tuple(result));
  WT_CHECK(PyTuple_GET_SIZE(items.get()) == static_cast<Py_ssize_t>(into.size()), Error, "hook: expected ",
           into.size(), " gradients back, got ", PyTuple_GET_SIZE(items.get()));
  for (size_t i = 0; i < into.size(); ++i) {
    PyObject* item = PyTuple_GET_ITEM(items.get(), static_cast<Py_ssize_t>(i));
    WT_CHECK(item == Py_None || is_tensor(item), TypeError, "hook: expected a Tensor or None, got ",
             Py_TYPE(item)->tp_name);
    into[i] = item == Py_None ? Tensor() : tensor_of(item);
  }
}

void check_same_kind(const Tensor& before, const Tensor& after) {
  WT_CHECK(before.sizes() == after.sizes(), ShapeError, "hook: has changed the size of value: expected ",
           before, ", got ", after);
  WT_CHECK(before.dtype() == after.dtype(), DtypeError, "hook: has changed the type of value: expected ",
           before, ", got ", after);
}

}  // namespace

void HookDict::call(Tensor& gradient) {
  GilGuard gil;
  Object hooks = snapshot(dict);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(hooks.get()); ++i) {
    Object arg = checked(wrap(gradient));
    Object result = call_python(PyList_GET_ITEM(hooks.get(), i), arg.get());
    if (result.get() == Py_None || !returns) continue;
    WT_CHECK(is_tensor(result.get()), TypeError, "hook: expected a Tensor or None back, got ",
             Py_TYPE(result.get())->tp_name);
    check_same_kind(gradient, tensor_of(result.get()));
    gradient = tensor_of(result.get());
  }
}

void HookDict::call(std::span<Tensor> inputs, std::span<Tensor> outputs) {
  GilGuard gil;
  Object hooks = snapshot(dict);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(hooks.get()); ++i) {
    Object out = checked(wrap_tuple(outputs));
    PyObject* hook = PyList_GET_ITEM(hooks.get(), i);
    if (inputs.data()) {
      Object in = checked(wrap_tuple(inputs));
      Object result = call_python(hook, in.get(), out.get());
      replace(inputs, result.get());
    } else {
      Object result = call_python(hook, out.get());
      replace(outputs, result.get());
    }
  }
}

namespace {

template <class List>
std::shared_ptr<HookDict> find_dict(const List& list) {
  for (const auto& h : list)
    if (auto d = std::dynamic_pointer_cast<HookDict>(h)) return d;
  return nullptr;
}

// _hook_dict(tensor): the dict of the hooks on the tensor's gradient, made on first use.
PyObject* hook_dict(PyObject*, PyObject* o) {
  return guarded([&] {
    WT_CHECK(is_tensor(o) && requires_grad(tensor_of(o)), Error,
             "cannot register a hook on a tensor that doesn't require gradient");
    const Tensor& t = tensor_of(o);
    AutogradMeta& m = make_meta(t);
    if (Ref<Node> node = grad_fn(t)) {
      auto& hooks = node->more().tensor_hooks;
      for (auto& h : hooks)
        if (h.output == m.output)
          if (auto d = std::dynamic_pointer_cast<HookDict>(h.hook)) return Py_NewRef(d->dict);
      auto made = std::make_shared<HookDict>();
      hooks.push_back({m.output, made});
      return Py_NewRef(made->dict);
    }
    auto hooks = find_dict(m.hooks);
    if (!hooks) m.hooks.push_back(hooks = std::make_shared<HookDict>());
    return Py_NewRef(hooks->dict);
  });
}

PyObject* post_accumulate_dict(PyObject*, PyObject* o) {
  return guarded([&] {
    WT_CHECK(is_tensor(o) && requires_grad(tensor_of(o)), Error,
             "cannot register a hook on a tensor that doesn't require gradient");
    WT_CHECK(is_leaf(tensor_of(o)), Error,
             "post accumulate grad hooks cannot be registered on non-leaf tensors");
    AutogradMeta& m = make_meta(tensor_of(o));
    auto hooks = find_dict(m.post_accumulate_hooks);
    if (!hooks) {
      hooks = std::make_shared<HookDict>();
      hooks->returns = false;
      m.post_accumulate_hooks.push_back(hooks);
    }
    return Py_NewRef(hooks->dict);
  });
}

// Keeps the gradient of a tensor that is not a leaf; it does not keep the tensor alive. The lock holds up the
// tensor's end on another thread; nothing that may take the GIL happens under it.
struct RetainGrad final : TensorHook {
  explicit RetainGrad(AutogradMeta& m) : meta(&m) {}
  void call(Tensor& gradient) override {
    Tensor grad;
    {
      std::lock_guard lock(mutex);
      if (!meta) return;
      grad = meta->grad;
    }
    grad = grad.defined() ? tape_add(grad, gradient) : gradient;
    std::lock_guard lock(mutex);
    if (meta) std::swap(meta->grad, grad);
  }
  void tensor_gone() override {
    std::lock_guard lock(mutex);
    meta = nullptr;
  }
  std::mutex mutex;
  AutogradMeta* meta;
};

PyObject* retain_grad(PyObject*, PyObject* o) {
  return guarded([&]() -> PyObject* {
    WT_CHECK(is_tensor(o) && requires_grad(tensor_of(o)), Error,
             "can't retain_grad on Tensor that has requires_grad=False");
    const Tensor& t = tensor_of(o);
    WT_CHECK(!recording_transforms() && (!is_opaque(t) || has_dispatch(t)), Error,
             "Tensor.retain_grad(): called inside of a function that torch.func transforms, where it has no "
             "effect; return the gradient instead");
    AutogradMeta& m = make_meta(t);
    Ref<Node> node = grad_fn(t);
    if (!node || m.retains_grad) Py_RETURN_NONE;
    m.retains_grad = true;
    node->more().retain_grad.push_back({m.output, m.retain_hook = std::make_shared<RetainGrad>(m)});
    Py_RETURN_NONE;
  });
}

// ---- saved-tensor hooks --------------------------------------------------------------------------------

struct HookPair {
  Object pack, unpack;
};
struct SavedTensorHooks {
  std::vector<HookPair> stack;
  PyObject* refusal = nullptr;  // why no pair may be pushed; owned
};
thread_local SavedTensorHooks saved_hooks;

struct PythonPacked final : PackedTensor, PythonPart {
  PythonPacked(Object v, Object u) : value(std::move(v)), unpacker(std::move(u)) {}
  ~PythonPacked() override {
    if (!Py_IsInitialized()) {
      value.release();
      unpacker.release();
      return;
    }
    GilGuard gil;
    value = Object();
    unpacker = Object();
  }
  Tensor unpack() override {
    GilGuard gil;
    Object out = call_python(unpacker.get(), value.get());
    WT_CHECK(is_tensor(out.get()), TypeError, "saved_tensors_hooks: unpack_hook should return a Tensor, got ",
             Py_TYPE(out.get())->tp_name);
    return tensor_of(out.get());
  }
  int visit(visitproc visit, void* arg) const override {
    Py_VISIT(value.get());
    Py_VISIT(unpacker.get());
    return 0;
  }
  Object value, unpacker;
};

PyObject* push_hooks(PyObject*, PyObject* args) {
  PyObject *p, *u;
  if (!PyArg_ParseTuple(args, "OO", &p, &u)) return nullptr;
  if (saved_hooks.refusal) return PyErr_SetObject(PyExc_RuntimeError, saved_hooks.refusal), nullptr;
  saved_hooks.stack.push_back({Object::share(p), Object::share(u)});
  own_thread_state().saved_tensor_hooks = true;
  Py_RETURN_NONE;
}

PyObject* pop_hooks(PyObject*, PyObject*) {
  if (!saved_hooks.stack.empty()) saved_hooks.stack.pop_back();
  own_thread_state().saved_tensor_hooks = !saved_hooks.stack.empty();
  Py_RETURN_NONE;
}

// _refuse_saved_tensor_hooks(why or None): the one before.
PyObject* refuse_hooks(PyObject*, PyObject* why) {
  if (why != Py_None && !saved_hooks.stack.empty()) return PyErr_SetObject(PyExc_RuntimeError, why), nullptr;
  PyObject* old = std::exchange(saved_hooks.refusal, why == Py_None ? nullptr : Py_NewRef(why));
  return old ? old : Py_NewRef(Py_None);
}

PyObject* is_transforming(PyObject*, PyObject*) {
  return PyBool_FromLong(recording_transforms() || (thread_state().dispatch & kTransform));
}

PyObject* has_hooks(PyObject*, PyObject*) { return PyBool_FromLong(!saved_hooks.stack.empty()); }

PyMethodDef hooks_methods[] = {{"_hook_dict", hook_dict, METH_O, nullptr},
                               {"_post_accumulate_dict", post_accumulate_dict, METH_O, nullptr},
                               {"_retain_grad", retain_grad, METH_O, nullptr},
                               {"_push_saved_tensor_hooks", push_hooks, METH_VARARGS, nullptr},
                               {"_pop_saved_tensor_hooks", pop_hooks, METH_NOARGS, nullptr},
                               {"_has_saved_tensor_hooks", has_hooks, METH_NOARGS, nullptr},
                               {"_refuse_saved_tensor_hooks", refuse_hooks, METH_O, nullptr},
                               {"_is_transforming", is_transforming, METH_NOARGS, nullptr},
                               {}};

}  // namespace

Ref<PackedTensor> pack_saved_tensor(const Tensor& t) {
  if (saved_hooks.stack.empty()) return {};
  GilGuard gil;
  HookPair top = saved_hooks.stack.back();  // a copy: the hook may push pairs of its own
  // The hook's own ops are not recorded with hooks again.
  Restore<bool> off(own_thread_state().saved_tensor_hooks, false);
  Object arg = checked(wrap(t));
  Object value = call_python(top.pack.get(), arg.get());
  return Ref<PackedTensor>::adopt(new PythonPacked(std::move(value), top.unpack));
}

void init_hooks(PyObject* module) { checked(PyModule_AddFunctions(module, hooks_methods)); }

}  // namespace warptape::bindings
