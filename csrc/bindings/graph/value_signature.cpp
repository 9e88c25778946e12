#include "bindings/graph/value_signature.h"

#include <cstring>

#include "bindings/ops/override.h"

namespace warptape::bindings {
namespace {

bool is_plain_value(PyObject* o) {
  return o == Py_None || o == Py_Ellipsis || PyBool_Check(o) || PyLong_CheckExact(o) ||
         PyFloat_CheckExact(o) || PyComplex_CheckExact(o) || PyUnicode_CheckExact(o) ||
         PyBytes_CheckExact(o) || PyRange_Check(o) || is_dtype(o) || is_device(o) || layout_name(o) ||
         memory_format_name(o);
}

// Of one type. Numbers by their bits: -0.0 is another one than 0.0, and nan is itself.
bool plain_equal(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (PyFloat_CheckExact(a)) {
    const double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (PyComplex_CheckExact(a)) {
    const Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  checked(equal);
  return equal == 1;
}

bool refers_to(PyObject* weak, const void* o) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* found = nullptr;
  checked(PyWeakref_GetRef(weak, &found));
  const Object held(found);
  return found == o;
#else
  return PyWeakref_GetObject(weak) == o;
#endif
}

bool equal(const Item& a, const Item& b) {
  if (a.kind != b.kind || a.type.get() != b.type.get() || a.size != b.size) return false;
  switch (a.kind) {
    case Item::Kind::Container:
      return true;
    case Item::Kind::Plain:
      return plain_equal(a.value.get(), b.value.get());
    case Item::Kind::Object:  // one that is gone may have left its address to another
      return a.identity == b.identity && (!a.value || refers_to(a.value.get(), a.identity)) &&
             (!b.value || refers_to(b.value.get(), b.identity));
    case Item::Kind::Tensor:
      break;
  }
  return a.same_as == b.same_as && a.shares_with == b.shares_with && a.view.dtype == b.view.dtype &&
         a.view.sizes == b.view.sizes && a.view.strides == b.view.strides && a.device == b.device &&
         a.requires_grad == b.requires_grad && a.has_history == b.has_history && a.is_view == b.is_view &&
         a.inference == b.inference && a.own_version == b.own_version &&
         (a.shares_with < 0 || a.view.offset == b.view.offset);
}

}  // namespace

PyObject* Described::by_identity = nullptr;

bool Described::operator==(const Described& o) const {
  return items.size() == o.items.size() && std::equal(items.begin(), items.end(), o.items.begin(), equal);
}

bool Described::add(PyObject* o) {
  if (is_tensor(o)) {
    if (is_opaque(tensor_of(o))) return why_ = "a tensor without memory of its own", false;
    if (overridden(nullptr, &o, 1)) return why_ = "a tensor whose class overrides functions", false;
    if (PyObject** own = _PyObject_GetDictPtr(o); own && *own && PyDict_GET_SIZE(*own))
      return why_ = "a tensor with attributes of its own", false;
    add_tensor(o);
    return true;
  }
  if (is_plain_value(o)) {
    Item& item = items.emplace_back();
    item.type = Object::share(reinterpret_cast<PyObject*>(Py_TYPE(o)));
    item.value = Object::share(o);
    return true;
  }
  if (PyTuple_Check(o) || PyList_CheckExact(o) || PyDict_CheckExact(o) || PyMethod_Check(o))
    return add_container(o);
  return add_object(o);
}

bool Described::add_container(PyObject* o) {
  const size_t at = items.size();
  items.emplace_back().kind = Item::Kind::Container;
  items[at].type = Object::share(reinterpret_cast<PyObject*>(Py_TYPE(o)));
  if (PyList_CheckExact(o) || PyDict_CheckExact(o)) items[at].identity = o;
  size_t size = 0;
  bool known = true;
  if (PyDict_CheckExact(o)) {
    PyObject *key, *value;
    for (Py_ssize_t i = 0; known && PyDict_Next(o, &i, &key, &value); size += 2)
      known = is_plain_value(key) ? add(key) && add(value)
                                  : (why_ = "a dict with other keys than strings", false);
  } else if (PyMethod_Check(o)) {
    known = add(PyMethod_GET_SELF(o)) && add(PyMethod_GET_FUNCTION(o));
    size = 2;
  } else {
    const bool list = PyList_CheckExact(o);
    size = static_cast<size_t>(list ? PyList_GET_SIZE(o) : PyTuple_GET_SIZE(o));
    for (size_t i = 0; known && i < size; ++i)
      known = add(list ? PyList_GET_ITEM(o, i) : PyTuple_GET_ITEM(o, i));
  }
  items[at].size = size;
  return known;
}

void Described::add_tensor(PyObject* o) {
  const Tensor& t = tensor_of(o);
  Item& item = items.emplace_back();
  item.kind = Item::Kind::Tensor;
  item.type = Object::share(reinterpret_cast<PyObject*>(Py_TYPE(o)));
  item.view = {0, t.dtype(), t.sizes(), t.strides(), t.offset()};
  item.device = t.device();
  item.requires_grad = requires_grad(t);
  item.has_history = t->extra && meta_of(t)->node;
  item.is_view = is_view(t);
  item.inference = t->inference;
  item.own_version = static_cast<bool>(t->own_version);
  for (size_t i = 0; i < tensors.size() && item.shares_with < 0; ++i) {
    if (tensors[i].same(t)) item.same_as = static_cast<int32_t>(i);
    if (&tensors[i].storage() != &t.storage()) continue;
    item.shares_with = static_cast<int32_t>(i);
    item.view.offset = t.offset() * static_cast<int64_t>(t.itemsize()) -
                       tensors[i].offset() * static_cast<int64_t>(tensors[i].itemsize());
  }
  tensors.push_back(t);
  objects.push_back(o);
}

bool Described::add_object(PyObject* o) {
  int known = PyFunction_Check(o) || PyCFunction_Check(o) || PyModule_Check(o) || PyType_Check(o);
  if (!known && by_identity) known = PyObject_IsInstance(o, by_identity);
  checked(known);
  Item& item = items.emplace_back();
  item.kind = Item::Kind::Object;
  item.type = Object::share(reinterpret_cast<PyObject*>(Py_TYPE(o)));
  item.identity = o;
  if (known) {
    item.value = Object(PyWeakref_NewRef(o, nullptr));
    if (item.value) return true;
    PyErr_Clear();
  }
  why_ = std::string("an object of the type ") + Py_TYPE(o)->tp_name;
  return false;
}

Object Described::build(std::span<const Tensor> tensors) const {
  size_t at = 0, tensor = 0;
  return build(at, tensor, tensors);
}

Object Described::build(size_t& at, size_t& tensor, std::span<const Tensor> tensors) const {
  const Item& item = items[at++];
  if (item.kind == Item::Kind::Tensor) return checked(wrap(tensors[tensor++]));
  if (item.kind == Item::Kind::Plain) return item.value;
  if (item.type.get() == reinterpret_cast<PyObject*>(&PyDict_Type)) {
    Object out = checked(PyDict_New());
    for (size_t i = 0; i < item.size; i += 2) {
      const Object key = build(at, tensor, tensors), value = build(at, tensor, tensors);
      checked(PyDict_SetItem(out.get(), key.get(), value.get()));
    }
    return out;
  }
  const bool list = item.type.get() == reinterpret_cast<PyObject*>(&PyList_Type);
  const auto size = static_cast<Py_ssize_t>(item.size);
  Object out = checked(list ? PyList_New(size) : PyTuple_New(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* part = build(at, tensor, tensors).release();
    list ? PyList_SET_ITEM(out.get(), i, part) : PyTuple_SET_ITEM(out.get(), i, part);
  }
  if (list || item.type.get() == reinterpret_cast<PyObject*>(&PyTuple_Type)) return out;
  // A named tuple is made by its fields, other kinds of one sequence.
  if (const Object make = Object(PyObject_GetAttrString(item.type.get(), "_make")))
    return checked(PyObject_CallOneArg(make.get(), out.get()));
  PyErr_Clear();
  return checked(PyObject_CallOneArg(item.type.get(), out.get()));
}

}  // namespace warptape::bindings
