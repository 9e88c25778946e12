// A library's function under its own name, hidden in the plugin: looks the real one up when it is first
// called.
#pragma once

#include "kernels/cuda/libraries/library.h"

#define WT_FORWARD(library, result, name, parameters, arguments)           \
  __attribute__((visibility("hidden"))) result name parameters {           \
    using warptape::kernels::cuda::Library;                                \
    static const auto function = reinterpret_cast<result(*) parameters>(   \
        warptape::kernels::cuda::library_symbol(Library::library, #name)); \
    return function arguments;                                             \
  }
