#pragma once
#include "bindings/common.h"

namespace warptape::bindings {
// Nested Python lists of numbers; one number for a 0-dim tensor.
PyObject* tensor_tolist(const Tensor& t);
bool is_array(PyObject* o);  // NumPy's
// Whether somebody beside tensors may hold an array of this memory.
bool seen_by_numpy(const Storage& s);
// A CPU tensor from a nested sequence or a NumPy array (shared memory).
Tensor tensor_from_data(PyObject* data);
// Bytes from the first element to the end of the last.
size_t bytes_reached(const char* op, const Shape& sizes, const Shape& strides, DType dtype);
}  // namespace warptape::bindings
