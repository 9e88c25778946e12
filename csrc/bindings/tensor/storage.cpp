// Storages: those that several processes share, and tensors made on one.
#include "bindings/common.h"
#include "bindings/tensor/numpy.h"
#include "graph/record/trace.h"
#include "tensor/before_write.h"
#include "tensor/factory.h"
#include "tensor/shared_memory.h"

namespace warptape::bindings {
namespace {

Tensor on_storage(Ref<Storage> storage, DType dtype, const Shape& sizes, const Shape& strides,
                  int64_t offset) {
  return Tensor(Ref<TensorImpl>::adopt(new TensorImpl(std::move(storage), dtype, sizes, strides, offset)));
}

// While a graph is recorded, which knows nothing of storages.
const Tensor& untraced(const Tensor& t, const char* what) {
  if (const graph::Tracer* tracer = graph::Tracer::recording()) tracer->refuse(t, what);
  return t;
}

Tensor all_bytes(Ref<Storage> storage) {
  const auto bytes = static_cast<int64_t>(storage->bytes());
  return on_storage(std::move(storage), DType::UInt8, {bytes}, {1}, 0);
}

PyObject* share_py(PyObject*, PyObject* o) {
  return guarded([&] { return PyLong_FromLong(share(tensor_arg(o, "share_memory_").storage())); });
}

PyObject* descriptor_py(PyObject*, PyObject* o) {
  return guarded(
      [&] { return PyLong_FromLong(shared_descriptor(tensor_arg(o, "_shared_descriptor").storage())); });
}

PyObject* is_shared_py(PyObject*, PyObject* o) {
  return guarded([&] {
    const Storage& s = tensor_arg(o, "is_shared").storage();
    return PyBool_FromLong(s.shared() || s.device().is_accelerator());
  });
}

// _mark_shared(tensor): its memory, which came by _from_memory, is that of several processes.
PyObject* mark_shared_py(PyObject*, PyObject* o) {
  return guarded([&] {
    tensor_arg(o, "_mark_shared").storage().mark_shared();
    return Py_NewRef(Py_None);
  });
}

// _map_shared(descriptor, bytes, keep): bytes of a file; takes the descriptor over.
PyObject* map_shared_py(PyObject*, PyObject* args) {
  int descriptor, keep;
  unsigned long long bytes;
  if (!PyArg_ParseTuple(args, "iKp", &descriptor, &bytes, &keep)) return nullptr;
  return guarded([&] { return wrap(all_bytes(map_shared(descriptor, bytes, keep != 0))); });
}

// _storage_bytes(tensor): all bytes of the tensor's storage.
PyObject* storage_bytes_py(PyObject*, PyObject* o) {
  return guarded([&] {
    return wrap(all_bytes(untraced(tensor_arg(o, "_storage_bytes"), "untyped_storage()").ref()->storage));
  });
}

// _on_storage(tensor, dtype, shape, strides, offset): another tensor on the tensor's storage.
PyObject* on_storage_py(PyObject*, PyObject* args) {
  PyObject *tensor, *dtype, *shape, *steps;
  long long offset;
  if (!PyArg_ParseTuple(args, "OOOOL", &tensor, &dtype, &shape, &steps, &offset)) return nullptr;
  return guarded([&] {
    const Ref<Storage>& storage = untraced(tensor_arg(tensor, "_on_storage"), "set_()").ref()->storage;
    WT_CHECK(is_dtype(dtype), TypeError, "_on_storage: expected a dtype");
    const DType t = dtype_of(dtype);
    Shape sizes = to_shape(shape, "_on_storage"), strides = to_shape(steps, "_on_storage");
    const size_t reach = bytes_reached("_on_storage", sizes, strides, t);
    const size_t start = static_cast<size_t>(offset) * itemsize(t);
    const bool inside = static_cast<size_t>(offset) <= storage->bytes() && start + reach <= storage->bytes();
    WT_CHECK(offset >= 0 && (reach == 0 || inside), ShapeError, "_on_storage: sizes ", AsShape{sizes},
             " and strides ", AsShape{strides}, " from element ", offset, " on reach beyond the ",
             storage->bytes(), " bytes of the storage");
    return wrap(on_storage(storage, t, sizes, strides, offset));
  });
}

// _set_storage(tensor, other, shape, strides, offset): the tensor itself is on other's storage from here on,
// which grows where the elements reach beyond it.
PyObject* set_storage_py(PyObject*, PyObject* args) {
  PyObject *tensor, *other, *shape, *steps;
  long long offset;
  if (!PyArg_ParseTuple(args, "OOOOL", &tensor, &other, &shape, &steps, &offset)) return nullptr;
  return guarded([&] {
    const Tensor &self = untraced(tensor_arg(tensor, "set_"), "set_()"), &from = tensor_arg(other, "set_");
    WT_CHECK(self.device() == from.device(), DeviceError, "set_: expected a source on ", self.device(),
             ", got one on ", from.device());
    WT_CHECK(offset >= 0, ShapeError, "set_: Tensor: invalid storage offset ", offset);
    Shape sizes = to_shape(shape, "set_"), strides = to_shape(steps, "set_");
    const size_t reach = bytes_reached("set_", sizes, strides, self.dtype());
    const size_t bytes = reach ? static_cast<size_t>(offset) * self.itemsize() + reach : 0;
    if (bytes > from.storage().bytes()) resize_storage("set_", from.storage(), bytes);
    before_write(from);
    self->set_storage(from.ref()->storage, self.dtype());
    self->set_geometry(sizes, strides, offset);
    self.bump_version();
    return Py_NewRef(tensor);
  });
}

// _resize_storage(tensor, bytes): the tensor is one of all bytes of its storage, and stays so.
PyObject* resize_storage_py(PyObject*, PyObject* args) {
  PyObject* tensor;
  long long bytes;
  if (!PyArg_ParseTuple(args, "OL", &tensor, &bytes)) return nullptr;
  return guarded([&] {
    const Tensor& t = untraced(tensor_arg(tensor, "resize_"), "resize_() of a storage");
    WT_CHECK(bytes >= 0, ShapeError, "resize_: expected a size of at least 0, got ", bytes);
    resize_storage("resize_", t.storage(), static_cast<size_t>(bytes));
    t->set_geometry({bytes}, {1}, 0);
    Py_RETURN_NONE;
  });
}

// _storage_address(tensor): the same for all tensors on one storage.
PyObject* storage_address_py(PyObject*, PyObject* o) {
  return guarded([&] { return PyLong_FromVoidPtr(&tensor_arg(o, "_storage_address").storage()); });
}

// _is_resizable(tensor): whether nobody else sees the memory of the tensor's storage.
PyObject* is_resizable_py(PyObject*, PyObject* o) {
  return guarded([&] { return PyBool_FromLong(!tensor_arg(o, "resizable").storage().exported()); });
}

PyMethodDef storage_methods[] = {{"_share_memory", share_py, METH_O, nullptr},
                                 {"_shared_descriptor", descriptor_py, METH_O, nullptr},
                                 {"_is_shared", is_shared_py, METH_O, nullptr},
                                 {"_mark_shared", mark_shared_py, METH_O, nullptr},
                                 {"_map_shared", map_shared_py, METH_VARARGS, nullptr},
                                 {"_storage_bytes", storage_bytes_py, METH_O, nullptr},
                                 {"_on_storage", on_storage_py, METH_VARARGS, nullptr},
                                 {"_set_storage", set_storage_py, METH_VARARGS, nullptr},
                                 {"_resize_storage", resize_storage_py, METH_VARARGS, nullptr},
                                 {"_storage_address", storage_address_py, METH_O, nullptr},
                                 {"_is_resizable", is_resizable_py, METH_O, nullptr},
                                 {}};

}  // namespace

void init_storages(PyObject* module) { checked(PyModule_AddFunctions(module, storage_methods)); }

}  // namespace warptape::bindings
