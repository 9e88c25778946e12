// Storage of bfloat16 for the emulated mma.h.
#pragma once

#include <cstdint>

struct __nv_bfloat16 {
  uint16_t bits;
};
