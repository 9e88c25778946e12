// __torch_function__: how classes take over calls of functions, methods and properties that have an object of
// theirs among the arguments. The protocol is PyTorch's ("Extending PyTorch", torch.overrides).
#pragma once

#include "bindings/common.h"

namespace warptape::bindings {

// Whether a call with these arguments (and `self`, which may be null) goes to a __torch_function__.
bool overridden(PyObject* self, PyObject* const* args, Py_ssize_t count);
// What that call returns; `func` is what the caller called.
PyObject* call_override(PyObject* func, PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                        PyObject* kwnames);
// The attribute of Tensor that has this name, to be handed on as `func`: a method, or a property's getter.
Object tensor_attribute(const char* name);
void init_overrides(PyObject* module);

}  // namespace warptape::bindings
