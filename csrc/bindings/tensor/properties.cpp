// Attributes of a tensor.
#include "bindings/autograd/autograd.h"
#include "bindings/graph/symbolic_int.h"
#include "bindings/ops/override.h"
#include "bindings/tensor/tensor_object.h"
#include "graph/record/recording.h"
#include "graph/record/trace.h"
#include "ops/view/view.h"
#include "transforms/level.h"

namespace warptape::bindings {
namespace {

using Get = PyObject* (*)(const Tensor& t);

template <Get f>
PyObject* get(PyObject* self, void* name) {
  return guarded([&] {
    if (__builtin_expect(overridden(self, nullptr, 0), 0))
      return call_override(tensor_attribute(static_cast<const char*>(name)).get(), self, nullptr, 0, nullptr);
    return f(tensor_of(self));
  });
}

PyObject* boolean(bool v) { return PyBool_FromLong(v); }

int set_requires(PyObject* self, PyObject* value, void*) {
  return guarded(
      [&] {
        WT_CHECK(value && PyBool_Check(value), TypeError, "requires_grad must be a bool");
        set_requires_grad(tensor_of(self), value == Py_True);
        return 0;
      },
      -1);
}

void check_grad(const Tensor& t, const Tensor& g) {
  WT_CHECK(!g.same(t), Error, "can't assign Variable as its own grad");
  WT_CHECK(g.sizes() == t.sizes(), ShapeError, "assigned grad has data of a different size: expected ",
           t.sizes(), ", got ", g.sizes());
  WT_CHECK(g.dtype() == t.dtype(), DtypeError, "assigned grad has data of a different type: expected ",
           t.dtype(), ", got ", g.dtype());
  WT_CHECK(g.device() == t.device(), DeviceError,
           "assigned grad has data located on a different device: expected ", t.device(), ", got ",
           g.device());
}

int set_grad(PyObject* self, PyObject* value, void*) {
  return guarded(
      [&] {
        const Tensor& t = tensor_of(self);
        graph::refuse_replay("it sets the gradient of a tensor");
        if (!value || value == Py_None) {
          if (t->extra) {
            Tensor old = std::move(meta_of(t)->grad);
            meta_of(t)->grad = {};
          }
          return 0;
        }
        WT_CHECK(is_tensor(value), TypeError, "assigned grad expected to be a Tensor or None but got ",
                 Py_TYPE(value)->tp_name);
        check_grad(t, tensor_of(value));
        make_meta(t).grad = tensor_of(value);
        return 0;
      },
      -1);
}

PyObject* get_grad(const Tensor& t) {
  if (!t->extra) Py_RETURN_NONE;
  return wrap(meta_of(t)->grad);
}

// x.data shares memory, but neither history nor the count of in-place changes.
PyObject* get_data(const Tensor& t) {
  if (is_opaque(t) || graph::Tracer::recording()) return wrap(ops::detach(t));
  Tensor out = alias(t);
  out->own_version = Ref<VersionCounter>::adopt(new VersionCounter);
  return wrap(out);
}

int set_data(PyObject* self, PyObject* value, void*) {
  return guarded(
      [&] {
        WT_CHECK(value && is_tensor(value), TypeError, "Variable data has to be a tensor");
        graph::refuse_replay("it sets the memory of a tensor");
        const Tensor &t = tensor_of(self), &from = tensor_of(value);
        if (const graph::Tracer* tracer = graph::Tracer::recording()) tracer->refuse(t, "data = ...");
        WT_CHECK(!requires_grad(t) || is_differentiable(from.dtype()), DtypeError,
                 "data set to a tensor that requires gradients must be floating point, got ", from.dtype());
        t->set_storage(from->storage, from.dtype());
        t->set_geometry(from.sizes(), from.strides(), from.offset());
        return 0;
      },
      -1);
}

PyObject* get_base(const Tensor& t) {
  if (!is_view(t)) Py_RETURN_NONE;
  return wrap(meta_of(t)->view->base);
}

// While a graph is recorded: it may depend on what Python is told of sizes.
void tell(const Tensor& t, const char* what) {
  if (graph::Tracer* tracer = graph::Tracer::recording())
    tracer->tell_sizes(t, what, std::string_view(what) == "ndim");
}

PyObject* get_shape(const Tensor& t) {
  graph::Tracer* tracer = graph::Tracer::recording();
  if (const auto sizes = tracer ? tracer->symbolic_sizes(t) : std::nullopt)
    return with_symbols(wrap_size(*sizes), *sizes);
  tell(t, "shape");
  return wrap_size(t.sizes());
}
PyObject* get_dtype(const Tensor& t) { return wrap(t.dtype()); }
PyObject* get_device(const Tensor& t) { return wrap(t.device()); }
PyObject* get_ndim(const Tensor& t) { return tell(t, "ndim"), PyLong_FromLongLong(t.ndim()); }
PyObject* get_itemsize(const Tensor& t) { return PyLong_FromSize_t(t.itemsize()); }
PyObject* get_nbytes(const Tensor& t) {
  tell(t, "nbytes");
  return PyLong_FromLongLong(t.numel() * static_cast<int64_t>(t.itemsize()));
}
PyObject* get_requires(const Tensor& t) { return boolean(transforms::recorded(t)); }
PyObject* get_is_leaf(const Tensor& t) {
  return boolean(transforms::wrapper_of(t) ? !transforms::recorded(t) : is_leaf(t));
}
PyObject* get_grad_fn(const Tensor& t) { return wrap_node(grad_fn(t)); }
PyObject* get_retains(const Tensor& t) { return boolean(t->extra && meta_of(t)->retains_grad); }
PyObject* get_output_nr(const Tensor& t) { return PyLong_FromLong(t->extra ? long(meta_of(t)->output) : 0); }
PyObject* get_cdata(const Tensor& t) { return PyLong_FromVoidPtr(t.impl()); }
PyObject* get_version(const Tensor& t) { return PyLong_FromLong(t.version()); }
PyObject* get_is_cuda(const Tensor& t) { return boolean(t.device().is_cuda()); }
PyObject* get_is_cpu(const Tensor& t) { return boolean(t.device().is_cpu()); }
PyObject* get_is_meta(const Tensor& t) { return boolean(t.device().is_meta()); }
PyObject* get_false(const Tensor&) { return boolean(false); }

}  // namespace

std::vector<PyGetSetDef> tensor_properties() {
  std::vector<PyGetSetDef> all{
      {"shape", get<get_shape>, nullptr,
       "Sizes, as a Size.\n"
       "\n>>> torch.tensor([[1, 2]]).shape\ntorch.Size([1, 2])",
       nullptr},
      {"dtype", get<get_dtype>, nullptr,
       "Type of the elements.\n"
       "\n>>> torch.tensor([1, 2]).dtype\ntorch.int64",
       nullptr},
      {"device", get<get_device>, nullptr,
       "Where the data lies.\n"
       "\n>>> torch.tensor(1).device\ndevice(type='cpu')",
       nullptr},
      {"ndim", get<get_ndim>, nullptr,
       "Number of dims.\n"
       "\n>>> torch.tensor([[1, 2]]).ndim\n2",
       nullptr},
      {"itemsize", get<get_itemsize>, nullptr, "Bytes of one element.", nullptr},
      {"nbytes", get<get_nbytes>, nullptr, "Bytes of all elements.", nullptr},
      {"requires_grad", get<get_requires>, set_requires,
       "Whether ops on this tensor are recorded.\n"
       "\n>>> torch.tensor(1.0, requires_grad=True).requires_grad\nTrue",
       nullptr},
      {"grad", get<get_grad>, set_grad,
       "The gradient that backward accumulated, or None.\n"
       "\n>>> x = torch.tensor(2.0, requires_grad=True)\n>>> (3 * x).backward()\n>>> x.grad\ntensor(3.)",
       nullptr},
      {"_grad", get<get_grad>, set_grad, "grad.", nullptr},
      {"grad_fn", get<get_grad_fn>, nullptr, "The node of the op that made this tensor, or None.", nullptr},
      {"is_leaf", get<get_is_leaf>, nullptr, "True when no recorded op made this tensor.", nullptr},
      {"retains_grad", get<get_retains>, nullptr, "Whether retain_grad() was called.", nullptr},
      {"output_nr", get<get_output_nr>, nullptr, "Which output of grad_fn this is.", nullptr},
      {"data", get<get_data>, set_data,
       "The same memory without history.\n"
       "\n>>> torch.tensor(1.0, requires_grad=True).data\ntensor(1.)",
       nullptr},
      {"_version", get<get_version>, nullptr, "Number of in-place changes of the storage.", nullptr},
      {"_cdata", get<get_cdata>, nullptr, "The address of the tensor itself; its object is another.",
       nullptr},
      {"_base", get<get_base>, nullptr, "The tensor that this one is a view of, or None.", nullptr},
      {"is_cuda", get<get_is_cuda>, nullptr,
       "Whether the data lies on a CUDA device.\n"
       "\n>>> torch.tensor(1).is_cuda\nFalse",
       nullptr},
      {"is_cpu", get<get_is_cpu>, nullptr, "Whether the data lies in the host's memory.", nullptr},
      {"is_meta", get<get_is_meta>, nullptr, "Whether the tensor has sizes and no data.", nullptr},
      {"is_sparse", get<get_false>, nullptr, "False: of strided tensors.", nullptr},
      {"is_quantized", get<get_false>, nullptr, "False: quantized dtypes are not supported.", nullptr},
      {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr}};
  for (PyGetSetDef& p : all) p.closure = const_cast<char*>(p.name);
  return all;
}

}  // namespace warptape::bindings
