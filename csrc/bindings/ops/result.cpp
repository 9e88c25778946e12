// From C++ results to Python objects.
#include "bindings/graph/symbolic_int.h"

namespace warptape::bindings {
namespace {

PyObject* int_tuple(const Shape& ints) {
  Object tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(ints.size())));
  for (size_t i = 0; i < ints.size(); ++i)
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(ints[i]));
  return tuple.release();
}

}  // namespace

PyObject* wrap(const Scalar& s) {
  if (s.is_complex()) return PyComplex_FromDoubles(s.to_complex().re, s.to_complex().im);
  if (s.is_floating()) return PyFloat_FromDouble(s.to_double());
  if (s.is_bool()) return PyBool_FromLong(s.to_bool());
  if (s.exceeds_int64()) return PyLong_FromUnsignedLongLong(static_cast<uint64_t>(s.to_int()));
  return PyLong_FromLongLong(s.to_int());
}

PyObject* wrap_list(std::span<const Tensor> tensors) {
  Object list = checked(PyList_New(static_cast<Py_ssize_t>(tensors.size())));
  for (size_t i = 0; i < tensors.size(); ++i)
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), checked(wrap(tensors[i])).release());
  return list.release();
}

PyObject* wrap_tuple(std::span<const Tensor> tensors) {
  Object tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(tensors.size())));
  for (size_t i = 0; i < tensors.size(); ++i)
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), checked(wrap(tensors[i])).release());
  return tuple.release();
}

PyObject* wrap(Result&& result, PyTypeObject* named) {
  switch (result.kind) {
    case Result::Kind::None:
      Py_RETURN_NONE;
    case Result::Kind::Tensor:
      return wrap(result.tensor);
    // PyTorch gives tuples for split, chunk and unbind as well as for several results.
    case Result::Kind::List:
    case Result::Kind::Tuple:
      break;
    case Result::Kind::Int:
      return wrap_int(result.scalar.to_int());
    case Result::Kind::Bool:
    case Result::Kind::Double:
    case Result::Kind::Scalar:
      return wrap(result.scalar);
    case Result::Kind::IntList:
      return with_symbols(wrap_size(result.ints), result.ints);
    case Result::Kind::IntTuple:
      return with_symbols(int_tuple(result.ints), result.ints);
    case Result::Kind::DType:
      return wrap(result.dtype);
    case Result::Kind::OneOrMany:  // boxed as Tensor or List
      break;
    case Result::Kind::TensorAndList: {
      Object first = checked(wrap(result.tensor)), rest = checked(wrap_tuple(result.tensors));
      Object out = checked(named ? PyStructSequence_New(named) : PyTuple_New(2));
      PyStructSequence_SET_ITEM(out.get(), 0, first.release());
      PyStructSequence_SET_ITEM(out.get(), 1, rest.release());
      return out.release();
    }
  }
  if (!named) return wrap_tuple(result.tensors);
  Object out = checked(PyStructSequence_New(named));
  for (size_t i = 0; i < result.tensors.size(); ++i)
    PyStructSequence_SET_ITEM(out.get(), static_cast<Py_ssize_t>(i),
                              checked(wrap(result.tensors[i])).release());
  return out.release();
}

}  // namespace warptape::bindings
