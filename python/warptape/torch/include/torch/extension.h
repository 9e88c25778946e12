// What an extension for Python includes.
#pragma once

#include "torch/all.h"
#include "torch/python.h"

namespace py = pybind11;
