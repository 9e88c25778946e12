// Data in and out: nested sequences, NumPy, DLPack, lists.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstring>

#include "bindings/common.h"
#include "bindings/tensor/numpy.h"
#include "graph/record/recording.h"
#include "graph/record/rematerialize.h"
#include "graph/record/trace.h"
#include "kernels/dispatch.h"
#include "kernels/runtime/interrupt.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace py = pybind11;

namespace warptape::bindings {
namespace {

// ---- nested sequences ----------------------------------------------------------------------------------

struct Nested {
  Shape sizes;
  PromotionState kind;
  std::vector<Scalar> values;
  bool in_tensor = false;  // what is collected has a tensor's dtype, which `kind` knows
  bool too_wide = false;   // an int of more than 64 bits
  bool words = false;      // wanted are uint64, whose bits are kept as an int64's
  bool infers = false;     // no dtype is given
};

bool is_sequence(PyObject* o) {
  return PyList_Check(o) || PyTuple_Check(o) ||
         (PySequence_Check(o) && !PyUnicode_Check(o) && !PyBytes_Check(o));
}

void measure(PyObject* o, Nested& out) {
  Object keep = Object::share(o);
  while (is_sequence(keep.get()) && !is_tensor(keep.get())) {
    Py_ssize_t n = PySequence_Size(keep.get());
    checked(static_cast<int>(n));
    WT_CHECK(out.sizes.size() < kernels::kMaxDims, ValueError,
             "tensor: too many dimensions in nested sequence");
    out.sizes.push_back(n);
    if (n == 0) return;
    keep = checked(PySequence_GetItem(keep.get(), 0));
  }
  WT_CHECK(out.sizes.empty() || !PyUnicode_Check(keep.get()), ValueError,
           "tensor: too many dimensions 'str': texts are no numbers");
}

std::optional<DType> from_numpy_dtype(const py::dtype& d) {
  if (d.byteorder() == '>') return std::nullopt;
  switch (d.kind()) {
    case 'b':
      return DType::Bool;
    case 'u':
      return d.itemsize() == 1   ? DType::UInt8
             : d.itemsize() == 2 ? DType::UInt16
             : d.itemsize() == 4 ? DType::UInt32
                                 : DType::UInt64;
    case 'i':
      switch (d.itemsize()) {
        case 1:
          return DType::Int8;
        case 2:
          return DType::Int16;
        case 4:
          return DType::Int32;
        default:
          return DType::Int64;
      }
    case 'f':
      switch (d.itemsize()) {
        case 2:
          return DType::Float16;
        case 4:
          return DType::Float32;
        case 8:
          return DType::Float64;
        default:
          return std::nullopt;
      }
    case 'c':
      return d.itemsize() == 8    ? std::optional(DType::Complex64)
             : d.itemsize() == 16 ? std::optional(DType::Complex128)
                                  : std::nullopt;
    default:
      return std::nullopt;
  }
}

// A tensor of one element counts as a number.
Scalar only_element(const Tensor& t) {
  if (t.numel() == 1) return item_unlocked(t);
  constexpr const char* why = "tensor: only one element tensors can be converted to Python scalars, got ";
  if (category(t.dtype()) <= DTypeCategory::Integral) throw TypeError(message(why, t, "; see stack()"));
  throw ValueError(message(why, t, "; see stack()"));
}

// NumPy's numbers have a dtype of their own, though some are Python numbers as well.
std::optional<DType> numpy_scalar_dtype(PyObject* o) {
  if (PyFloat_CheckExact(o) || PyLong_CheckExact(o) || PyBool_Check(o) || is_tensor(o)) return std::nullopt;
  Object d(PyObject_GetAttrString(o, "dtype"));
  if (!d) PyErr_Clear();
  if (!d || !py::isinstance<py::dtype>(d.get())) return std::nullopt;
  return from_numpy_dtype(py::reinterpret_borrow<py::dtype>(d.get()));
}

void collect_scalar(PyObject* o, Nested& out) {
  Scalar s;
  if (is_tensor(o)) {
    out.kind.add_dimensioned(tensor_of(o).dtype());
    return out.values.push_back(only_element(tensor_of(o)));
  }
  if (out.words && PyLong_CheckExact(o)) {
    const unsigned long long bits = PyLong_AsUnsignedLongLong(o);
    if (PyErr_Occurred()) throw PythonErrorSet();
    out.kind.add_dimensioned(DType::Int64);
    return out.values.push_back(Scalar(static_cast<int64_t>(bits)));
  }
  int overflow = 0;
  if (PyLong_Check(o) && (PyLong_AsLongLongAndOverflow(o, &overflow), overflow)) {
    const double d = PyLong_AsDouble(o);
    if (d == -1 && PyErr_Occurred()) throw PythonErrorSet();
    s = d, out.too_wide = true;
  } else if (!to_scalar(o, s)) {
    const char* type = Py_TYPE(o)->tp_name;
    WT_CHECK(!out.infers || PyUnicode_Check(o), DtypeError, "tensor: Could not infer dtype of ", type,
             "; expected numbers or nested sequences of them");
    throw TypeError(message("tensor: must be real number, not ", type));
  }
  if (!out.in_tensor) out.kind.add_dimensioned(numpy_scalar_dtype(o).value_or(s.dtype()));
  out.values.push_back(s);
}

void collect(PyObject* o, size_t depth, Nested& out) {
  if (is_tensor(o) && depth < out.sizes.size()) {
    Object list = checked(tensor_tolist(tensor_of(o)));
    out.kind.add_dimensioned(tensor_of(o).dtype());
    out.in_tensor = true;
    collect(list.get(), depth, out);
    out.in_tensor = false;
    return;
  }
  if (depth == out.sizes.size()) {
    WT_CHECK(!is_sequence(o) || is_tensor(o), ValueError, "tensor: expected a number at dim ", depth,
             ", got a sequence");
    return collect_scalar(o, out);
  }
  WT_CHECK(is_sequence(o), TypeError, "tensor: expected a sequence of length ", out.sizes[depth], " at dim ",
           depth, ", got ", Py_TYPE(o)->tp_name);
  Object items = checked(PySequence_Tuple(o));  // of its own: __float__ of an item may change the list
  Py_ssize_t n = PyTuple_GET_SIZE(items.get());
  WT_CHECK(n == out.sizes[depth], ValueError, "tensor: expected sequence of length ", out.sizes[depth],
           " at dim ", depth, " (got ", n, ")");
  for (Py_ssize_t i = 0; i < n; ++i) collect(PyTuple_GET_ITEM(items.get(), i), depth + 1, out);
}

Tensor from_nested(PyObject* o, std::optional<DType> dtype) {
  Nested n;
  measure(o, n);
  n.words = dtype == DType::UInt64;
  n.infers = !dtype;
  bool empty_data = numel_of(n.sizes, "tensor") == 0;
  if (!empty_data) collect(o, 0, n);
  DType inferred = empty_data ? rank_context().default_dtype : n.kind.result();
  const DTypeCategory kind = std::max(category(inferred), dtype ? category(*dtype) : DTypeCategory::Bool);
  WT_CHECK(!n.too_wide || (dtype && is_differentiable(*dtype)), ValueError,
           "tensor: an int must fit into 64 bits, got a larger one");
  WT_CHECK(category(inferred) < DTypeCategory::Complex || !dtype || is_complex(*dtype), TypeError,
           "tensor: must be real number, not complex, for dtype ", *dtype);
  Tensor wide = empty(n.sizes, {kind == DTypeCategory::Complex    ? DType::Complex128
                                : kind == DTypeCategory::Floating ? DType::Float64
                                                                  : DType::Int64,
                                {}});
  const bool checked = dtype && !is_differentiable(*dtype);  // floats may become infinite
  for (size_t i = 0; i < n.values.size(); ++i) {
    if (checked) check_fits(n.values[i], *dtype);
    if (kind == DTypeCategory::Complex) {
      wide.data_as<Complex<double>>()[i] = n.values[i].to_complex();
    } else if (kind == DTypeCategory::Floating) {
      wide.data_as<double>()[i] = n.values[i].to_double();
    } else {
      wide.data_as<int64_t>()[i] = n.values[i].to_int();
    }
  }
  return raw_cast(wide, dtype.value_or(inferred));
}

// ---- NumPy ---------------------------------------------------------------------------------------------

py::dtype to_numpy_dtype(DType t) {
  constexpr const char* codes[kNumDTypes] = {"?",  "u1",  "i1", "i2", "i4", "i8", "f2", "", "f4", "f8",
                                             "c8", "c16", "u2", "u4", "u8", "",   "",   "", "",   ""};
  WT_CHECK(t != DType::BFloat16 && !is_float8(t), TypeError, "numpy: Got unsupported ScalarType ",
           t == DType::BFloat16 ? "BFloat16" : name(t), "; convert with .float() first");
  return py::dtype(codes[static_cast<int>(t)]);
}

void release_array(void* array) {
  if (!Py_IsInitialized()) return;
  GilGuard gil;
  Py_DECREF(static_cast<PyObject*>(array));
}

Tensor from_numpy(const py::array& a) {
  auto dtype = from_numpy_dtype(a.dtype());
  WT_CHECK(a.dtype().byteorder() != '>', ValueError,
           "from_numpy: given numpy array has byte order different from the native byte order. Conversion "
           "between byte orders is currently not supported.");
  WT_CHECK(dtype, TypeError, "can't convert np.ndarray of type ", py::str(a.dtype()).cast<std::string>(),
           ". The only supported types are: float64, float32, float16, complex64, complex128, int64, "
           "int32, int16, int8, uint8, and bool.");
  Shape sizes, strides;
  auto item = static_cast<int64_t>(itemsize(*dtype));
  for (py::ssize_t d = 0; d < a.ndim(); ++d) {
    sizes.push_back(a.shape(d));
    WT_CHECK(
        a.strides(d) >= 0, ValueError,
        "from_numpy: At least one stride in the given numpy array is negative, and tensors with negative "
        "strides are not currently supported. (You can probably work around this by making a copy of your "
        "array with array.copy().)");
    WT_CHECK(a.strides(d) % item == 0, ValueError,
             "from_numpy: given numpy array strides not a multiple of the element byte size. Copy the array "
             "first.");
    strides.push_back(a.strides(d) / item);
  }
  int64_t extent = numel_of(sizes) ? item : 0;
  for (size_t d = 0; d < sizes.size() && extent; ++d) extent += (sizes[d] - 1) * strides[d] * item;
  auto storage = Storage::wrap(const_cast<void*>(a.data()), static_cast<size_t>(extent), {}, release_array,
                               py::object(a).release().ptr());
  storage->mark_exported();
  return Tensor(Ref<TensorImpl>::adopt(new TensorImpl(std::move(storage), *dtype, sizes, strides, 0)));
}

py::object to_numpy(const Tensor& t, PyObject* owner) {
  WT_CHECK(t.device().is_host(), TypeError, "numpy: can't convert ", t.device(),
           " device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.");
  py::dtype dtype = to_numpy_dtype(t.dtype());
  std::vector<py::ssize_t> shape(t.sizes().begin(), t.sizes().end()), strides;
  for (int64_t s : t.strides()) strides.push_back(s * static_cast<py::ssize_t>(t.itemsize()));
  graph::refuse_replay("numpy() reads a value");
  if (const graph::Tracer* tracer = graph::Tracer::recording()) tracer->refuse(t, "numpy()");
  if (t.storage().pending()) graph::rematerialize_dependents(t.storage());
  t.storage().mark_exported();
  static char none;
  py::object base = py::reinterpret_borrow<py::object>(owner);
  // An array that from_numpy took is held by all that see its memory: seen_by_numpy() counts them.
  if (void* array = t.storage().context_of(release_array))
    base = py::make_tuple(base, py::handle(static_cast<PyObject*>(array)));
  return py::array(dtype, shape, strides, t.data() ? t.data() : &none, base);
}

// ---- lists ---------------------------------------------------------------------------------------------

PyObject* element(const char* p, DType t) {
  PyObject* out = nullptr;
  const bool done = kernels::try_dispatch(kernels::ComplexTypes{}, t, [&](auto tag) {
    typename decltype(tag)::type v;
    std::memcpy(&v, p, sizeof v);
    out = PyComplex_FromDoubles(v.re, v.im);
  });
  const auto real = [&](auto tag) {
    using T = typename decltype(tag)::type;
    T v;
    std::memcpy(&v, p, sizeof v);
    if constexpr (std::is_same_v<T, kernels::Bool>) {
      out = PyBool_FromLong(v);
    } else if constexpr (std::is_same_v<T, uint64_t>) {
      out = PyLong_FromUnsignedLongLong(v);
    } else if constexpr (std::is_integral_v<T>) {
      out = PyLong_FromLongLong(v);
    } else if constexpr (std::is_floating_point_v<T>) {
      out = PyFloat_FromDouble(v);
    } else {
      out = PyFloat_FromDouble(static_cast<double>(static_cast<float>(v)));
    }
  };
  if (!done && !kernels::try_dispatch(kernels::WideUnsignedTypes{}, t, real) &&
      !kernels::try_dispatch(kernels::Float8Types{}, t, real))
    kernels::dispatch(kernels::AllTypes{}, t, real);
  return checked(out).release();
}

PyObject* nested_list(const Tensor& t, size_t dim, const char* p) {
  if (dim == t.sizes().size()) return element(p, t.dtype());
  kernels::cpu::poll_interrupt();
  int64_t n = t.sizes()[dim], step = t.strides()[dim] * static_cast<int64_t>(t.itemsize());
  Object list = checked(PyList_New(n));
  kernels::cpu::in_pieces(n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      PyList_SET_ITEM(list.get(), i, nested_list(t, dim + 1, p + i * step));
  });
  return list.release();
}

// ---- Python functions ----------------------------------------------------------------------------------

Tensor tensor_from(PyObject* data, std::optional<DType> dtype, bool copy) {
  if (is_tensor(data)) {
    const Tensor& t = tensor_of(data);
    Tensor cast = dtype ? raw_cast(t, *dtype) : t;
    return copy && cast.same(t) ? raw_clone(t) : cast;
  }
  if (py::isinstance<py::array>(data)) {
    Tensor shared = from_numpy(py::reinterpret_borrow<py::array>(data));
    if (dtype && *dtype != shared.dtype()) return raw_cast(shared, *dtype);
    return copy ? raw_clone(shared) : shared;
  }
  return from_nested(data, dtype);
}

// _tensor(data, dtype, device, requires_grad, copy)
PyObject* tensor_py(PyObject*, PyObject* args) {
  PyObject *data, *dtype, *device;
  int needs_grad, copy;
  if (!PyArg_ParseTuple(args, "OOOpp", &data, &dtype, &device, &needs_grad, &copy)) return nullptr;
  return guarded([&] {
    std::optional<DType> t;
    if (dtype != Py_None) {
      t = as_dtype(dtype);
      WT_CHECK(t, TypeError, "tensor(): argument 'dtype' must be torch.dtype, not ", Py_TYPE(dtype)->tp_name);
    }
    const bool traced = graph::Tracer::recording() != nullptr;
    Tensor out = traced && is_tensor(data)
                     ? ops::to(ops::detach(tensor_of(data)), std::nullopt, t, false, copy != 0)
                     : tensor_from(data, t, copy != 0);
    Device place = device != Py_None                         ? resolved(device_of(device))
                   : rank_context().default_device.is_host() ? out.device()
                                                             : default_device();
    if (place != out.device()) {
      Tensor moved = empty(out.sizes(), {out.dtype(), place});
      copy_unlocked(moved, out);
      out = moved;
    }
    // A constant of a graph is made once, this tensor in each run.
    if (traced && copy && !is_tensor(data)) out = ops::clone(out);
    if (needs_grad) set_requires_grad(out, true);
    return wrap(out);
  });
}

PyObject* from_numpy_py(PyObject*, PyObject* o) {
  return guarded([&] {
    WT_CHECK(py::isinstance<py::array>(o), TypeError, "from_numpy: expected np.ndarray (got ",
             Py_TYPE(o)->tp_name, ")");
    if (!py::reinterpret_borrow<py::array>(o).writeable())
      py::module_::import("warptape._missing")
          .attr("say_once")(
              "from_numpy: the given NumPy array is not writable, and there are no non-writable tensors: "
              "writing to this one is undefined. Copy the array first. This warning is given once.",
              2);
    return wrap(from_numpy(py::reinterpret_borrow<py::array>(o)));
  });
}

PyObject* to_numpy_py(PyObject*, PyObject* o) {
  return guarded([&] {
    WT_CHECK(!(thread_state().grad_mode && requires_grad(tensor_arg(o, "numpy"))), Error,
             "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.");
    return to_numpy(tensor_of(o), o).release().ptr();
  });
}

PyObject* tolist_py(PyObject*, PyObject* o) {
  return guarded([&] { return tensor_tolist(tensor_arg(o, "tolist")); });
}

PyMethodDef numpy_methods[] = {
    {"_tensor", tensor_py, METH_VARARGS, nullptr},
    {"from_numpy", from_numpy_py, METH_O,
     "from_numpy(ndarray): a tensor on the array's memory. TypeError for other dtypes.\n"
     "\n>>> import numpy as np\n>>> torch.from_numpy(np.arange(3))\ntensor([0, 1, 2])"},
    {"_numpy", to_numpy_py, METH_O, nullptr},
    {"_tolist", tolist_py, METH_O, nullptr},
    {}};

}  // namespace

bool seen_by_numpy(const Storage& s) {
  auto* array = static_cast<PyObject*>(s.context_of(release_array));
  return !array || Py_REFCNT(array) > 1 || py::detail::array_proxy(array)->base;
}

PyObject* tensor_tolist(const Tensor& t) {
  WT_CHECK(!t.device().is_meta(), DeviceError, "tolist: a meta tensor has no data");
  graph::refuse_replay("tolist() reads a value");
  if (const graph::Tracer* tracer = graph::Tracer::recording()) tracer->read(t, "tolist()");
  Tensor host = t;
  if (!t.device().is_host()) {
    host = empty(t.sizes(), {t.dtype(), {}});
    copy_unlocked(host, t);
  }
  return nested_list(host, 0, static_cast<const char*>(host.data()));
}

bool is_array(PyObject* o) {
  return PySequence_Check(o) && !PyList_Check(o) && !PyTuple_Check(o) && py::isinstance<py::array>(o);
}

Tensor tensor_from_data(PyObject* data) { return tensor_from(data, std::nullopt, false); }

void init_numpy(PyObject* module) { checked(PyModule_AddFunctions(module, numpy_methods)); }

}  // namespace warptape::bindings
