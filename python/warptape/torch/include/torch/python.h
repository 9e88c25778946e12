// Tensors, dtypes and devices as arguments and results of pybind11's functions.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "torch/types.h"

namespace warptape {
namespace [[gnu::visibility("hidden")]] extension {

inline const wtx_python& python() {
  const wtx_python* found = api().python;
  if (!found) throw c10::Error("warptape's bindings are not loaded: import warptape first");
  return *found;
}

// The exception that the runtime raises for such an error.
inline void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    python().raise(e.kind(), e.what());
  }
}

// What a module does before anything else: ImportError where it was built for another version.
inline bool begin_module() {
  const std::string built = std::to_string(PY_MAJOR_VERSION) + "." + std::to_string(PY_MINOR_VERSION);
  const std::string here = Py_GetVersion();
  if (here.compare(0, built.size(), built) != 0 || (here[built.size()] >= '0' && here[built.size()] <= '9')) {
    PyErr_Format(PyExc_ImportError,
                 "this extension was built for Python %s, and this is Python %s: build it again",
                 built.c_str(), here.c_str());
    return false;
  }
  // The bindings fill in what the table says of Python.
  PyObject* bindings = PyImport_ImportModule("warptape._C");
  if (!bindings) return false;
  Py_DECREF(bindings);
  if (!table().api) {
    PyErr_SetString(PyExc_ImportError, table().text.c_str());
    return false;
  }
  pybind11::detail::get_internals();
  static const bool translates = (pybind11::register_local_exception_translator(translate), true);
  (void)translates;
  return true;
}

}  // namespace extension
}  // namespace warptape

// PYBIND11_MODULE begins with it.
#undef PYBIND11_CHECK_PYTHON_VERSION
#define PYBIND11_CHECK_PYTHON_VERSION \
  if (!::wtx::begin_module()) return nullptr;

namespace pybind11 {
namespace detail {

template <>
struct type_caster<at::Tensor> {
  PYBIND11_TYPE_CASTER(at::Tensor, const_name("torch.Tensor"));
  bool load(handle source, bool) {
    const wtx_python& python = wtx::python();
    if (!python.is_tensor(source.ptr())) return false;
    value = at::Tensor::share(python.tensor_of(source.ptr()));
    return true;
  }
  static handle cast(const at::Tensor& t, return_value_policy, handle) {
    auto* object = static_cast<PyObject*>(wtx::python().wrap_tensor(t.unsafeGetTensorImpl()));
    if (!object) throw error_already_set();
    return object;
  }
};

template <>
struct type_caster<at::ScalarType> {
  PYBIND11_TYPE_CASTER(at::ScalarType, const_name("torch.dtype"));
  type_caster() : value(at::ScalarType::Undefined) {}
  bool load(handle source, bool) {
    wtx_dtype t;
    if (wtx::python().dtype_of(source.ptr(), &t) != 0) return false;
    value = static_cast<at::ScalarType>(t);
    return true;
  }
  static handle cast(at::ScalarType t, return_value_policy, handle) {
    return static_cast<PyObject*>(wtx::python().wrap_dtype(static_cast<wtx_dtype>(t)));
  }
};

template <>
struct type_caster<at::Device> {
  PYBIND11_TYPE_CASTER(at::Device, const_name("torch.device"));
  type_caster() : value(at::kCPU) {}
  bool load(handle source, bool) {
    wtx_device d;
    if (wtx::python().device_of(source.ptr(), &d) != 0) return false;
    value = at::Device(static_cast<at::DeviceType>(d.type),
                       static_cast<at::DeviceIndex>(d.type == WTX_CPU ? -1 : d.index));
    return true;
  }
  static handle cast(const at::Device& d, return_value_policy, handle) {
    const wtx_device device{static_cast<int8_t>(d.type()), d.is_cuda() ? d.index() : int8_t{0}};
    return static_cast<PyObject*>(wtx::python().wrap_device(device));
  }
};

template <>
struct type_caster<at::Scalar> {
  PYBIND11_TYPE_CASTER(at::Scalar, const_name("Union[bool, int, float, complex]"));
  bool load(handle source, bool) {
    if (PyBool_Check(source.ptr()))
      value = source.ptr() == Py_True;
    else if (PyLong_Check(source.ptr()))
      value = source.cast<int64_t>();
    else if (PyFloat_Check(source.ptr()))
      value = source.cast<double>();
    else if (PyComplex_Check(source.ptr()))
      value = at::complex<double>(PyComplex_RealAsDouble(source.ptr()), PyComplex_ImagAsDouble(source.ptr()));
    else
      return false;
    return true;
  }
  static handle cast(const at::Scalar& s, return_value_policy, handle) {
    if (s.isComplex())
      return PyComplex_FromDoubles(s.to<at::complex<double>>().real(), s.to<at::complex<double>>().imag());
    if (s.isFloatingPoint()) return PyFloat_FromDouble(s.toDouble());
    return s.isBoolean() ? PyBool_FromLong(s.toBool()) : PyLong_FromLongLong(s.toLong());
  }
};

// Views of lists: the caster holds the items for as long as the call.
template <class T>
struct type_caster<c10::ArrayRef<T>> {
  PYBIND11_TYPE_CASTER(c10::ArrayRef<T>, make_caster<std::vector<T>>::name);
  bool load(handle source, bool convert) {
    if (!items_.load(source, convert)) return false;
    value = cast_op<std::vector<T>&>(items_);
    return true;
  }
  static handle cast(c10::ArrayRef<T> list, return_value_policy policy, handle parent) {
    return make_caster<std::vector<T>>::cast(list.vec(), policy, parent);
  }

 private:
  make_caster<std::vector<T>> items_;
};

}  // namespace detail
}  // namespace pybind11

namespace torch {

// Errors of the runtime are Python exceptions without it.
template <class F>
F wrap_pybind_function(F f) {
  return f;
}
template <class F>
F wrap_pybind_function_no_gil(F f) {
  return f;
}

}  // namespace torch
