// dtype, device, Size and Generator as Python objects.
#include <cstring>

#include "bindings/common.h"

namespace warptape::bindings {
namespace {

struct DTypeObject {
  PyObject_HEAD DType value;
};
struct DeviceObject {
  PyObject_HEAD Device value;
  int8_t number;  // as given, which the CPU and meta have for show only; -1: none
  // PyTorch's name of a kind that is not served here: libraries compare with such. Null for all others.
  const char* foreign;
};
struct GeneratorObject {
  PyObject_HEAD Ref<Generator> value;
};

PyTypeObject *dtype_type, *device_type, *size_type, *generator_type;
PyObject* dtypes[kNumDTypes];

DType dtype_value(PyObject* o) { return reinterpret_cast<DTypeObject*>(o)->value; }
Device& device_value(PyObject* o) { return reinterpret_cast<DeviceObject*>(o)->value; }
int8_t& device_number(PyObject* o) { return reinterpret_cast<DeviceObject*>(o)->number; }
const char*& device_foreign(PyObject* o) { return reinterpret_cast<DeviceObject*>(o)->foreign; }
const char* kind_of(PyObject* o) {
  return device_foreign(o) ? device_foreign(o) : name(device_value(o).type);
}
// The device as text, with the number that it was given.
std::string device_text(PyObject* o) {
  std::string out = kind_of(o);
  if (device_number(o) >= 0) out += ":" + std::to_string(device_number(o));
  return out;
}

// The kind in "mps:0", null where the text names none of PyTorch's that are missing here.
const char* foreign_kind(std::string_view text) {
  static constexpr const char* kinds[] = {"ipu", "xpu", "mkldnn", "opengl", "opencl",       "ideep",
                                          "hip", "ve",  "fpga",   "maia",   "xla",          "lazy",
                                          "mps", "hpu", "vulkan", "mtia",   "privateuseone"};
  for (const char* kind : kinds)
    if (text.substr(0, text.find(':')) == kind) return kind;
  return nullptr;
}

Device parsed_device(PyObject* text) { return parse_device(utf8(text)); }
Ref<Generator>& generator_value(PyObject* o) { return reinterpret_cast<GeneratorObject*>(o)->value; }

// ---- dtype ----

PyObject* dtype_repr(PyObject* self) { return PyUnicode_FromFormat("torch.%s", name(dtype_value(self))); }
PyObject* dtype_reduce(PyObject* self, PyObject*) { return PyUnicode_FromString(name(dtype_value(self))); }
PyObject* dtype_itemsize(PyObject* self, void*) { return PyLong_FromSize_t(itemsize(dtype_value(self))); }
PyObject* dtype_floating(PyObject* self, void*) { return PyBool_FromLong(is_floating(dtype_value(self))); }
PyObject* dtype_complex(PyObject* self, void*) { return PyBool_FromLong(is_complex(dtype_value(self))); }
PyObject* dtype_to_real(PyObject* self, PyObject*) { return wrap(real_of(dtype_value(self))); }
PyObject* dtype_to_complex(PyObject* self, PyObject*) { return wrap(complex_of(dtype_value(self))); }
PyObject* dtype_signed(PyObject* self, void*) { return PyBool_FromLong(has_sign(dtype_value(self))); }
PyObject* dtype_name(PyObject* self, void*) { return PyUnicode_FromString(name(dtype_value(self))); }
PyGetSetDef dtype_getset[] = {
    {"itemsize", dtype_itemsize, nullptr, "Bytes of one element.", nullptr},
    {"is_floating_point", dtype_floating, nullptr, "Whether values are floating-point numbers.", nullptr},
    {"is_complex", dtype_complex, nullptr, "Whether values are complex numbers.", nullptr},
    {"is_signed", dtype_signed, nullptr, "Whether values can be negative.", nullptr},
    {"__name__", dtype_name, nullptr, nullptr, nullptr},
    {}};
PyMethodDef dtype_methods[] = {
    {"__reduce__", dtype_reduce, METH_NOARGS, nullptr},
    {"to_real", dtype_to_real, METH_NOARGS, "The dtype of a complex number's parts."},
    {"to_complex", dtype_to_complex, METH_NOARGS, "The complex dtype with such parts."},
    {}};
PyType_Slot dtype_slots[] = {
    {Py_tp_repr, reinterpret_cast<void*>(dtype_repr)},
    {Py_tp_getset, dtype_getset},
    {Py_tp_methods, dtype_methods},
    {Py_tp_doc, const_cast<char*>("The type of a tensor's elements.\n"
                                  "\n>>> torch.tensor([1, 2]).dtype\ntorch.int64\n>>> "
                                  "torch.float16.itemsize, torch.bool.is_floating_point\n(2, False)")},
    {}};
PyType_Spec dtype_spec = {"warptape.dtype", sizeof(DTypeObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, dtype_slots};

// ---- device ----

PyObject* device_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject* what;
  PyObject* index = nullptr;
  const char* names[] = {"type", "index", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:device", const_cast<char**>(names), &what, &index))
    return nullptr;
  return guarded([&] {
    const char* foreign = is_device(what) ? device_foreign(what) : nullptr;
    Device d;
    if (PyUnicode_Check(what)) {
      std::string text(utf8(what));
      foreign = foreign_kind(text);
      // The number is written as CUDA's are.
      d = parse_device(foreign ? text.replace(0, std::strlen(foreign), "cuda") : text);
    } else if (!foreign) {
      d = device_of(what);
    }
    int8_t number = is_device(what) ? device_number(what) : d.index;
    if (foreign) d = {};
    if (index && index != Py_None) {
      WT_CHECK(number < 0, DeviceError,
               "device: type (string) must not include an index because index was passed explicitly: ", d);
      long i = PyLong_AsLong(index);
      if (i == -1 && PyErr_Occurred()) throw PythonErrorSet();
      WT_CHECK(i >= 0 && i <= 127, DeviceError, "device: expected an index from 0 to 127, got ", i);
      number = static_cast<int8_t>(i);
    }
    d.index = d.is_accelerator() ? number : int8_t{0};
    Object self = checked(type->tp_alloc(type, 0));
    device_value(self.get()) = d;
    device_number(self.get()) = number;
    device_foreign(self.get()) = foreign;
    return self.release();
  });
}
PyObject* device_str(PyObject* self) { return PyUnicode_FromString(device_text(self).c_str()); }
PyObject* device_repr(PyObject* self) {
  const char* kind = kind_of(self);
  if (device_number(self) < 0) return PyUnicode_FromFormat("device(type='%s')", kind);
  return PyUnicode_FromFormat("device(type='%s', index=%d)", kind, int{device_number(self)});
}
PyObject* device_kind(PyObject* self, void*) { return PyUnicode_FromString(kind_of(self)); }
PyObject* device_index(PyObject* self, void*) {
  if (device_number(self) < 0) Py_RETURN_NONE;
  return PyLong_FromLong(device_number(self));
}
Py_hash_t device_hash(PyObject* self) {
  return static_cast<Py_hash_t>(device_value(self).type) * 131 + device_number(self) + 1;
}
PyObject* device_compare(PyObject* a, PyObject* b, int op) {
  if (!is_device(a) || !is_device(b) || (op != Py_EQ && op != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
  const bool same = std::string_view(kind_of(a)) == kind_of(b) && device_number(a) == device_number(b);
  return PyBool_FromLong(same == (op == Py_EQ));
}
PyObject* device_reduce(PyObject* self, PyObject*) {
  return Py_BuildValue("(O(s))", device_type, device_text(self).c_str());
}
// `with device:` makes it the default of the scope.
thread_local std::vector<Device> outer_defaults;
PyObject* device_enter(PyObject* self, PyObject*) {
  return guarded([&] {
    const Device d = device_of(self);
    outer_defaults.push_back(rank_context().default_device);
    rank_context().default_device = d;
    return Py_NewRef(self);
  });
}
PyObject* device_exit(PyObject*, PyObject*) {
  if (!outer_defaults.empty()) {
    rank_context().default_device = outer_defaults.back();
    outer_defaults.pop_back();
  }
  Py_RETURN_NONE;
}
PyGetSetDef device_getset[] = {
    {"type", device_kind, nullptr, "'cpu', 'cuda', 'meta', or a kind that is not served here", nullptr},
    {"index", device_index, nullptr, "Number of the device, or None.", nullptr},
    {}};
PyMethodDef device_methods[] = {{"__reduce__", device_reduce, METH_NOARGS, nullptr},
                                {"__enter__", device_enter, METH_NOARGS, nullptr},
                                {"__exit__", device_exit, METH_VARARGS, nullptr},
                                {}};
PyType_Slot device_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(device_new)},
    {Py_tp_repr, reinterpret_cast<void*>(device_repr)},
    {Py_tp_str, reinterpret_cast<void*>(device_str)},
    {Py_tp_hash, reinterpret_cast<void*>(device_hash)},
    {Py_tp_richcompare, reinterpret_cast<void*>(device_compare)},
    {Py_tp_getset, device_getset},
    {Py_tp_methods, device_methods},
    {Py_tp_doc, const_cast<char*>("device(type, index=None): where a tensor lies.\n"
                                  "\n>>> torch.device(\"cuda\", 1)\ndevice(type='cuda', index=1)\n>>> "
                                  "torch.device(\"cpu\").type\n'cpu'")},
    {}};
PyType_Spec device_spec = {"warptape.device", sizeof(DeviceObject), 0, Py_TPFLAGS_DEFAULT, device_slots};

// ---- Size ----

PyObject* size_repr(PyObject* self) {
  Object plain = Object(PySequence_List(self));
  if (!plain) return nullptr;
  return PyUnicode_FromFormat("torch.Size(%R)", plain.get());
}
// Size(iterable of ints); what has __index__ is an int. Objects of int's subclasses are kept as they are.
PyObject* size_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  Object made(PyTuple_Type.tp_new(type, args, kwargs));
  if (!made) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(made.get()); ++i) {
    Object item = Object::share(PyTuple_GET_ITEM(made.get(), i));
    if (PyLong_Check(item.get()) && !PyBool_Check(item.get())) continue;
    PyObject* number = PyIndex_Check(item.get()) ? PyNumber_Index(item.get()) : nullptr;
    if (!number) {
      return PyErr_Format(PyExc_TypeError, "torch.Size() takes an iterable of 'int' (item %zd is '%s')", i,
                          Py_TYPE(item.get())->tp_name);
    }
    PyTuple_SET_ITEM(made.get(), i, number);
    Py_DECREF(item.get());
  }
  return made.release();
}
PyObject* size_numel(PyObject* self, PyObject*) {
  return guarded([&] { return PyLong_FromLongLong(numel_of(to_shape(self, "Size"), "Size.numel")); });
}
PyObject* size_reduce(PyObject* self, PyObject*) {
  Object plain(PySequence_List(self));
  return plain ? Py_BuildValue("(O(O))", size_type, plain.get()) : nullptr;
}
// Slices, sums and multiples are Sizes as well.
PyObject* as_size(PyObject* result) {
  if (!result || !PyTuple_Check(result)) return result;
  Object plain(result);
  return PyObject_CallOneArg(reinterpret_cast<PyObject*>(size_type), result);
}
PyObject* size_subscript(PyObject* self, PyObject* key) {
  return as_size(PyTuple_Type.tp_as_mapping->mp_subscript(self, key));
}
PyObject* size_add(PyObject* a, PyObject* b) {
  if (!PyTuple_Check(a)) Py_RETURN_NOTIMPLEMENTED;
  if (!PyTuple_Check(b)) {
    return PyErr_Format(PyExc_TypeError, "can only concatenate tuple (not %s) to torch.Size",
                        Py_TYPE(b)->tp_name);
  }
  return as_size(PyTuple_Type.tp_as_sequence->sq_concat(a, b));
}
PyObject* size_multiply(PyObject* a, PyObject* b) {
  if (!PyTuple_Check(a)) std::swap(a, b);
  if (!PyIndex_Check(b)) Py_RETURN_NOTIMPLEMENTED;
  const Py_ssize_t times = PyNumber_AsSsize_t(b, PyExc_OverflowError);
  if (times == -1 && PyErr_Occurred()) return nullptr;
  return as_size(PyTuple_Type.tp_as_sequence->sq_repeat(a, times));
}
PyMethodDef size_methods[] = {
    {"numel", size_numel, METH_NOARGS, "Number of elements of a tensor of this size."},
    {"__reduce__", size_reduce, METH_NOARGS, nullptr},
    {}};
PyType_Slot size_slots[] = {{Py_tp_new, reinterpret_cast<void*>(size_new)},
                            {Py_nb_add, reinterpret_cast<void*>(size_add)},
                            {Py_nb_multiply, reinterpret_cast<void*>(size_multiply)},
                            {Py_tp_repr, reinterpret_cast<void*>(size_repr)},
                            {Py_mp_subscript, reinterpret_cast<void*>(size_subscript)},
                            {Py_tp_methods, size_methods},
                            {Py_tp_doc, const_cast<char*>("The sizes of a tensor: a tuple of ints.\n"
                                                          "\n>>> torch.Size([2, 3]).numel()\n6")},
                            {}};
PyType_Spec size_spec = {"warptape.Size", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_TUPLE_SUBCLASS, size_slots};

// ---- Generator ----

PyObject* generator_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject* device = nullptr;
  const char* names[] = {"device", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Generator", const_cast<char**>(names), &device))
    return nullptr;
  return guarded([&] {
    Device d = device ? resolved(device_of(device)) : Device{};
    Object self = checked(type->tp_alloc(type, 0));
    new (&generator_value(self.get())) Ref<Generator>(Ref<Generator>::adopt(new Generator(d)));
    return self.release();
  });
}
void generator_dealloc(PyObject* self) {
  generator_value(self).~Ref();
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}
PyObject* generator_manual_seed(PyObject* self, PyObject* seed) {
  return guarded([&] {
    Object number = checked(PyNumber_Index(seed));
    // Negative seeds count from 2^64 down, as in PyTorch.
    int overflow = 0;
    long long small = PyLong_AsLongLongAndOverflow(number.get(), &overflow);
    uint64_t value = static_cast<uint64_t>(small);
    if (overflow > 0) value = PyLong_AsUnsignedLongLong(number.get());
    if (PyErr_Occurred() || overflow < 0) {
      PyErr_Clear();
      throw ValueError("manual_seed: expected a seed from -2**63 to 2**64 - 1");
    }
    std::lock_guard lock(generator_value(self)->mutex);
    generator_value(self)->manual_seed(value);
    return Py_NewRef(self);
  });
}
PyObject* generator_seed(PyObject* self, PyObject*) {
  std::lock_guard lock(generator_value(self)->mutex);
  return PyLong_FromUnsignedLongLong(generator_value(self)->seed_from_entropy());
}
PyObject* generator_initial_seed(PyObject* self, PyObject*) {
  return PyLong_FromUnsignedLongLong(generator_value(self)->initial_seed());
}
PyObject* generator_get_state(PyObject* self, PyObject*) {
  return guarded([&] {
    std::lock_guard lock(generator_value(self)->mutex);
    auto bytes = generator_value(self)->state();
    Tensor out = empty(IntList{{static_cast<int64_t>(bytes.size())}}, {DType::UInt8, {}});
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return wrap(out);
  });
}
PyObject* generator_set_state(PyObject* self, PyObject* state) {
  return guarded([&] {
    WT_CHECK(
        is_tensor(state) && tensor_of(state).dtype() == DType::UInt8 && tensor_of(state).device().is_host(),
        TypeError, "set_state: expected a uint8 CPU tensor made by get_state()");
    Tensor t = raw_contiguous(tensor_of(state));
    std::lock_guard lock(generator_value(self)->mutex);
    generator_value(self)->set_state({t.data_as<uint8_t>(), static_cast<size_t>(t.numel())});
    return Py_NewRef(self);
  });
}
PyObject* generator_device(PyObject* self, void*) { return wrap(generator_value(self)->device()); }
Ref<Generator> copy_of(Generator& from) {
  Ref<Generator> out = Ref<Generator>::adopt(new Generator(from.device()));
  std::lock_guard lock(from.mutex);
  out->set_state(from.state());
  return out;
}
PyObject* generator_clone_state(PyObject* self, PyObject*) {
  return guarded([&] { return wrap(copy_of(*generator_value(self))); });
}
// As PyTorch's: the type, its arguments, and what __setstate__ takes: (seed, offset, state).
PyObject* generator_reduce(PyObject* self, PyObject*) {
  return guarded([&] {
    Object device = checked(generator_device(self, nullptr)),
           state = checked(generator_get_state(self, nullptr));
    return Py_BuildValue("O(O)(KOO)", Py_TYPE(self), device.get(), generator_value(self)->initial_seed(),
                         Py_None, state.get());
  });
}
PyObject* generator_setstate(PyObject* self, PyObject* args) {
  return guarded([&]() -> PyObject* {
    WT_CHECK(PyTuple_Check(args) && PyTuple_GET_SIZE(args) == 3, TypeError,
             "Generator.__setstate__: expected (seed, offset, state), as __reduce__ gives");
    checked(generator_set_state(self, PyTuple_GET_ITEM(args, 2)));
    Py_RETURN_NONE;
  });
}
PyObject* generator_graphsafe(PyObject*, PyObject*) {
  PyErr_SetString(PyExc_NotImplementedError,
                  "graphsafe_get_state and graphsafe_set_state are not supported in this Generator; use "
                  "clone_state, get_state and set_state");
  return nullptr;
}
PyGetSetDef generator_getset[] = {{"device", generator_device, nullptr, "The device it is of.", nullptr}, {}};
PyMethodDef generator_methods[] = {
    {"manual_seed", generator_manual_seed, METH_O, "Restarts the sequence from a 64-bit seed; returns self."},
    {"seed", generator_seed, METH_NOARGS, "Seeds from the system's entropy and returns the seed."},
    {"initial_seed", generator_initial_seed, METH_NOARGS, "The seed last set."},
    {"get_state", generator_get_state, METH_NOARGS, "The whole state as a uint8 tensor."},
    {"set_state", generator_set_state, METH_O,
     "Restores what get_state() returned; ValueError on other bytes."},
    {"clone_state", generator_clone_state, METH_NOARGS, "A new generator in the same state."},
    {"graphsafe_get_state", generator_graphsafe, METH_NOARGS, "Not supported: NotImplementedError."},
    {"graphsafe_set_state", generator_graphsafe, METH_O, "Not supported: NotImplementedError."},
    {"__reduce__", generator_reduce, METH_NOARGS, "For pickle and copy."},
    {"__setstate__", generator_setstate, METH_O, "Takes the state of __reduce__."},
    {}};
PyType_Slot generator_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(generator_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(generator_dealloc)},
    {Py_tp_getset, generator_getset},
    {Py_tp_methods, generator_methods},
    {Py_tp_doc, const_cast<char*>("Generator(device='cpu'): a source of random numbers.\n"
                                  "\n>>> generator = torch.Generator().manual_seed(0)\n>>> torch.rand(2, "
                                  "generator=generator).shape\ntorch.Size([2])")},
    {}};
PyType_Spec generator_spec = {"warptape.Generator", sizeof(GeneratorObject), 0, Py_TPFLAGS_DEFAULT,
                              generator_slots};

PyTypeObject* add_type(PyObject* module, PyType_Spec& spec, PyObject* base = nullptr) {
  Object type = checked(base ? PyType_FromSpecWithBases(&spec, base) : PyType_FromSpec(&spec));
  checked(PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type.get())));
  return reinterpret_cast<PyTypeObject*>(type.release());
}

}  // namespace

PyObject* wrap(DType t) { return Py_NewRef(dtypes[static_cast<int>(t)]); }

PyObject* wrap(Device d) {
  PyObject* o = device_type->tp_alloc(device_type, 0);
  if (!o) return nullptr;
  device_value(o) = d;
  device_number(o) = d.is_accelerator() ? d.index : int8_t{-1};
  return o;
}

PyObject* wrap_size(IntList sizes) {
  PyObject* out = PyTuple_Type.tp_alloc(size_type, static_cast<Py_ssize_t>(sizes.size()));
  if (!out) return nullptr;
  for (size_t i = 0; i < sizes.size(); ++i) {
    PyObject* n = PyLong_FromLongLong(sizes[i]);
    if (!n) {
      Py_DECREF(out);
      return nullptr;
    }
    PyTuple_SET_ITEM(out, static_cast<Py_ssize_t>(i), n);
  }
  return out;
}

PyObject* wrap(const Ref<Generator>& g) {
  PyObject* o = generator_type->tp_alloc(generator_type, 0);
  if (o) new (&generator_value(o)) Ref<Generator>(g);
  return o;
}

bool is_dtype(PyObject* o) { return Py_TYPE(o) == dtype_type; }
bool is_device(PyObject* o) { return Py_TYPE(o) == device_type; }
DType dtype_of(PyObject* o) { return dtype_value(o); }
std::optional<DType> as_dtype(PyObject* o) {
  if (is_dtype(o)) return dtype_of(o);
  if (o == reinterpret_cast<PyObject*>(&PyFloat_Type)) return DType::Float64;
  if (o == reinterpret_cast<PyObject*>(&PyLong_Type)) return DType::Int64;
  if (o == reinterpret_cast<PyObject*>(&PyBool_Type)) return DType::Bool;
  if (o == reinterpret_cast<PyObject*>(&PyComplex_Type)) return DType::Complex128;
  return {};
}
Device device_of(PyObject* o) {
  if (is_device(o)) {
    WT_CHECK(!device_foreign(o), DeviceError, "device: there are no ", device_foreign(o),
             " devices here: expected 'cpu', 'cuda', 'cuda:N' or 'meta'");
    return device_value(o);
  }
  if (PyUnicode_Check(o)) {
    Device d = parsed_device(o);
    if (!d.is_accelerator()) d.index = 0;
    return d;
  }
  if (PyLong_Check(o) && !PyBool_Check(o)) {
    long i = PyLong_AsLong(o);
    if (i == -1 && PyErr_Occurred()) PyErr_Clear();
    WT_CHECK(i >= 0 && i <= 127, DeviceError, "device: expected an index from 0 to 127, got ", i);
    return {DeviceType::CUDA, static_cast<int8_t>(i)};
  }
  throw TypeError(message("device: expected a device, a string or an int, got ", Py_TYPE(o)->tp_name));
}
Generator* generator_of(PyObject* o) {
  return Py_TYPE(o) == generator_type ? generator_value(o).get() : nullptr;
}

namespace {
PyObject* rank_generator(PyObject*, PyObject*) {
  return guarded([] { return wrap(rank_context().generator); });
}
PyMethodDef functions[] = {
    {"_default_generator", rank_generator, METH_NOARGS, "The CPU's default generator of the rank that asks."},
    {}};
}  // namespace

void init_dtypes_devices(PyObject* module) {
  checked(PyModule_AddFunctions(module, functions));
  dtype_type = add_type(module, dtype_spec);
  device_type = add_type(module, device_spec);
  size_type = add_type(module, size_spec, reinterpret_cast<PyObject*>(&PyTuple_Type));
  generator_type = add_type(module, generator_spec);
  for (int i = 0; i < kNumDTypes; ++i) {
    Object o = checked(dtype_type->tp_alloc(dtype_type, 0));
    reinterpret_cast<DTypeObject*>(o.get())->value = static_cast<DType>(i);
    checked(PyModule_AddObjectRef(module, name(static_cast<DType>(i)), o.get()));
    dtypes[i] = o.release();
  }
  Object generator = checked(wrap(rank_context().generator));
  checked(PyModule_AddObjectRef(module, "default_generator", generator.get()));
}

}  // namespace warptape::bindings
