// Ops of torch.library in graphs: called by name, with their tensors in lists.
#include "bindings/caller.h"
#include "bindings/common.h"
#include "op/op.h"

#include <pybind11/pybind11.h>

namespace warptape::bindings {
namespace {

Object list_of(TensorList tensors) {
  Object out = checked(PyList_New(0));
  for (const Tensor& t : tensors) checked(PyList_Append(out.get(), checked(wrap(t)).get()));
  return out;
}

Object unicode_of(std::string_view s) {
  return checked(PyUnicode_FromStringAndSize(s.data(), static_cast<Py_ssize_t>(s.size())));
}

std::vector<Tensor> call(std::string_view name, std::string_view arguments, TensorList tensors,
                         TensorList written) {
  const GilGuard gil;
  try {
    Object module = checked(PyImport_ImportModule("warptape.library.custom_ops"));
    const Object results = checked(PyObject_CallMethod(module.get(), "call_from_graph", "OOOO",
                                                       unicode_of(name).get(), unicode_of(arguments).get(),
                                                       list_of(tensors).get(), list_of(written).get()));
    return tensors_of(pybind11::reinterpret_borrow<pybind11::sequence>(results.get()), "custom op");
  } catch (const PythonErrorSet&) {
    if (tensors.empty() || !tensors[0].device().is_meta()) throw;
    PyErr_Clear();  // who asks for the sizes alone is told that they are not to be had
    throw NotImplementedError(message(name, ": no sizes without values"));
  }
}

const Op<std::vector<Tensor>(std::string_view, std::string_view, TensorList, TensorList)> custom_op{
    "_custom_op",
    call,
    kPrivate | kChecked | kComplex | kMixedDevices,
    {"name", "arguments", "tensors", {"written", kUpdated}},
    "Calls an op of torch.library; `arguments` says in JSON where its tensors go, and what its numbers are."};

}  // namespace
}  // namespace warptape::bindings
