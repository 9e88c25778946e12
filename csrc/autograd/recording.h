#pragma once

#include <cstdint>

#include "kernels/types.h"

namespace warptape {

// How many function transforms that record (grad, vjp) this thread is in.
WT_API int64_t& recording_transforms();

}  // namespace warptape
