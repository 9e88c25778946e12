// Minimum and maximum of sizes; std::min is a function that instruction sets would share (CONTRIBUTING.md).
#pragma once

#include "kernels/types.h"

namespace warptape::kernels::WARPTAPE_ISA {

WT_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
WT_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace warptape::kernels::WARPTAPE_ISA
