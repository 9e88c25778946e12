// torch.layout and torch.memory_format as Python objects: one per name, compared by identity.
#include <cstring>

#include "bindings/common.h"

namespace warptape::bindings {
namespace {

constexpr const char* kLayouts[] = {"torch.strided",    "torch.sparse_coo", "torch.sparse_csr",
                                    "torch.sparse_csc", "torch.sparse_bsr", "torch.sparse_bsc",
                                    "torch._mkldnn",    "torch.jagged"};
constexpr const char* kFormats[] = {"torch.contiguous_format", "torch.preserve_format", "torch.channels_last",
                                    "torch.channels_last_3d"};

struct NamedObject {
  PyObject_HEAD const char* text;
};
PyTypeObject *layout_type, *memory_format_type;

const char* text_of(PyObject* o) { return reinterpret_cast<NamedObject*>(o)->text; }
const char* short_name(const char* text) { return text + std::strlen("torch."); }

PyObject* named_repr(PyObject* self) { return PyUnicode_FromString(text_of(self)); }
PyObject* named_reduce(PyObject* self, PyObject*) { return PyUnicode_FromString(short_name(text_of(self))); }
PyMethodDef named_methods[] = {{"__reduce__", named_reduce, METH_NOARGS, nullptr}, {}};

PyTypeObject* add_names(PyObject* module, const char* type_name, const char* doc,
                        std::span<const char* const> names) {
  PyType_Slot slots[] = {{Py_tp_repr, reinterpret_cast<void*>(named_repr)},
                         {Py_tp_methods, named_methods},
                         {Py_tp_doc, const_cast<char*>(doc)},
                         {}};
  PyType_Spec spec = {type_name, sizeof(NamedObject), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  auto* type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&spec)).release());
  checked(PyModule_AddObjectRef(module, type->tp_name + std::strlen("warptape."),
                                reinterpret_cast<PyObject*>(type)));
  for (const char* text : names) {
    Object o = checked(type->tp_alloc(type, 0));
    reinterpret_cast<NamedObject*>(o.get())->text = text;
    checked(PyModule_AddObjectRef(module, short_name(text), o.get()));
  }
  return type;
}

}  // namespace

const char* layout_name(PyObject* o) { return Py_TYPE(o) == layout_type ? text_of(o) : nullptr; }
const char* memory_format_name(PyObject* o) {
  return Py_TYPE(o) == memory_format_type ? text_of(o) : nullptr;
}

void init_layouts(PyObject* module) {
  layout_type = add_names(module, "warptape.layout", "How a tensor's elements are stored.", kLayouts);
  memory_format_type =
      add_names(module, "warptape.memory_format", "In which order a tensor's dims lie in memory.", kFormats);
}

}  // namespace warptape::bindings
