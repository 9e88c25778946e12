// Extensions: Python objects for their functions, and the ops that they register. See
// capi/extension/extension.h.
#include "bindings/common.h"
#include "capi/extension/extension_parts.h"

namespace warptape::bindings {
namespace {

namespace ext = warptape::extension;

// ---- objects of the small kinds ----

int dtype_of_object(void* object, wtx_dtype* out) {
  auto* o = static_cast<PyObject*>(object);
  if (!is_dtype(o)) return -1;
  *out = ext::dtype_of(dtype_of(o));
  return 0;
}

int device_of_object(void* object, wtx_device* out) {
  auto* o = static_cast<PyObject*>(object);
  if (!is_device(o) && !PyUnicode_Check(o)) return -1;
  try {
    *out = ext::device_of(device_of(o));
    return 0;
  } catch (const std::exception&) {
    return -1;
  }
}

void raise(wtx_error kind, const char* text) {
  if (kind == WTX_ERROR_PYTHON && PyErr_Occurred()) return;
  try {
    ext::table().set_error(kind == WTX_ERROR_PYTHON ? WTX_ERROR_RUNTIME : kind, text);
    ext::throw_error();
  } catch (...) {
    set_python_error();
  }
}

constexpr wtx_python python = {
    .is_tensor = [](void* o) { return int{is_tensor(static_cast<PyObject*>(o))}; },
    .tensor_of = [](void* o) { return ext::handle(tensor_of(static_cast<PyObject*>(o))); },
    .wrap_tensor = [](const wtx_tensor* t) -> void* {
      return guarded([&] { return wrap(ext::tensor_of(t)); });
    },
    .dtype_of = dtype_of_object,
    .wrap_dtype = [](wtx_dtype t) -> void* {
      return guarded([&] { return wrap(ext::dtype_of(int64_t{t})); });
    },
    .device_of = device_of_object,
    .wrap_device = [](wtx_device d) -> void* { return guarded([&] { return wrap(ext::device_of(d)); }); },
    .raise = raise};

// ---- arguments and results of kernels ----

// Owns what the values of one call point to.
struct CallValues {
  std::deque<Object> items;  // tensors are borrowed from them
  std::deque<std::vector<wtx_tensor*>> tensors;
  std::deque<std::vector<int64_t>> ints;
  std::deque<std::vector<double>> doubles;
};

template <class T>
void set_list(wtx_value& v, wtx_kind kind, const std::vector<T>& list) {
  v.kind = kind;
  v.list.data = list.data();
  v.list.size = list.size();
}

// A list of tensors (with None among them), of ints (bools are some), or of numbers.
void to_list(PyObject* o, wtx_value& v, CallValues& owned) {
  PyObject* items = owned.items.emplace_back(frozen(o)).get();
  const std::span all(PySequence_Fast_ITEMS(items), static_cast<size_t>(PyTuple_GET_SIZE(items)));
  if (std::ranges::any_of(all, is_tensor)) {
    auto& list = owned.tensors.emplace_back();
    for (PyObject* item : all) {
      WT_CHECK(item == Py_None || is_tensor(item), TypeError, "expected a list of tensors, with a ",
               Py_TYPE(item)->tp_name, " among them");
      list.push_back(item == Py_None ? nullptr : ext::handle(tensor_of(item)));
    }
    return set_list(v, WTX_KIND_TENSORS, list);
  }
  auto& list = owned.ints.emplace_back();
  auto& numbers = owned.doubles.emplace_back();
  for (PyObject* item : all) {
    Scalar s;
    WT_CHECK(to_scalar(item, s) && !s.is_complex(), TypeError,
             "expected a list of numbers or tensors, with a ", Py_TYPE(item)->tp_name, " among them");
    numbers.push_back(s.to_double());
    if (!s.is_floating() && !s.exceeds_int64()) list.push_back(s.to_int());
  }
  if (list.size() == all.size()) return set_list(v, WTX_KIND_INTS, list);
  set_list(v, WTX_KIND_DOUBLES, numbers);
}

void to_number(PyObject* o, wtx_value& v) {
  Scalar s;
  WT_CHECK(to_scalar(o, s), TypeError, "an op of an extension takes no ", Py_TYPE(o)->tp_name);
  if (s.is_complex()) {
    v.kind = WTX_KIND_COMPLEX;
    v.d[0] = s.to_complex().re, v.d[1] = s.to_complex().im;
  } else if (s.is_floating() || s.exceeds_int64()) {
    v.kind = WTX_KIND_DOUBLE, v.d[0] = s.to_double();
  } else {
    v.kind = s.is_bool() ? WTX_KIND_BOOL : WTX_KIND_INT, v.i = s.to_int();
  }
}

wtx_value to_value(PyObject* o, CallValues& owned) {
  wtx_value v{};
  if (o == Py_None) return v;
  if (is_tensor(o)) {
    v.kind = WTX_KIND_TENSOR, v.tensor = ext::handle(tensor_of(o));
  } else if (PyUnicode_Check(o)) {
    const std::string_view text = utf8(o);
    v.kind = WTX_KIND_STRING, v.list.data = text.data(), v.list.size = text.size();
  } else if (PyTuple_Check(o) || PyList_Check(o)) {
    to_list(o, v, owned);
  } else if (is_dtype(o)) {
    v.kind = WTX_KIND_DTYPE, v.i = static_cast<int64_t>(dtype_of(o));
  } else if (is_device(o)) {
    v.kind = WTX_KIND_DEVICE, v.device = ext::device_of(device_of(o));
  } else {
    to_number(o, v);
  }
  return v;
}

template <class T, class F>
PyObject* wrap_items(const wtx_value& v, F&& wrap_item) {
  Object list = checked(PyList_New(static_cast<Py_ssize_t>(v.list.size)));
  for (size_t i = 0; i < v.list.size; ++i)
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i),
                    checked(wrap_item(static_cast<const T*>(v.list.data)[i])).release());
  return list.release();
}

PyObject* wrap_value(const wtx_value& v) {
  switch (v.kind) {
    case WTX_KIND_TENSOR:
      return wrap(ext::tensor_of(v.tensor));
    case WTX_KIND_TENSORS:
      return wrap_items<wtx_tensor*>(v, [](wtx_tensor* t) { return wrap(ext::tensor_of(t)); });
    case WTX_KIND_BOOL:
      return PyBool_FromLong(v.i != 0);
    case WTX_KIND_INT:
      return PyLong_FromLongLong(v.i);
    case WTX_KIND_DOUBLE:
      return PyFloat_FromDouble(v.d[0]);
    case WTX_KIND_COMPLEX:
      return PyComplex_FromDoubles(v.d[0], v.d[1]);
    case WTX_KIND_INTS:
      return wrap_items<int64_t>(v, PyLong_FromLongLong);
    case WTX_KIND_DOUBLES:
      return wrap_items<double>(v, PyFloat_FromDouble);
    case WTX_KIND_DTYPE:
      return wrap(ext::dtype_of(v.i));
    case WTX_KIND_DEVICE:
      return wrap(ext::device_of(v.device));
    case WTX_KIND_STRING:
      return PyUnicode_FromStringAndSize(static_cast<const char*>(v.list.data),
                                         static_cast<Py_ssize_t>(v.list.size));
    default:
      return Py_NewRef(Py_None);
  }
}

// ---- functions ----

constexpr const char* kKernel = "warptape.extension_kernel";

// _extension_call(kernel, args): None, the one result, or a tuple of the results.
PyObject* call_py(PyObject*, PyObject* args) {
  PyObject *capsule, *given;
  if (!PyArg_ParseTuple(args, "OO!", &capsule, &PyTuple_Type, &given)) return nullptr;
  return guarded([&] {
    auto* op = static_cast<ext::Implementation*>(PyCapsule_GetPointer(capsule, kKernel));
    if (!op) throw PythonErrorSet();
    CallValues owned;
    std::vector<wtx_value> values;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i)
      values.push_back(to_value(PyTuple_GET_ITEM(given, i), owned));
    const auto results = [&] {
      GilRelease release;
      return ext::run_kernel(*op, values);
    }();
    if (results.empty()) return Py_NewRef(Py_None);
    if (results.size() == 1) return wrap_value(results[0].value());
    Object tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(results.size())));
    for (size_t i = 0; i < results.size(); ++i)
      PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i),
                       checked(wrap_value(results[i].value())).release());
    return tuple.release();
  });
}

// _extension_take(): ([(namespace, schema)], [(name, key, kernel)]) of what extensions registered since the
// last call.
PyObject* take_py(PyObject*, PyObject*) {
  return guarded([&] {
    ext::Registered found = ext::take_registered();
    Object definitions = checked(PyList_New(0)), implementations = checked(PyList_New(0));
    for (const auto& d : found.definitions) {
      Object item = checked(Py_BuildValue("(ss)", d.space.c_str(), d.schema.c_str()));
      checked(PyList_Append(definitions.get(), item.get()));
    }
    for (const auto& i : found.implementations) {
      // Kept forever, as the extension's code is.
      Object kernel = checked(PyCapsule_New(new ext::Implementation(i), kKernel, nullptr));
      Object item = checked(Py_BuildValue("(ssO)", i.name.c_str(), i.key.c_str(), kernel.get()));
      checked(PyList_Append(implementations.get(), item.get()));
    }
    return Py_BuildValue("(OO)", definitions.get(), implementations.get());
  });
}

// _extension_refused(): what is to be said of the extensions that were refused.
PyObject* refused_py(PyObject*, PyObject*) {
  return guarded([&] {
    Object list = checked(PyList_New(0));
    for (const std::string& text : ext::refused())
      checked(PyList_Append(list.get(), checked(PyUnicode_FromString(text.c_str())).get()));
    return list.release();
  });
}

// _increment_version(tensor): it was changed in place by what the runtime does not see.
PyObject* increment_version_py(PyObject*, PyObject* o) {
  return guarded([&] {
    tensor_arg(o, "increment_version").bump_version();
    return Py_NewRef(Py_None);
  });
}

PyMethodDef extension_methods[] = {{"_extension_call", call_py, METH_VARARGS, nullptr},
                                   {"_extension_take", take_py, METH_NOARGS, nullptr},
                                   {"_extension_refused", refused_py, METH_NOARGS, nullptr},
                                   {"_increment_version", increment_version_py, METH_O, nullptr},
                                   {}};

}  // namespace

const wtx_python* extension_functions() { return &python; }

void init_extensions(PyObject* module) { checked(PyModule_AddFunctions(module, extension_methods)); }

}  // namespace warptape::bindings
