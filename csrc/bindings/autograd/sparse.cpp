// Sparse gradients: what the tape asks of warptape.sparse.
#include "autograd/tape.h"
#include "bindings/autograd/autograd.h"
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

constexpr SparseTape kSparseTape{is_sparse_object, add_gradients, gradient_of_rows};

}  // namespace

void init_sparse() { sparse_tape = &kSparseTape; }

}  // namespace warptape::bindings
