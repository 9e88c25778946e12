// Integers that depend on values, while a graph is recorded: see graph::Tracer::expr_of().
#pragma once

#include "bindings/common.h"

namespace warptape::bindings {

// What stands for such an integer among the arguments of ops; false where the object is none.
bool to_mark(PyObject* o, int64_t& out);
// The Python object of what an op tells: a number, or such an integer.
PyObject* wrap_int(int64_t x);
// Puts wrap_int() of each that is such an integer into a tuple.
PyObject* with_symbols(PyObject* tuple, IntList sizes);

}  // namespace warptape::bindings
