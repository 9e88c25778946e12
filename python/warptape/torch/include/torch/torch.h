#pragma once
#include "torch/all.h"
#ifdef TORCH_API_INCLUDE_EXTENSION_H  // of an extension for Python
#include "torch/extension.h"
#endif
