#include "bindings/ops/override.h"

#include "bindings/bound_object.h"
#include "bindings/ops/dispatch.h"

#include <algorithm>

#include "ops/view/view.h"

namespace warptape::bindings {
namespace {

PyObject* protocol_name;  // "__torch_function__"
PyObject* disabled_impl;  // what a class sets as its __torch_function__ to have none

thread_local bool subclasses_off = false;
// Modes, innermost last; the bit of the thread's dispatch word is set while there are any.
template <DispatchBit bit>
struct Modes : std::vector<PyObject*> {
  void note() const {
    own_thread_state().dispatch = (thread_state().dispatch & ~bit) | (empty() ? 0u : uint32_t{bit});
  }
  void push(PyObject* owned) { push_back(owned), note(); }
  PyObject* pop() {
    PyObject* mode = back();
    pop_back(), note();
    return mode;
  }
};
template <DispatchBit bit>
thread_local Modes<bit> modes_of;
Modes<kTorchFunctionMode>& function_modes() { return modes_of<kTorchFunctionMode>; }

// Borrowed; null for types without the attribute and those that switched it off.
PyObject* override_of(PyTypeObject* type) {
  if (type == tensor_type || type == parameter_type || type == tensor_base_type ||
      !(type->tp_flags & Py_TPFLAGS_HEAPTYPE))
    return nullptr;
  PyObject* attribute = _PyType_Lookup(type, protocol_name);
  return attribute == disabled_impl ? nullptr : attribute;
}

// Calls see(o) for the argument, or for the items of a list of arguments.
template <class F>
void each(PyObject* o, F&& see) {
  if (!PyTuple_CheckExact(o) && !PyList_CheckExact(o)) return see(o);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) see(PySequence_Fast_GET_ITEM(o, i));
}

// The arguments to ask, one of each type: from left to right, but a subclass before its base.
std::vector<PyObject*> to_ask(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  std::vector<PyObject*> found;
  auto see = [&](PyObject* o) {
    PyTypeObject* type = Py_TYPE(o);
    if (!override_of(type)) return;
    for (PyObject* f : found)
      if (Py_TYPE(f) == type) return;
    found.insert(std::ranges::find_if(found, [&](PyObject* f) { return PyType_IsSubtype(type, Py_TYPE(f)); }),
                 o);
  };
  if (subclasses_off) return found;
  if (self) each(self, see);
  for (Py_ssize_t i = 0; i < count; ++i) each(args[i], see);
  return found;
}

// A plain result as an object of `type`, tuples and lists of them likewise.
Object converted(Object out, PyTypeObject* type) {
  PyObject* o = out.get();
  if (Py_TYPE(o) == tensor_type) {
    Tensor t = tensor_of(o);
    if (Py_REFCNT(o) > 1) {  // somebody has it under its own class
      t = ops::view_as(t, t);
    } else {
      out = Object();
    }
    return checked(wrap_as(type, t));
  }
  if (!PyTuple_Check(o) && !PyList_CheckExact(o)) return out;
  Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
  Object items = checked(PyList_New(n));
  bool changed = false;
  for (Py_ssize_t i = 0; i < n; ++i) {
    Object item = Object::share(PySequence_Fast_GET_ITEM(o, i));
    PyObject* before = item.get();
    item = converted(std::move(item), type);
    changed |= item.get() != before;
    PyList_SET_ITEM(items.get(), i, item.release());
  }
  if (!changed) return out;
  if (PyList_CheckExact(o)) return items;
  Object tuple = checked(PySequence_Tuple(items.get()));
  return PyTuple_CheckExact(o)
             ? tuple
             : checked(PyObject_CallOneArg(reinterpret_cast<PyObject*>(Py_TYPE(o)), tuple.get()));
}

// Tensor.__torch_function__(cls, func, types, args=(), kwargs=None): calls func on the tensors as they are;
// what it makes is of cls.
PyObject* default_impl(PyObject* cls, PyObject* call_args, PyObject* call_kwargs) {
  PyObject *func, *types, *args = nullptr, *kwargs = nullptr;
  const char* names[] = {"func", "types", "args", "kwargs", nullptr};
  if (!PyArg_ParseTupleAndKeywords(call_args, call_kwargs, "OO|OO:__torch_function__",
                                   const_cast<char**>(names), &func, &types, &args, &kwargs))
    return nullptr;
  return guarded([&]() -> PyObject* {
    Object all = checked(PySequence_Tuple(types));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all.get()); ++i) {
      int fits = PyObject_IsSubclass(cls, PyTuple_GET_ITEM(all.get(), i));
      checked(fits);
      if (!fits) Py_RETURN_NOTIMPLEMENTED;
    }
    Object positional = checked(args ? PySequence_Tuple(args) : PyTuple_New(0));
    if (kwargs == Py_None) kwargs = nullptr;
    Restore<bool> off(subclasses_off, true);
    Object out = checked(from_python([&] { return PyObject_Call(func, positional.get(), kwargs); }));
    auto* type = reinterpret_cast<PyTypeObject*>(cls);
    // The gradient and the base of a view are tensors of their own.
    static PyObject* const kept[] = {tensor_attribute("grad").release(), tensor_attribute("_grad").release(),
                                     tensor_attribute("_base").release()};
    for (PyObject* k : kept)
      if (PyObject_RichCompareBool(func, k, Py_EQ) == 1) return out.release();
    if (type == tensor_type || !override_of(type)) return out.release();
    return converted(std::move(out), type).release();
  });
}

PyObject* disabled(PyObject*, PyObject* call_args) {
  PyObject *func, *types, *args = nullptr, *kwargs = nullptr;
  if (!PyArg_ParseTuple(call_args, "OO|OO:_disabled_torch_function_impl", &func, &types, &args, &kwargs))
    return nullptr;
  Restore<bool> off(subclasses_off, true);
  Object positional(args ? PySequence_Tuple(args) : PyTuple_New(0));
  return positional ? PyObject_Call(func, positional.get(), kwargs == Py_None ? nullptr : kwargs) : nullptr;
}

struct Call {
  Object func, types, args, kwargs;
  // NotImplemented where the class leaves the call to others.
  Object ask(PyObject* who) const {
    Object method = checked(PyObject_GetAttr(who, protocol_name));
    return call_python(method.get(), func.get(), types.get(), args.get(), kwargs.get());
  }
};

Call make_call(PyObject* func, PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
               const std::vector<PyObject*>& asked) {
  Call call;
  call.func = Object::share(func);
  call.types = checked(PyTuple_New(static_cast<Py_ssize_t>(asked.size())));
  for (size_t i = 0; i < asked.size(); ++i)
    PyTuple_SET_ITEM(call.types.get(), static_cast<Py_ssize_t>(i),
                     Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(asked[i]))));
  const Py_ssize_t first = self ? 1 : 0;
  call.args = checked(PyTuple_New(nargs + first));
  if (self) PyTuple_SET_ITEM(call.args.get(), 0, Py_NewRef(self));
  for (Py_ssize_t i = 0; i < nargs; ++i) PyTuple_SET_ITEM(call.args.get(), i + first, Py_NewRef(args[i]));
  call.kwargs = checked(PyDict_New());
  for (Py_ssize_t k = 0; kwnames && k < PyTuple_GET_SIZE(kwnames); ++k)
    checked(PyDict_SetItem(call.kwargs.get(), PyTuple_GET_ITEM(kwnames, k), args[nargs + k]));
  return call;
}

// The innermost mode is off while its own __torch_function__ runs.
Object ask_mode(const Call& call) {
  struct Popped {
    PyObject* mode = function_modes().pop();
    ~Popped() { function_modes().push(mode); }
  } popped;
  return call.ask(popped.mode);
}

template <DispatchBit bit>
PyObject* push_mode(PyObject*, PyObject* mode) {
  modes_of<bit>.push(Py_NewRef(mode));
  Py_RETURN_NONE;
}
template <DispatchBit bit>
PyObject* pop_mode(PyObject*, PyObject*) {
  if (!modes_of<bit>.empty()) return modes_of<bit>.pop();
  return PyErr_Format(PyExc_RuntimeError, "there is no %s to leave",
                      bit == kDispatchMode ? "TorchDispatchMode" : "TorchFunctionMode");
}
template <DispatchBit bit>
PyObject* mode_stack(PyObject*, PyObject*) {
  return guarded([] {
    Object list = checked(PyList_New(0));
    for (PyObject* mode : modes_of<bit>) checked(PyList_Append(list.get(), mode));
    return list.release();
  });
}
PyObject* has_mode(PyObject*, PyObject*) { return PyBool_FromLong(!function_modes().empty()); }
PyObject* asks_subclasses(PyObject*, PyObject*) { return PyBool_FromLong(!subclasses_off); }
PyObject* set_subclasses(PyObject*, PyObject* on) {
  int value = PyObject_IsTrue(on);
  if (value < 0) return nullptr;
  return PyBool_FromLong(!std::exchange(subclasses_off, value == 0));
}

// ---- TorchDispatchMode: called in the place of every op, from Python, from C++ and in backward passes ----

// The innermost mode is off while it is called; the others see the ops that it calls.
bool ask_op_mode(const OpInfo& op, std::span<Value> values, Result& out, Keep&) {
  if (modes_of<kDispatchMode>.empty()) return false;
  GilGuard gil;
  struct Popped {
    uint32_t word = thread_state().dispatch;
    PyObject* mode = modes_of<kDispatchMode>.pop();
    ~Popped() { modes_of<kDispatchMode>.push_back(mode), own_thread_state().dispatch = word; }
  } popped;
  Object method = checked(PyObject_GetAttrString(popped.mode, "_called"));
  return call_python_for(method.get(), op, values, out);
}

// Function calls with the arguments as one sequence, for functions written in Python.
PyObject* has_override(PyObject*, PyObject* args) {
  return guarded([&] {
    Object all = checked(PySequence_Tuple(args));
    return PyBool_FromLong(
        overridden(nullptr, PySequence_Fast_ITEMS(all.get()), PyTuple_GET_SIZE(all.get())));
  });
}
PyObject* handle(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  if (nargs < 2) {
    PyErr_SetString(PyExc_TypeError,
                    "handle_torch_function: expected (public_api, relevant_args, *args, **kwargs)");
    return nullptr;
  }
  return guarded([&] {
    Object relevant = checked(PySequence_Tuple(args[1]));
    std::vector<PyObject*> asked =
        to_ask(nullptr, PySequence_Fast_ITEMS(relevant.get()), PyTuple_GET_SIZE(relevant.get()));
    Call call = make_call(args[0], nullptr, args + 2, nargs - 2, kwnames, asked);
    if (!function_modes().empty())
      if (Object out = ask_mode(call); out.get() != Py_NotImplemented) return out.release();
    for (PyObject* o : asked)
      if (Object out = call.ask(o); out.get() != Py_NotImplemented) return out.release();
    throw TypeError(
        message("no implementation found for ", shown_text(checked(PyObject_Repr(args[0])).get())));
  });
}
// as_subclass(cls): the same tensor, history included, as an object of another class.
PyObject* as_subclass(PyObject*, PyObject* args) {
  PyObject *self, *cls;
  if (!PyArg_ParseTuple(args, "OO!:as_subclass", &self, &PyType_Type, &cls)) return nullptr;
  return guarded([&] {
    auto* type = reinterpret_cast<PyTypeObject*>(cls);
    WT_CHECK(PyType_IsSubtype(type, tensor_base_type), TypeError,
             "as_subclass: expected a subclass of Tensor, got ", type->tp_name);
    const Tensor& t = tensor_arg(self, "as_subclass");
    const Tensor made = ops::view_as(t, t);
    note_class(made, type);
    return wrap_as(type, made);
  });
}

}  // namespace

// with DisableTorchFunctionSubclass(): classes are not asked; with DisableTorchFunction(): modes neither.
template <bool with_modes>
struct Disable {
  bool subclasses_were_off = false;
  std::vector<PyObject*> modes_were;
  void enter() {
    subclasses_were_off = std::exchange(subclasses_off, true);
    if (with_modes) modes_were.swap(function_modes()), function_modes().note();
  }
  void exit() {
    subclasses_off = subclasses_were_off;
    if (with_modes) modes_were.swap(function_modes()), function_modes().note();
  }
  static void add(pybind11::module_& m, const char* name, const char* doc) {
    pybind11::class_<Disable>(m, name, doc, pybind11::module_local())
        .def(pybind11::init<>())
        .def("__enter__", [](Disable& d) { d.enter(); })
        .def("__exit__", [](Disable& d, const pybind11::args&) { d.exit(); });
  }
};

template <bool with_modes>
inline constexpr bool kBound<Disable<with_modes>> = true;

namespace {

template <class F>
PyCFunction as_function(F* f) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(f));
}
PyMethodDef default_def = {"__torch_function__", as_function(default_impl),
                           METH_VARARGS | METH_KEYWORDS | METH_CLASS,
                           "Calls the function; its results are of this class."};
PyMethodDef override_methods[] = {
    {"_disabled_torch_function_impl", disabled, METH_VARARGS,
     "The __torch_function__ of classes that want none."},
    {"_push_torch_function_mode", push_mode<kTorchFunctionMode>, METH_O, nullptr},
    {"_pop_torch_function_mode", pop_mode<kTorchFunctionMode>, METH_NOARGS, nullptr},
    {"_torch_function_modes", mode_stack<kTorchFunctionMode>, METH_NOARGS, nullptr},
    {"_push_dispatch_mode", push_mode<kDispatchMode>, METH_O, nullptr},
    {"_pop_dispatch_mode", pop_mode<kDispatchMode>, METH_NOARGS, nullptr},
    {"_dispatch_modes", mode_stack<kDispatchMode>, METH_NOARGS, nullptr},
    {"_has_torch_function_mode", has_mode, METH_NOARGS, nullptr},
    {"_is_torch_function_enabled", asks_subclasses, METH_NOARGS, "Whether classes are asked."},
    {"_set_torch_function_subclasses", set_subclasses, METH_O, "Returns what it was."},
    {"_has_torch_function", has_override, METH_O, nullptr},
    {"_handle_torch_function", as_function(handle), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"_as_subclass", as_subclass, METH_VARARGS, nullptr},
    {}};

}  // namespace

Object tensor_attribute(const char* name) {
  Object attribute = checked(PyObject_GetAttrString(reinterpret_cast<PyObject*>(tensor_base_type), name));
  if (!PyObject_TypeCheck(attribute.get(), &PyGetSetDescr_Type)) return attribute;
  return checked(PyObject_GetAttrString(attribute.get(), "__get__"));
}

bool overridden(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (thread_state().dispatch & kTorchFunctionMode) return true;
  bool found = false;
  auto see = [&](PyObject* o) { found |= override_of(Py_TYPE(o)) != nullptr; };
  if (self) see(self);
  for (Py_ssize_t i = 0; i < count; ++i) each(args[i], see);
  return found && !subclasses_off;
}

// einsum(equation, [a, b]) asks with the operands one by one, as PyTorch's does.
std::vector<PyObject*> unpacked(PyObject* func, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const bool packed = nargs == 2 && !kwnames && PyUnicode_Check(args[0]);
  if (!packed || !(PyList_Check(args[1]) || PyTuple_Check(args[1]))) return {};
  Object name = checked(PyObject_GetAttrString(func, "__name__"));
  if (PyUnicode_CompareWithASCIIString(name.get(), "einsum") != 0) return {};
  std::vector<PyObject*> out{args[0]};
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(args[1]); ++i)
    out.push_back(PySequence_Fast_GET_ITEM(args[1], i));
  return out;
}

PyObject* call_override(PyObject* func, PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                        PyObject* kwnames) {
  const Py_ssize_t count = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  std::vector<PyObject*> asked = to_ask(self, args, count);
  Call call = make_call(func, self, args, nargs, kwnames, asked);
  if (!function_modes().empty())
    if (Object out = ask_mode(call); out.get() != Py_NotImplemented) return out.release();
  if (std::vector<PyObject*> all = unpacked(func, args, nargs, kwnames); !all.empty())
    call = make_call(func, self, all.data(), std::ssize(all), nullptr, asked);
  for (PyObject* o : asked)
    if (Object out = call.ask(o); out.get() != Py_NotImplemented) return out.release();
  std::string types;
  for (PyObject* o : asked) types.append(types.empty() ? "" : ", ").append(Py_TYPE(o)->tp_name);
  Object text = checked(PyObject_Repr(func));
  throw TypeError(message("no implementation found for ", shown_text(text.get()),
                          " on types that implement __torch_function__: [", types, "]"));
}

void init_overrides(PyObject* module) {
  set_interceptor(kDispatchMode, ask_op_mode);
  init_dispatch(module);
  protocol_name = PyUnicode_InternFromString("__torch_function__");
  checked(PyModule_AddFunctions(module, override_methods));
  disabled_impl = checked(PyObject_GetAttrString(module, "_disabled_torch_function_impl")).release();
  auto m = pybind11::reinterpret_borrow<pybind11::module_>(module);
  Disable<false>::add(m, "DisableTorchFunctionSubclass",
                      "Within it, classes are not asked for their __torch_function__.");
  Disable<true>::add(m, "DisableTorchFunction", "Within it, neither classes nor modes are asked.");
  auto* type = reinterpret_cast<PyObject*>(tensor_base_type);
  Object inherited = checked(PyDescr_NewClassMethod(tensor_base_type, &default_def));
  checked(PyObject_SetAttr(type, protocol_name, inherited.get()));
}

}  // namespace warptape::bindings
