// The WARPTAPE_* variables of the process' environment.
#pragma once

#include "core/export.h"

namespace warptape {

// ValueError for a variable whose value means nothing: it would be ignored, and the user not know why. Called
// when the library is loaded by Python; those who read a variable need not look at its form again.
WT_API void check_environment();

// The instruction set level (kernels/cpu) that WARPTAPE_CPU_LEVEL allows, by its number or name. ValueError.
WT_API int allowed_cpu_level();

}  // namespace warptape
