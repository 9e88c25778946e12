#pragma once
#include "bindings/common.h"

namespace warptape::bindings {
void init_errors(PyObject* module);
}
