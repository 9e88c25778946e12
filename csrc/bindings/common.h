// What every binding file shares: owned references, error translation, and the Python objects of the small
// values.
#pragma once

#include <Python.h>
#include <cxxabi.h>

#include <string_view>

#include "core/device.h"
#include "core/dtype.h"
#include "core/errors.h"
#include "core/generator.h"
#include "op/op.h"

namespace warptape::bindings {

// An owned reference.
class Object {
 public:
  Object() = default;
  explicit Object(PyObject* owned) : p_(owned) {}
  static Object share(PyObject* borrowed) { return Object(Py_XNewRef(borrowed)); }
  Object(const Object& o) : p_(Py_XNewRef(o.p_)) {}
  Object(Object&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  Object& operator=(Object o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~Object() { Py_XDECREF(p_); }
  PyObject* get() const { return p_; }
  PyObject* release() { return std::exchange(p_, nullptr); }
  explicit operator bool() const { return p_ != nullptr; }

 private:
  PyObject* p_ = nullptr;
};

// An owned reference from a call that may have failed; throws PythonErrorSet then.
inline Object checked(PyObject* owned) {
  if (!owned) throw PythonErrorSet();
  return Object(owned);
}
inline void checked(int status) {
  if (status < 0) throw PythonErrorSet();
}

// The UTF-8 of a str, as long as it lives; UnicodeEncodeError for a lone surrogate. Nobody else asks Python
// for it, so nobody can forget that there may be none.
inline std::string_view utf8(PyObject* text) {
  Py_ssize_t n;
  const char* chars = PyUnicode_AsUTF8AndSize(text, &n);
  if (!chars) throw PythonErrorSet();
  return {chars, static_cast<size_t>(n)};
}
// The same for messages and stacks: surrogates, as file names have that are no UTF-8, are written as
// "\udc80".
inline std::string shown_text(PyObject* text) {
  Object bytes = checked(PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace"));
  return {PyBytes_AS_STRING(bytes.get()), static_cast<size_t>(PyBytes_GET_SIZE(bytes.get()))};
}

// The items of a list or tuple, which stay while converting one of them runs Python code.
inline Object frozen(PyObject* o) {
  return PyTuple_Check(o) ? Object::share(o) : checked(PySequence_Tuple(o));
}

// Sets the Python exception for the C++ exception in flight; `op` is the name that Python called, if any.
void set_python_error(const char* op = nullptr);

// Note [Threads at exit]: Python before 3.14 ends a daemon thread that asks for the GIL of an interpreter
// that has ended by pthread_exit, which unwinds the thread's frames by force. C++ ends the whole process when
// that meets a destructor or a catch (...). So whatever may ask for the GIL is called in here: such a thread
// sleeps until the process is gone.
[[noreturn]] void sleep_until_exit();
template <class F>
auto from_python(F&& f) {
  try {
    return f();
  } catch (abi::__forced_unwind&) {
    sleep_until_exit();
  }
}
template <class... A>
Object call_python(PyObject* f, A*... args) {
  return checked(from_python([&] { return PyObject_CallFunctionObjArgs(f, args..., nullptr); }));
}

// Runs f and turns what it throws into a Python exception; returns `failed` then.
template <class F, class R = PyObject*>
auto guarded(F&& f, R failed = nullptr, const char* op = nullptr) -> R {
  try {
    return f();
  } catch (abi::__forced_unwind&) {
    sleep_until_exit();
  } catch (...) {
    set_python_error(op);
    return failed;
  }
}

class GilGuard {
 public:
  GilGuard() : state_(from_python(PyGILState_Ensure)) {}
  ~GilGuard() {
    from_python([this] { PyGILState_Release(state_); });
  }
  GilGuard(const GilGuard&) = delete;
  GilGuard& operator=(const GilGuard&) = delete;

 private:
  PyGILState_STATE state_;
};

// Releases the GIL for the scope when `work` (elements to touch) is worth it.
class GilRelease {
 public:
  static constexpr int64_t kWorthIt = 1 << 14;
  explicit GilRelease(int64_t work = kWorthIt) : saved_(work >= kWorthIt ? PyEval_SaveThread() : nullptr) {}
  ~GilRelease() {
    if (saved_) from_python([this] { PyEval_RestoreThread(saved_); });
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* saved_;
};
void copy_unlocked(const Tensor& dst, const Tensor& src);  // what may wait for a device lets go of the GIL
Scalar item_unlocked(const Tensor& t);

// ---- dtype, device, Size, Generator objects (dtype_device.cpp) ----
PyObject* wrap(DType t);  // the singleton, new reference
PyObject* wrap(Device d);
PyObject* wrap_size(IntList sizes);
PyObject* wrap(const Ref<Generator>& g);
bool is_dtype(PyObject* o);
bool is_device(PyObject* o);
DType dtype_of(PyObject* o);                 // of a dtype object
std::optional<DType> as_dtype(PyObject* o);  // of one, or of Python's own types, as PyTorch takes them
Device device_of(PyObject* o);               // of a device object, a string or an int (CUDA number)
Generator* generator_of(PyObject* o);        // borrowed; null when o is none of ours
// "torch.strided", "torch.channels_last" and their kin; null for other objects.
const char* layout_name(PyObject* o);
const char* memory_format_name(PyObject* o);
void init_layouts(PyObject* module);
void init_dtypes_devices(PyObject* module);

// ---- tensors (tensor_object.cpp) ----
struct TensorObject {
  PyObject_HEAD Tensor tensor;
  PyObject* dict;
  PyObject* weakrefs;
};
extern PyTypeObject* tensor_base_type;
extern PyTypeObject* tensor_type;     // warptape.Tensor, once Python registered it
extern PyTypeObject* parameter_type;  // warptape.nn.Parameter, likewise
inline bool is_tensor(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  return t == tensor_type || t == parameter_type || PyType_IsSubtype(t, tensor_base_type);
}
inline const Tensor& tensor_of(PyObject* o) { return reinterpret_cast<TensorObject*>(o)->tensor; }
// Of an argument of `op`; TypeError when it is none.
inline const Tensor& tensor_arg(PyObject* o, const char* op) {
  WT_CHECK(is_tensor(o), TypeError, op, ": expected a Tensor, got ", Py_TYPE(o)->tp_name);
  return tensor_of(o);
}
// The tensor's Python object; None for an undefined tensor.
PyObject* wrap(const Tensor& t);
// A new object of `type` for a tensor that has none yet.
PyObject* wrap_as(PyTypeObject* type, const Tensor& t);
PyObject* wrap_list(std::span<const Tensor> tensors);
PyObject* wrap_tuple(std::span<const Tensor> tensors);
void init_tensor_type(PyObject* module);

// ---- ops (parse.cpp, op_function.cpp) ----
// The overloads that share one Python name in one place.
struct OpGroup {
  std::string name;
  PyObject* callable = nullptr;  // what Python calls
  std::vector<const OpInfo*> overloads;
  std::vector<std::vector<PyObject*>> arg_names;  // interned, per overload
  std::vector<PyTypeObject*> result_types;        // named tuple of an overload, or null
};
// Calls the first overload that fits; throws TypeError listing what is expected. `self` (may be null) comes
// before args.
PyObject* call_group(const OpGroup& group, PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                     PyObject* kwnames);
const OpGroup* find_op(const char* name);  // of warptape, else of Tensor; null when there is none
void init_ops(PyObject* module);
void init_transforms(PyObject* module);
void init_profiler(PyObject* module);
void init_graph(PyObject* module);       // graph.cpp: compiled regions
void init_trace(PyObject* module);       // trace.cpp: graphs of ops
void init_extensions(PyObject* module);  // extension.cpp: ops and functions of extensions
void init_frontend();                    // frontend.cpp
void init_inference(PyObject* module);   // inference.cpp: the engine

// Python number or 0-dim tensor to Scalar; false when o is neither. A device's tensor is waited for, unless
// `read_devices` is false: then it is none.
bool to_scalar(PyObject* o, Scalar& out, bool read_devices = true);
// A sequence of ints (or one int) to a Shape; throws TypeError naming `what`.
Shape to_shape(PyObject* o, const char* what);
PyObject* wrap(const Scalar& s);
PyObject* wrap(Result&& result, PyTypeObject* named);

// ---- parts of the Tensor type ----
PyObject* tensor_getitem(PyObject* self, PyObject* index);  // indexing.cpp
int tensor_setitem(PyObject* self, PyObject* index, PyObject* value);
void init_numpy(PyObject* module);         // numpy.cpp: tensor(), NumPy, lists
void init_bytes_dlpack(PyObject* module);  // bytes_dlpack.cpp: bytes, DLPack
void init_storages(PyObject* module);      // storage.cpp: memory of several processes
void init_autograd(PyObject* module);      // autograd.cpp
extern PyNumberMethods number_methods;     // number.cpp
PyObject* tensor_richcompare(PyObject* a, PyObject* b, int op);

}  // namespace warptape::bindings
