// Sparse gradients: what the tape asks of warptape.sparse.
#include "autograd/tape.h"
#include "bindings/autograd.h"
#include "bindings/tensor_object.h"

namespace warptape::bindings {
namespace {

// Whoever has not imported it has no sparse tensor either.
bool is_sparse_object(const Tensor& opaque) {
  if (!opaque->python) return false;
  GilGuard gil;
  Object name = checked(PyUnicode_FromString("warptape.sparse._tensor"));
  Object module(PyImport_GetModule(name.get()));
  if (!module) return false;
  Object type = checked(PyObject_GetAttrString(module.get(), "SparseTensor"));
  Object object = checked(wrap(opaque));
  const int found = PyObject_IsInstance(object.get(), type.get());
  if (found < 0) throw PythonErrorSet();
  return found;
}

Object function(const char* name) {
  Object module = checked(PyImport_ImportModule("warptape.sparse._gradients"));
  return checked(PyObject_GetAttrString(module.get(), name));
}

Tensor add_gradients(const Tensor& a, const Tensor& b) {
  GilGuard gil;
  Object left = checked(wrap(a)), right = checked(wrap(b));
  return tensor_of(call_python(function("add_gradients").get(), left.get(), right.get()).get());
}

Tensor gradient_of_rows(const Tensor& indices, const Tensor& values, int64_t rows, int64_t without) {
  GilGuard gil;
  Object at = checked(wrap(indices)), of = checked(wrap(values));
  Object count = checked(PyLong_FromLongLong(rows)), but = checked(PyLong_FromLongLong(without));
  Object made = call_python(function("gradient_of_rows").get(), at.get(), of.get(), count.get(), but.get());
  return tensor_of(made.get());
}

constexpr SparseTape kSparseTape{is_sparse_object, add_gradients, gradient_of_rows};

}  // namespace

void init_sparse() { sparse_tape = &kSparseTape; }

}  // namespace warptape::bindings
