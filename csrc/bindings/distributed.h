// warptape._C._distributed
#pragma once

#include <pybind11/pybind11.h>

namespace warptape::bindings {
void init_distributed(pybind11::module_& module);        // makes the submodule and all in it
void init_distributed_store(pybind11::module_& module);  // distributed_store.cpp
}  // namespace warptape::bindings
