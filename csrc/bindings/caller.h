// The Python code that called.
#pragma once

#include "bindings/common.h"

#include <pybind11/pybind11.h>

namespace warptape::bindings {

// "train.py:30 in step": the first frame outside of this package.
std::string call_site();
void set_package_folder(std::string path);

// The tensors of a list; TypeError naming `what` for anything else in it.
std::vector<Tensor> tensors_of(const pybind11::sequence& list, const char* what);

}  // namespace warptape::bindings
