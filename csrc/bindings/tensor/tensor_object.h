#pragma once
#include "bindings/common.h"

namespace warptape::bindings {
// Attributes such as shape, dtype, grad (properties.cpp), ended by an empty entry.
std::vector<PyGetSetDef> tensor_properties();
// The impl that owns the object goes away.
void release_object(void* object);
}  // namespace warptape::bindings
