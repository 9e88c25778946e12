// The Tensor type's life: TensorBase in C, warptape.Tensor and nn.Parameter as Python classes on it.
//
// See Note [Python object of a tensor]. An object that dies while C++ still holds the tensor is kept when it
// carries state (a __dict__, a subclass, weak references): the impl becomes the owner and hands it back when
// the tensor reaches Python again. An object without such state is freed and made anew.
#include "bindings/tensor/tensor_object.h"

#include <structmember.h>

#include <vector>

#include "bindings/autograd/autograd.h"
#include "bindings/ops/dispatch.h"
#include "graph/record/trace.h"

namespace warptape::bindings {

PyTypeObject* tensor_base_type;
PyTypeObject* tensor_type;
PyTypeObject* parameter_type;

namespace {

TensorObject* cast(PyObject* o) { return reinterpret_cast<TensorObject*>(o); }

// Dead objects of exactly warptape.Tensor, ready for reuse: allocation is a large part of the price of a
// small op.
constexpr size_t kFreeObjects = 128;
PyObject* free_objects[kFreeObjects];
size_t free_count = 0;

PyObject* allocate(PyTypeObject* type) {
  if (type == tensor_type && free_count > 0) {
    PyObject* o = free_objects[--free_count];
    PyObject_Init(o, type);
    PyObject_GC_Track(o);
    return o;
  }
  PyObject* o = PyType_GenericAlloc(type, 0);
  if (o) new (&cast(o)->tensor) Tensor();
  return o;
}

bool carries_state(PyObject* self) {
  TensorObject* t = cast(self);
  return t->dict || t->weakrefs || (Py_TYPE(self) != tensor_type && Py_TYPE(self) != tensor_base_type);
}

// True when the object lives on, owned by its impl.
bool hand_over(PyObject* self) {
  TensorObject* t = cast(self);
  if (!t->tensor.defined() || t->tensor.ref()->use_count() == 1 || !carries_state(self)) return false;
  TensorImpl* impl = t->tensor.impl();
  // From here the impl owns the object and the object's handle owns nothing; see wrap().
  Py_SET_REFCNT(self, 1);
  impl->owns_python = true;
  count_python_parts(1);
  impl->release();
  return true;
}

void drop_tensor(TensorObject* t) {
  if (!t->tensor.defined()) return;
  if (t->tensor->owns_python) {  // the impl is being destroyed and released us: the handle owns nothing
    new (&t->tensor) Tensor();
    return;
  }
  if (t->tensor->python == t) t->tensor->python = nullptr;
  Tensor last = std::move(t->tensor);
  t->tensor = Tensor();
}

// For an object that outlives the impl that owned it, because the garbage collector holds it.
void leave_empty(TensorObject* t) {
  new (&t->tensor) Tensor(empty(IntList{{0}}, {DType::Float32, {}}));
  t->tensor->python = t;
}

bool held_by_cpp(const TensorObject* t) {
  return t->tensor.defined() && !t->tensor->owns_python && t->tensor.ref()->use_count() > 1;
}

// The collector empties the dict of garbage without asking the object, which may live on: it gets another
// dict of the same attributes first.
void finalize(PyObject* self) {
  TensorObject* t = cast(self);
  if (!t->dict || !held_by_cpp(t)) return;
  PyObject* copy = PyDict_Copy(t->dict);
  if (!copy) return PyErr_WriteUnraisable(self);
  Py_SETREF(t->dict, copy);
}

// Of a class with __slots__; Python's own dealloc would empty them before ours can keep the object.
void clear_slots(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  if (type->tp_basicsize == tensor_base_type->tp_basicsize) return;
  PyObject *error, *value, *trace;
  PyErr_Fetch(&error, &value, &trace);
  Py_SET_REFCNT(self, 1);  // for the length of these calls
  Object module(PyImport_ImportModule("copyreg"));
  Object names(module ? PyObject_CallMethod(module.get(), "_slotnames", "O", type) : nullptr);
  for (Py_ssize_t i = 0; names && i < PyList_GET_SIZE(names.get()); ++i)
    if (PyObject_DelAttr(self, PyList_GET_ITEM(names.get(), i)) < 0) PyErr_Clear();  // never set
  Py_SET_REFCNT(self, 0);
  PyErr_Restore(error, value, trace);
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  if (type->tp_del || (type->tp_finalize && type->tp_finalize != finalize)) {
    if (PyObject_CallFinalizerFromDealloc(self) < 0) return;
  }
  if (hand_over(self)) return;
  PyObject_GC_UnTrack(self);
  clear_slots(self);
  TensorObject* t = cast(self);
  if (t->weakrefs) PyObject_ClearWeakRefs(self);
  Py_CLEAR(t->dict);
  drop_tensor(t);
  if (type == tensor_type && free_count < kFreeObjects) {
    free_objects[free_count++] = self;
  } else {
    t->tensor.~Tensor();
    type->tp_free(self);
  }
  Py_DECREF(type);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  TensorObject* t = cast(self);
  Py_VISIT(t->dict);
  if (!t->tensor.defined() || t->tensor->owns_python) return 0;
  return traverse_autograd(t->tensor, visit, arg);
}

// The object may be garbage while C++ still holds the tensor (x.grad, a graph): history, gradient, hooks and
// attributes are the tensor's then, and stay. A later collection frees the object, when nothing else holds
// the tensor.
int clear(PyObject* self) {
  TensorObject* t = cast(self);
  if (held_by_cpp(t)) return 0;
  Py_CLEAR(t->dict);
  if (t->tensor.defined() && !t->tensor->owns_python) clear_autograd(t->tensor);
  return 0;
}

// Subclasses made in Python take over our dealloc, which can keep an object alive.
PyObject* init_subclass(PyObject* cls, PyObject*, PyObject*) {
  auto* type = reinterpret_cast<PyTypeObject*>(cls);
  static bool has_tensor = false;
  if (type->tp_base == tensor_base_type && std::exchange(has_tensor, true)) {
    PyErr_SetString(PyExc_RuntimeError, "Cannot subclass TensorBase directly; derive from warptape.Tensor");
    return nullptr;
  }
  type->tp_dealloc = dealloc;
  if (!type->tp_finalize) type->tp_finalize = finalize;  // without a method __del__, which a slot would be
  Py_RETURN_NONE;
}

PyObject* new_tensor(PyTypeObject* type, PyObject*, PyObject*) {
  if (type == tensor_base_type) {
    PyErr_SetString(PyExc_RuntimeError,
                    "TensorBase cannot be instantiated; use warptape.tensor() or warptape.empty()");
    return nullptr;
  }
  return guarded([&] { return wrap_as(type, empty(IntList{{0}}, {rank_context().default_dtype, {}})); });
}

// _make_subclass(cls, data, requires_grad=False): data's storage under another class, without history.
PyObject* make_subclass(PyObject*, PyObject* args, PyObject* kwargs) {
  PyObject *cls, *data;
  int needs_grad = 0;
  const char* names[] = {"cls", "data", "require_grad", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|p:_make_subclass", const_cast<char**>(names), &cls,
                                   &data, &needs_grad))
    return nullptr;
  return guarded([&] {
    WT_CHECK(PyType_Check(cls) && PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(cls), tensor_base_type),
             TypeError, "_make_subclass: expected a subclass of Tensor");
    WT_CHECK(is_tensor(data), TypeError, "_make_subclass: expected data to be a Tensor, got ",
             Py_TYPE(data)->tp_name);
    const Tensor& from = tensor_of(data);
    Tensor t = has_dispatch(from) ? alias(from) : detach(from);
    if (needs_grad) set_requires_grad(t, true);
    note_class(t, reinterpret_cast<PyTypeObject*>(cls));
    return wrap_as(reinterpret_cast<PyTypeObject*>(cls), t);
  });
}

// _swap_tensor_impl(a, b): each object takes the other's tensor; classes and attributes stay. Both objects
// are alive, so neither tensor owns its object.
PyObject* swap_tensor_impl(PyObject*, PyObject* args) {
  PyObject *a, *b;
  if (!PyArg_ParseTuple(args, "O!O!:_swap_tensor_impl", tensor_base_type, &a, tensor_base_type, &b))
    return nullptr;
  std::swap(cast(a)->tensor, cast(b)->tensor);
  cast(a)->tensor->python = a;
  cast(b)->tensor->python = b;
  Py_RETURN_NONE;
}

// How many hold the tensor itself: its object, and what C++ keeps (a graph, a gradient).
PyObject* use_count(PyObject* self, PyObject*) {
  return PyLong_FromSize_t(tensor_of(self).ref()->use_count());
}

// _register_types(tensor, parameter): the Python classes that wrap() makes objects of.
PyObject* register_types(PyObject*, PyObject* args) {
  PyObject *tensor, *parameter = nullptr;
  if (!PyArg_ParseTuple(args, "O!|O!", &PyType_Type, &tensor, &PyType_Type, &parameter)) return nullptr;
  tensor_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(tensor));
  if (parameter) parameter_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(parameter));
  Py_RETURN_NONE;
}

PyMethodDef tensor_methods[] = {
    {"__init_subclass__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(init_subclass)),
     METH_CLASS | METH_VARARGS | METH_KEYWORDS, nullptr},
    {"_use_count", use_count, METH_NOARGS, nullptr},
    {"_make_subclass", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(make_subclass)),
     METH_STATIC | METH_VARARGS | METH_KEYWORDS, nullptr},
    {}};
PyMemberDef members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(TensorObject, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(TensorObject, weakrefs), READONLY, nullptr},
    {}};
PyMethodDef module_methods[] = {{"_register_types", register_types, METH_VARARGS, nullptr},
                                {"_swap_tensor_impl", swap_tensor_impl, METH_VARARGS, nullptr},
                                {}};

Py_ssize_t length(PyObject* self) {
  const Tensor& t = tensor_of(self);
  if (t.ndim() == 0) {
    PyErr_SetString(PyExc_TypeError, "len() of a 0-d tensor");
    return -1;
  }
  return guarded(
      [&] {
        if (graph::Tracer* tracer = graph::Tracer::recording()) tracer->tell_sizes(t, "len()");
        return static_cast<Py_ssize_t>(t.sizes()[0]);
      },
      Py_ssize_t{-1});
}

}  // namespace

PyObject* wrap_as(PyTypeObject* type, const Tensor& t) {
  PyObject* o = allocate(type);
  if (!o) throw PythonErrorSet();
  cast(o)->tensor = t;
  t->python = o;
  return o;
}

void release_object(void* object) {
  count_python_parts(-1);
  if (!Py_IsInitialized()) return;
  GilGuard gil;
  auto* self = static_cast<PyObject*>(object);
  if (Py_REFCNT(self) > 1) leave_empty(cast(self));
  Py_DECREF(self);
}

PyObject* wrap(const Tensor& t) {
  if (!t.defined()) Py_RETURN_NONE;
  TensorImpl* impl = t.impl();
  if (!impl->python) return wrap_as(tensor_type, t);
  auto* o = static_cast<PyObject*>(impl->python);
  if (!impl->owns_python) return Py_NewRef(o);
  // Back to the usual state: the object owns the impl, and the impl's reference to the object becomes the
  // caller's.
  impl->owns_python = false;
  count_python_parts(-1);
  impl->retain();
  return o;
}

void init_tensor_type(PyObject* module) {
  static std::vector<PyGetSetDef> getset = tensor_properties();
  static PyType_Slot slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(clear)},
      {Py_tp_new, reinterpret_cast<void*>(new_tensor)},
      {Py_tp_methods, tensor_methods},
      {Py_tp_members, members},
      {Py_tp_getset, getset.data()},
      {Py_tp_richcompare, reinterpret_cast<void*>(tensor_richcompare)},
      {Py_tp_hash, reinterpret_cast<void*>(PyBaseObject_Type.tp_hash)},
      {Py_mp_length, reinterpret_cast<void*>(length)},
      {Py_mp_subscript, reinterpret_cast<void*>(tensor_getitem)},
      {Py_mp_ass_subscript, reinterpret_cast<void*>(tensor_setitem)},
      {Py_tp_doc, const_cast<char*>("Base of warptape.Tensor.")},
      {Py_nb_add, reinterpret_cast<void*>(number_methods.nb_add)},
      {Py_nb_subtract, reinterpret_cast<void*>(number_methods.nb_subtract)},
      {Py_nb_multiply, reinterpret_cast<void*>(number_methods.nb_multiply)},
      {Py_nb_true_divide, reinterpret_cast<void*>(number_methods.nb_true_divide)},
      {Py_nb_floor_divide, reinterpret_cast<void*>(number_methods.nb_floor_divide)},
      {Py_nb_remainder, reinterpret_cast<void*>(number_methods.nb_remainder)},
      {Py_nb_power, reinterpret_cast<void*>(number_methods.nb_power)},
      {Py_nb_matrix_multiply, reinterpret_cast<void*>(number_methods.nb_matrix_multiply)},
      {Py_nb_negative, reinterpret_cast<void*>(number_methods.nb_negative)},
      {Py_nb_positive, reinterpret_cast<void*>(number_methods.nb_positive)},
      {Py_nb_absolute, reinterpret_cast<void*>(number_methods.nb_absolute)},
      {Py_nb_invert, reinterpret_cast<void*>(number_methods.nb_invert)},
      {Py_nb_and, reinterpret_cast<void*>(number_methods.nb_and)},
      {Py_nb_or, reinterpret_cast<void*>(number_methods.nb_or)},
      {Py_nb_xor, reinterpret_cast<void*>(number_methods.nb_xor)},
      {Py_nb_lshift, reinterpret_cast<void*>(number_methods.nb_lshift)},
      {Py_nb_rshift, reinterpret_cast<void*>(number_methods.nb_rshift)},
      {Py_nb_bool, reinterpret_cast<void*>(number_methods.nb_bool)},
      {Py_nb_int, reinterpret_cast<void*>(number_methods.nb_int)},
      {Py_nb_float, reinterpret_cast<void*>(number_methods.nb_float)},
      {Py_nb_index, reinterpret_cast<void*>(number_methods.nb_index)},
      {Py_nb_inplace_add, reinterpret_cast<void*>(number_methods.nb_inplace_add)},
      {Py_nb_inplace_subtract, reinterpret_cast<void*>(number_methods.nb_inplace_subtract)},
      {Py_nb_inplace_multiply, reinterpret_cast<void*>(number_methods.nb_inplace_multiply)},
      {Py_nb_inplace_true_divide, reinterpret_cast<void*>(number_methods.nb_inplace_true_divide)},
      {Py_nb_inplace_floor_divide, reinterpret_cast<void*>(number_methods.nb_inplace_floor_divide)},
      {Py_nb_inplace_remainder, reinterpret_cast<void*>(number_methods.nb_inplace_remainder)},
      {Py_nb_inplace_power, reinterpret_cast<void*>(number_methods.nb_inplace_power)},
      {Py_nb_inplace_lshift, reinterpret_cast<void*>(number_methods.nb_inplace_lshift)},
      {Py_nb_inplace_rshift, reinterpret_cast<void*>(number_methods.nb_inplace_rshift)},
      {Py_nb_inplace_and, reinterpret_cast<void*>(number_methods.nb_inplace_and)},
      {Py_nb_inplace_or, reinterpret_cast<void*>(number_methods.nb_inplace_or)},
      {Py_nb_inplace_xor, reinterpret_cast<void*>(number_methods.nb_inplace_xor)},
      {}};
  static PyType_Spec spec = {"warptape._C.TensorBase", sizeof(TensorObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
  Object type = checked(PyType_FromSpec(&spec));
  tensor_base_type = reinterpret_cast<PyTypeObject*>(type.get());
  checked(PyModule_AddObjectRef(module, "TensorBase", type.get()));
  type.release();
  checked(PyModule_AddFunctions(module, module_methods));
}

}  // namespace warptape::bindings
