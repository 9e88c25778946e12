// Ops as calls of Python functions: of a TorchDispatchMode (override.cpp), and of the classes of tensors that
// implement __torch_dispatch__.
#pragma once

#include "bindings/common.h"

namespace warptape::bindings {

// Calls callee(place, name, args, kwargs); false where that gives NotImplemented. With the GIL.
bool call_python_for(PyObject* callee, const OpInfo& op, std::span<Value> values, Result& out);

// t, which gets an object of the class, is asked from now on if the class implements __torch_dispatch__.
void note_class(const Tensor& t, PyTypeObject* type);

// For the tape (TapeFrontend).
bool dispatches(const Tensor& t);  // of one that is not plain
Tensor accumulate_by_class(const Tensor& leaf, const Tensor& old, const Tensor& gradient);
Tensor ones_by_class(const Tensor& root);

void init_dispatch(PyObject* module);

}  // namespace warptape::bindings
