// CRC-32 as zip, gzip and PNG have it (ISO-HDLC), fast enough that checking a file costs little beside
// reading it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/export.h"

namespace warptape {

// The checksum of `size` bytes that follow what `before` is the checksum of (0: nothing).
WT_API uint32_t crc32(uint32_t before, const void* data, size_t size);

}  // namespace warptape
