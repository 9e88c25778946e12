#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace warptape::bindings {

void init_cuda(pybind11::module_& m);
// The allocators' history, of _C._cuda.
void bind_memory_history(pybind11::module_& m);
// A stream or an event as Python has it.
inline uintptr_t as_int(void* handle) { return reinterpret_cast<uintptr_t>(handle); }

}  // namespace warptape::bindings
