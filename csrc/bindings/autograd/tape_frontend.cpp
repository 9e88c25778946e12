// What the tape asks of Python: hooks on saved tensors, the arithmetic of warptape.sparse, and classes with
// __torch_dispatch__.
#include "autograd/tape.h"
#include "bindings/autograd/autograd.h"
#include "bindings/ops/dispatch.h"
#include "bindings/tensor/tensor_object.h"

namespace warptape::bindings {
namespace {

// Whoever has not imported it has no sparse tensor either.
bool is_sparse_object(const Tensor& opaque) {
  if (!opaque->python) return false;
  GilGuard gil;
  Object name = checked(PyUnicode_FromString("warptape.extras.sparse._tensor"));
  Object module(PyImport_GetModule(name.get()));
  if (!module) return false;
  Object type = checked(PyObject_GetAttrString(module.get(), "SparseTensor"));
  Object object = checked(wrap(opaque));
  const int found = PyObject_IsInstance(object.get(), type.get());
  if (found < 0) throw PythonErrorSet();
  return found;
}

Object function(const char* module_name, const char* name) {
  Object module = checked(PyImport_ImportModule(module_name));
  return checked(PyObject_GetAttrString(module.get(), name));
}

Tensor add_gradients(const Tensor& a, const Tensor& b) {
  GilGuard gil;
  Object left = checked(wrap(a)), right = checked(wrap(b));
  Object add = function("warptape.extras.sparse._arithmetic", "add");
  return tensor_of(call_python(add.get(), left.get(), right.get()).get());
}

Tensor gradient_of_rows(const Tensor& indices, const Tensor& values, int64_t rows, int64_t without) {
  GilGuard gil;
  Object at = checked(wrap(indices)), of = checked(wrap(values));
  Object count = checked(PyLong_FromLongLong(rows)), but = checked(PyLong_FromLongLong(without));
  Object gradient = function("warptape.extras.sparse._gradients", "gradient_of_rows");
  return tensor_of(call_python(gradient.get(), at.get(), of.get(), count.get(), but.get()).get());
}

struct PythonTape final : TapeFrontend {
  Ref<PackedTensor> pack(const Tensor& saved) override { return pack_saved_tensor(saved); }
  bool is_sparse(const Tensor& opaque) override { return is_sparse_object(opaque); }
  Tensor add_sparse(const Tensor& a, const Tensor& b) override { return add_gradients(a, b); }
  Tensor sparse_gradient(const Tensor& indices, const Tensor& values, int64_t rows,
                         int64_t without) override {
    return gradient_of_rows(indices, values, rows, without);
  }
  bool has_dispatch(const Tensor& t) override { return dispatches(t); }
  Tensor accumulate(const Tensor& leaf, const Tensor& old, const Tensor& gradient) override {
    return accumulate_by_class(leaf, old, gradient);
  }
  Tensor ones_like(const Tensor& root) override { return ones_by_class(root); }
};

}  // namespace

TapeFrontend& python_tape() {
  static auto* tape = new PythonTape;
  return *tape;
}

}  // namespace warptape::bindings
