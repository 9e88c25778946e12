// Tensors as bytes (pickle), as storages of bytes (files) and as DLPack capsules.
#include "bindings/common.h"
#include "bindings/tensor/numpy.h"
#include "core/checksum/crc32.h"
#include "graph/record/recording.h"
#include "graph/record/rematerialize.h"
#include "graph/record/trace.h"

#include <cstring>

namespace warptape::bindings {

size_t bytes_reached(const char* op, const Shape& sizes, const Shape& strides, DType dtype) {
  WT_CHECK(sizes.size() == strides.size(), ShapeError, op, ": expected as many strides as sizes, got ",
           AsShape{strides}, " and ", AsShape{sizes});
  int64_t extent = numel_of(sizes, op) ? 1 : 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    WT_CHECK(strides[i] >= 0, ValueError, op, ": negative strides are not supported; copy the array first");
    int64_t step = 0;
    const bool far = extent && (__builtin_mul_overflow(sizes[i] - 1, strides[i], &step) ||
                                __builtin_add_overflow(extent, step, &extent));
    WT_CHECK(!far && extent < int64_t{1} << 59, ShapeError, op, ": strides reach beyond 63 bits");
  }
  return static_cast<size_t>(extent) * itemsize(dtype);
}

namespace {

// ---- bytes ---------------------------------------------------------------------------------------------

PyObject* tensor_bytes(PyObject*, PyObject* o) {
  return guarded([&] {
    const Tensor& t = tensor_arg(o, "_tensor_bytes");
    WT_CHECK(!t.device().is_meta(), NotImplementedError, "pickle: a meta tensor has no data");
    Tensor host = empty(t.sizes(), {t.dtype(), {}});
    copy_unlocked(host, t);
    return PyBytes_FromStringAndSize(static_cast<const char*>(host.data()),
                                     host.numel() * static_cast<Py_ssize_t>(host.itemsize()));
  });
}

PyObject* tensor_from_bytes(PyObject*, PyObject* args) {
  PyObject *data, *dtype, *shape;
  if (!PyArg_ParseTuple(args, "SOO", &data, &dtype, &shape)) return nullptr;
  return guarded([&] {
    WT_CHECK(is_dtype(dtype), TypeError, "_tensor_from_bytes: expected a dtype");
    Tensor out = empty(to_shape(shape, "_tensor_from_bytes"), {dtype_of(dtype), {}});
    auto bytes = static_cast<Py_ssize_t>(out.numel() * static_cast<int64_t>(out.itemsize()));
    WT_CHECK(PyBytes_GET_SIZE(data) == bytes, ValueError, "_tensor_from_bytes: expected ", bytes,
             " bytes, got ", PyBytes_GET_SIZE(data));
    if (bytes) std::memcpy(out.data(), PyBytes_AS_STRING(data), static_cast<size_t>(bytes));
    return wrap(out);
  });
}

// _crc32(buffer, before=0): the checksum of before's bytes and buffer's.
PyObject* crc32_py(PyObject*, PyObject* args) {
  Py_buffer data;
  unsigned int before = 0;
  if (!PyArg_ParseTuple(args, "y*|I", &data, &before)) return nullptr;
  uint32_t sum;
  {
    GilRelease unlocked(data.len);
    sum = crc32(before, data.buf, static_cast<size_t>(data.len));
  }
  PyBuffer_Release(&data);
  return PyLong_FromUnsignedLong(sum);
}

// ---- DLPack (the array data interchange format of dmlc/dlpack, version 0.8 structs) --------------------

struct DLDevice {
  int32_t type, id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor*);
};
constexpr int32_t kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13;

DLDataType to_dl(DType t) {
#define WT_CODE(enumerator, type, bytes, text, torch_text, code) code,
  constexpr uint8_t codes[] = {WT_DTYPES(WT_CODE)};
#undef WT_CODE
  return {codes[static_cast<int>(t)], static_cast<uint8_t>(8 * itemsize(t)), 1};
}

DType from_dl(DLDataType d) {
  for (int i = 0; i < kNumDTypes && d.lanes == 1; ++i) {
    DLDataType mine = to_dl(static_cast<DType>(i));
    if (mine.code == d.code && mine.bits == d.bits) return static_cast<DType>(i);
  }
  throw TypeError(message("from_dlpack: no dtype for code ", int{d.code}, ", ", int{d.bits}, " bits, ",
                          d.lanes, " lanes"));
}

struct Exported {
  Tensor tensor;
  DLManagedTensor managed;
};

void capsule_destructor(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, "dltensor")) return;  // somebody took it over
  auto* m = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
  m->deleter(m);
}

PyObject* to_dlpack(PyObject*, PyObject* o) {
  return guarded([&] {
    const Tensor& t = tensor_arg(o, "to_dlpack");
    WT_CHECK(!requires_grad(t), Error, "Can't export tensors that require gradient, use tensor.detach()");
    WT_CHECK(!t.device().is_meta(), DeviceError, "to_dlpack: a meta tensor has no data");
    graph::refuse_replay("to_dlpack() reads a value");
    if (const graph::Tracer* tracer = graph::Tracer::recording()) tracer->refuse(t, "to_dlpack()");
    auto* e = new Exported{t, {}};
    if (t.storage().pending()) graph::rematerialize_dependents(t.storage());
    t.storage().mark_exported();
    DLTensor& d = e->managed.tensor;
    d = {t.data(),
         {t.device().is_cpu() ? kDLCPU : kDLCUDA, t.device().index},
         static_cast<int32_t>(t.ndim()),
         to_dl(t.dtype()),
         e->tensor->sizes.data(),
         e->tensor->strides.data(),
         0};
    e->managed.context = e;
    e->managed.deleter = [](DLManagedTensor* m) { delete static_cast<Exported*>(m->context); };
    return PyCapsule_New(&e->managed, "dltensor", capsule_destructor);
  });
}

Device from_dl(DLDevice d) {
  if (d.type == kDLCPU || d.type == kDLCUDAHost) return {};
  WT_CHECK(d.type == kDLCUDA || d.type == kDLCUDAManaged, DeviceError, "from_dlpack: unknown device type ",
           d.type, "; expected 1 (CPU) or 2 (CUDA)");
  WT_CHECK(d.id >= 0 && d.id <= 127, DeviceError, "from_dlpack: there is no CUDA device ", d.id);
  return resolved({DeviceType::CUDA, static_cast<int8_t>(d.id)});
}

Tensor foreign(Ref<Storage> storage, DType dtype, const Shape& sizes, const Shape& strides) {
  storage->mark_exported();
  return Tensor(Ref<TensorImpl>::adopt(new TensorImpl(std::move(storage), dtype, sizes, strides, 0)));
}

PyObject* from_dlpack(PyObject*, PyObject* capsule) {
  return guarded([&] {
    auto* m = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
    if (!m) throw PythonErrorSet();
    const DLTensor& d = m->tensor;
    DType dtype = from_dl(d.dtype);
    Device device = from_dl(d.device);
    Shape sizes(IntList{d.shape, static_cast<size_t>(d.ndim)});
    Shape strides =
        d.strides ? Shape(IntList{d.strides, static_cast<size_t>(d.ndim)}) : contiguous_strides(sizes);
    const size_t bytes = bytes_reached("from_dlpack", sizes, strides, dtype);
    checked(PyCapsule_SetName(capsule, "used_dltensor"));
    auto storage = Storage::wrap(
        static_cast<char*>(d.data) + d.byte_offset, bytes, device,
        [](void* p) {
          auto* managed = static_cast<DLManagedTensor*>(p);
          if (managed->deleter) managed->deleter(managed);
        },
        m);
    return wrap(foreign(std::move(storage), dtype, sizes, strides));
  });
}

// _from_memory(owner, address, dtype, shape, strides or None, device): a tensor on memory of `owner`, which
// it keeps.
PyObject* from_memory(PyObject*, PyObject* args) {
  PyObject *owner, *dtype, *shape, *steps, *device;
  unsigned long long address;
  if (!PyArg_ParseTuple(args, "OKOOOO", &owner, &address, &dtype, &shape, &steps, &device)) return nullptr;
  return guarded([&] {
    WT_CHECK(is_dtype(dtype), TypeError, "_from_memory: expected a dtype");
    Shape sizes = to_shape(shape, "_from_memory");
    Shape strides = steps == Py_None ? contiguous_strides(sizes) : to_shape(steps, "_from_memory");
    const size_t bytes = bytes_reached("_from_memory", sizes, strides, dtype_of(dtype));
    auto release = [](void* held) {
      if (!Py_IsInitialized()) return;
      GilGuard gil;
      Py_DECREF(static_cast<PyObject*>(held));
    };
    auto storage = Storage::wrap(reinterpret_cast<void*>(address), bytes, resolved(device_of(device)),
                                 release, Py_NewRef(owner));
    return wrap(foreign(std::move(storage), dtype_of(dtype), sizes, strides));
  });
}

PyMethodDef bytes_methods[] = {{"_tensor_bytes", tensor_bytes, METH_O, nullptr},
                               {"_tensor_from_bytes", tensor_from_bytes, METH_VARARGS, nullptr},
                               {"_crc32", crc32_py, METH_VARARGS, nullptr},
                               {"_to_dlpack", to_dlpack, METH_O, nullptr},
                               {"_from_dlpack", from_dlpack, METH_O, nullptr},
                               {"_from_memory", from_memory, METH_VARARGS, nullptr},
                               {}};

}  // namespace

void init_bytes_dlpack(PyObject* module) { checked(PyModule_AddFunctions(module, bytes_methods)); }

}  // namespace warptape::bindings
