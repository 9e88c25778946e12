// CRC-32C (Castagnoli's polynomial, as in RFC 3720, section 12.1): what a checkpoint says of its bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/export.h"

namespace warptape::distributed {

// Of bytes that follow others whose value is `before`. Takes what this processor is fastest with.
WT_API uint32_t crc32c(const void* data, size_t bytes, uint32_t before = 0);
// The same with a table, byte by byte: on any processor, and what the other is compared with.
WT_API uint32_t crc32c_by_table(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace warptape::distributed
