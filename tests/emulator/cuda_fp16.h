// Storage of float16 for the emulated mma.h.
#pragma once

#include <cstdint>

struct half {
  uint16_t bits;
};
