#include "bindings/ops/dispatch.h"

#include <algorithm>
#include <atomic>

#include "bindings/autograd/autograd.h"
#include "op/visit.h"

namespace warptape::bindings {
namespace {

// ---- calls ----------------------------------------------------------------------------------------------

template <class List, class F>
Object list_of(const List& items, F&& convert) {
  Object list = checked(PyList_New(static_cast<Py_ssize_t>(items.size())));
  Py_ssize_t at = 0;
  for (const auto& item : items) PyList_SET_ITEM(list.get(), at++, checked(convert(item)).release());
  return list;
}

PyObject* wrap_int(int64_t i) { return i == kNoItem ? Py_NewRef(Py_None) : PyLong_FromLongLong(i); }

// An argument as Python would give it.
PyObject* argument(const Arg& arg, const Value& v) {
  if (!v.present) Py_RETURN_NONE;
  const auto one = [](const auto& x) { return wrap(x); };
  return visit(
      arg.type, v,
      Overloaded{
          [&](const auto& x) -> PyObject* { return one(x); },  // Tensor, Scalar, DType, Device
          [](TensorList list) -> PyObject* { return wrap_list(list); },
          [](std::span<const OptTensor> list) -> PyObject* {
            return list_of(list, [](const OptTensor& t) { return t ? wrap(*t) : Py_NewRef(Py_None); })
                .release();
          },
          [](int64_t i) -> PyObject* { return wrap_int(i); },
          [](double d) -> PyObject* { return PyFloat_FromDouble(d); },
          [](bool b) -> PyObject* { return PyBool_FromLong(b); },
          [](IntList list) -> PyObject* { return list_of(list, wrap_int).release(); },
          [](std::span<const Shape> list) -> PyObject* {
            return list_of(list, [](const Shape& s) { return wrap_size(s); }).release();
          },
          [](std::span<const double> list) -> PyObject* {
            return list_of(list, PyFloat_FromDouble).release();
          },
          [&](ScalarList list) -> PyObject* { return list_of(list, one).release(); },
          [](std::string_view text) -> PyObject* {
            return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
          },
          [](Generator* g) -> PyObject* { return g ? wrap(Ref<Generator>::share(g)) : Py_NewRef(Py_None); },
      });
}

bool is_default(const Arg& arg, const Value& v) {
  const ArgDefault& d = arg.def;
  if (d.kind == ArgDefault::Kind::Required) return false;
  if (d.kind == ArgDefault::Kind::None || !v.present) return !v.present;
  const double number = d.kind == ArgDefault::Kind::Double ? d.d : static_cast<double>(d.i);
  return visit(arg.type, v,
               Overloaded{
                   [&](int64_t i) { return i == d.i; },
                   [&](bool b) { return b == (d.i != 0); },
                   [&](double x) { return x == number; },
                   [&](const Scalar& s) { return !s.is_complex() && s.to_double() == number; },
                   [&](IntList list) { return std::ranges::equal(list, d.ints()); },
                   [&](std::string_view text) { return d.text && text == d.text; },
                   [&](DType t) { return t == d.dtype; },
                   [&](const auto&) { return v.list.size == 0; },
               });
}

// (args, kwargs) as PyTorch's dispatcher has them: keywords for what takes no position, and no defaults at
// the end.
std::pair<Object, Object> arguments(const OpInfo& op, std::span<const Value> values) {
  size_t count = 0;
  for (size_t i = 0; i < values.size() && !(op.args[i].marks & kKeywordOnly); ++i)
    if (!is_default(op.args[i], values[i])) count = i + 1;
  Object args = checked(PyTuple_New(static_cast<Py_ssize_t>(count))), kwargs = checked(PyDict_New());
  for (size_t i = 0; i < count; ++i)
    PyTuple_SET_ITEM(args.get(), static_cast<Py_ssize_t>(i),
                     checked(argument(op.args[i], values[i])).release());
  for (size_t i = count; i < values.size(); ++i) {
    if (is_default(op.args[i], values[i])) continue;
    Object value = checked(argument(op.args[i], values[i]));
    checked(PyDict_SetItemString(kwargs.get(), op.args[i].name, value.get()));
  }
  return {std::move(args), std::move(kwargs)};
}

std::vector<Tensor> tensors_in(PyObject* o, const char* op) {
  std::vector<Tensor> found;
  Object items = checked(PySequence_Tuple(o));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) {
    PyObject* item = PyTuple_GET_ITEM(items.get(), i);
    found.push_back(item == Py_None ? Tensor() : tensor_arg(item, op));
  }
  return found;
}

// What the function returned, as the op would have.
void take_result(const OpInfo& op, PyObject* o, Result& out) {
  using Kind = Result::Kind;
  out.kind = op.returns;
  if (out.kind == Kind::OneOrMany) out.kind = is_tensor(o) ? Kind::Tensor : Kind::List;
  switch (out.kind) {
    case Kind::None:
      return;
    case Kind::Tensor:
      out.tensor = tensor_arg(o, op.name);
      return;
    case Kind::Tuple:
    case Kind::List: {
      const Result::Kind kind = out.kind;
      out.tensors = tensors_in(o, op.name);
      out.kind = kind;
      return;
    }
    case Kind::TensorAndList: {
      Object parts = checked(PySequence_Tuple(o));
      WT_CHECK(PyTuple_GET_SIZE(parts.get()) == 2, TypeError, op.name,
               ": expected __torch_dispatch__ to return a pair");
      out.tensor = tensor_arg(PyTuple_GET_ITEM(parts.get(), 0), op.name);
      out.tensors = tensors_in(PyTuple_GET_ITEM(parts.get(), 1), op.name);
      return;
    }
    case Kind::IntList:
    case Kind::IntTuple:
      out.ints = to_shape(o, op.name);
      return;
    case Kind::DType:
      out.dtype = dtype_of(o);
      return;
    default:
      WT_CHECK(to_scalar(o, out.scalar), TypeError, op.name,
               ": expected __torch_dispatch__ to return a number, got ", Py_TYPE(o)->tp_name);
  }
}

// ---- classes --------------------------------------------------------------------------------------------

PyObject* dispatch_name;      // "__torch_dispatch__"
PyObject* disabled_dispatch;  // what Tensor has under that name
// Whether a tensor with memory of its own is of such a class; those without are known by their storage.
std::atomic<bool> any_with_memory{false};

bool implements_dispatch(PyTypeObject* type) {
  if (type == tensor_type || type == parameter_type || !(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return false;
  PyObject* attribute = _PyType_Lookup(type, dispatch_name);
  return attribute && attribute != disabled_dispatch;
}

// The deleter of wrappers' storages, by which they are known without the GIL.
void release_wrapper(void*) {}

// A function of warptape.library.subclass_calls. The import may let another thread in, which is as good.
PyObject* function_of_calls(const char* name, PyObject*& held) {
  if (!held) {
    Object module = checked(PyImport_ImportModule("warptape.library.subclass_calls"));
    held = checked(PyObject_GetAttrString(module.get(), name)).release();
  }
  return held;
}

// False where the op's own code is to run, because it is made of other ops or reads only what the tensor says
// of itself.
bool call_class(const OpInfo& op, std::span<Value> values, Result& out, Keep&) {
  GilGuard gil;
  static PyObject* callee = nullptr;
  return call_python_for(function_of_calls("call", callee), op, values, out);
}

void begin_dispatch() { python_tape().any_dispatch.store(true, std::memory_order_relaxed); }

// _make_wrapper(cls, sizes, strides, offset, dtype, device, requires_grad): a tensor without memory, whose
// class keeps what it stands for. Strides may be None.
PyObject* make_wrapper(PyObject*, PyObject* args) {
  PyObject *cls, *sizes, *strides, *dtype, *device;
  long long offset;
  int requires_grad;
  if (!PyArg_ParseTuple(args, "O!OOLOOp", &PyType_Type, &cls, &sizes, &strides, &offset, &dtype, &device,
                        &requires_grad))
    return nullptr;
  return guarded([&] {
    constexpr const char* kName = "_make_wrapper_subclass";
    auto* type = reinterpret_cast<PyTypeObject*>(cls);
    WT_CHECK(PyType_IsSubtype(type, tensor_base_type), TypeError, kName,
             ": expected a subclass of Tensor, got ", type->tp_name);
    WT_CHECK(implements_dispatch(type), Error, kName, ": ", type->tp_name, " must define __torch_dispatch__");
    const Shape shape = to_shape(sizes, kName);
    Shape steps = strides == Py_None ? contiguous_strides(shape) : to_shape(strides, kName);
    WT_CHECK(steps.size() == shape.size(), ShapeError, kName, ": expected a stride for each of the ",
             shape.size(), " dims, got ", steps.size());
    for (const int64_t n : shape) WT_CHECK(n >= 0, ShapeError, kName, ": negative size in ", shape);
    begin_dispatch();
    Ref<Storage> none = Storage::opaque(resolved(device_of(device)), release_wrapper, &any_with_memory);
    const Tensor t(Ref<TensorImpl>::adopt(
        new TensorImpl(std::move(none), dtype_of(dtype), shape, std::move(steps), offset)));
    if (requires_grad) set_requires_grad(t, true);
    return wrap_as(type, t);
  });
}

// _note_view(view, of, recorded): they count their in-place changes together, as on one memory. What the tape
// records of the view holds as long as neither changes: see Note [In-place on views].
PyObject* note_view(PyObject*, PyObject* args) {
  PyObject *view, *of;
  int recorded;
  if (!PyArg_ParseTuple(args, "O!O!p", tensor_base_type, &view, tensor_base_type, &of, &recorded))
    return nullptr;
  return guarded([&]() -> PyObject* {
    const Tensor &t = tensor_of(view), &base = tensor_of(of);
    if (!base->own_version) {
      auto counter = Ref<VersionCounter>::adopt(new VersionCounter);
      counter->value = base.version();
      base->own_version = std::move(counter);
    }
    t->own_version = base->own_version;
    if (recorded) set_view(t, base, ViewOrigin::CustomFunction);
    Py_RETURN_NONE;
  });
}

bool any_dispatches(PyObject* o) {
  if (is_tensor(o)) return has_dispatch(tensor_of(o));
  if (!PyTuple_Check(o) && !PyList_Check(o)) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
    if (any_dispatches(PySequence_Fast_GET_ITEM(o, i))) return true;
  return false;
}

// _any_dispatches(args, kwargs): whether a tensor among them, or in lists of them, is of such a class.
PyObject* any_dispatches_py(PyObject*, PyObject* both) {
  PyObject *args, *kwargs;
  if (!PyArg_ParseTuple(both, "O!O!", &PyTuple_Type, &args, &PyDict_Type, &kwargs)) return nullptr;
  return guarded([&] {
    if (!any_dispatch()) Py_RETURN_FALSE;
    bool found = any_dispatches(args);
    PyObject *key, *value;
    for (Py_ssize_t at = 0; !found && PyDict_Next(kwargs, &at, &key, &value);) found = any_dispatches(value);
    return PyBool_FromLong(found);
  });
}

PyObject* dispatch_disabled(PyObject*, PyObject*) { Py_RETURN_NOTIMPLEMENTED; }

PyMethodDef dispatch_methods[] = {{"_make_wrapper", make_wrapper, METH_VARARGS, nullptr},
                                  {"_any_dispatches", any_dispatches_py, METH_VARARGS, nullptr},
                                  {"_note_view", note_view, METH_VARARGS, nullptr},
                                  {"_disabled_torch_dispatch_impl", dispatch_disabled, METH_VARARGS,
                                   "The __torch_dispatch__ of classes that want none."},
                                  {}};

}  // namespace

bool call_python_for(PyObject* callee, const OpInfo& op, std::span<Value> values, Result& out) {
  auto [args, kwargs] = arguments(op, values);
  const uint32_t flags = op.flags & (kFunction | kMethod) ? 0 : op.flags;  // of other places alone
  const char* place = flags & kLinalg    ? "linalg"
                      : flags & kSpecial ? "special"
                      : flags & kNN      ? "nn"
                      : op.flags & kFFT  ? "fft"
                                         : "";
  Object name = checked(PyUnicode_FromString(op.name)), prefix = checked(PyUnicode_FromString(place));
  Object result = call_python(callee, prefix.get(), name.get(), args.get(), kwargs.get());
  if (result.get() == Py_NotImplemented) return false;
  take_result(op, result.get(), out);
  return true;
}

void note_class(const Tensor& t, PyTypeObject* type) {
  if (!implements_dispatch(type)) return;
  if (!is_opaque(t)) any_with_memory.store(true, std::memory_order_relaxed);
  t->plain = false;
  begin_dispatch();
}

bool dispatches(const Tensor& t) {
  if (t.storage().context_of(release_wrapper))
    return t->python && Py_TYPE(static_cast<PyObject*>(t->python)) != tensor_type;  // else a view by accident
  if (is_opaque(t) || !t->python || !any_with_memory.load(std::memory_order_relaxed)) return false;
  GilGuard gil;
  return t->python && implements_dispatch(Py_TYPE(static_cast<PyObject*>(t->python)));
}

Tensor accumulate_by_class(const Tensor& leaf, const Tensor& old, const Tensor& gradient) {
  GilGuard gil;
  static PyObject* callee = nullptr;
  const Object args[] = {checked(wrap(leaf)), checked(wrap(old)), checked(wrap(gradient))};
  const Object sum =
      call_python(function_of_calls("accumulate", callee), args[0].get(), args[1].get(), args[2].get());
  return tensor_arg(sum.get(), "accumulate");
}

Tensor ones_by_class(const Tensor& root) {
  GilGuard gil;
  static PyObject* callee = nullptr;
  const Object of = checked(wrap(root));
  const Object ones = call_python(function_of_calls("ones_like", callee), of.get());
  return tensor_arg(ones.get(), "ones_like");
}

void init_dispatch(PyObject* module) {
  set_interceptor(kTorchDispatch, call_class);
  dispatch_name = PyUnicode_InternFromString("__torch_dispatch__");
  checked(PyModule_AddFunctions(module, dispatch_methods));
  disabled_dispatch = checked(PyObject_GetAttrString(module, "_disabled_torch_dispatch_impl")).release();
  checked(PyObject_SetAttr(reinterpret_cast<PyObject*>(tensor_base_type), dispatch_name, disabled_dispatch));
}

}  // namespace warptape::bindings
