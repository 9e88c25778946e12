// One export macro for everything that libwarptape.so shares with the bindings and the plugins.
#pragma once
#include "kernels/types.h"  // defines WT_API
