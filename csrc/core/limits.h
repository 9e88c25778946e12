// What the C interface asks of the runtime for small machines.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/export.h"

namespace warptape {

// The most bytes that CPU tensors and the cache may hold; 0 for no limit. What is held now stays.
WT_API void set_cpu_memory_limit(size_t bytes);
// The names of the kernels that were called so far, in order of name: what a slim build lists.
WT_API std::vector<std::string> kernels_used();

}  // namespace warptape
