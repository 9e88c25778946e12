// HMAC-SHA256 (RFC 2104, FIPS 180-4), by which two processes prove to each other that they hold one secret.
#pragma once

#include <array>
#include <string_view>

#include "core/export.h"

namespace warptape::distributed {

using Digest = std::array<char, 32>;

WT_API Digest sha256(std::string_view data);
WT_API Digest hmac_sha256(std::string_view key, std::string_view data);
// In a time that does not depend on where they differ.
bool equal_digests(std::string_view a, std::string_view b);
// 32 bytes that nobody can foresee.
Digest random_nonce();

}  // namespace warptape::distributed
