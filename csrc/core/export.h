// One export macro for everything that libwarptape.so shares with the bindings and the plugins.
#pragma once
#include "kernels/types.h"  // defines WT_API

// A variable of the thread that one instruction finds. Elsewhere descriptors do nearly as well, and the room
// in which a library loaded late may put such variables is soon used up: import after SciPy would fail.
#if defined(__x86_64__)
#define WT_INITIAL_EXEC __attribute__((tls_model("initial-exec")))
#else
#define WT_INITIAL_EXEC
#endif
