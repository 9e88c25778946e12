// Philox4x32-10 on the device: the same numbers as on the CPU; see kernels/random/random.h.
#pragma once

#include "kernels/cuda/common/launch.cuh"

namespace warptape::kernels::cuda {

struct PhiloxBlock {
  uint32_t words[4];

  // Number i of the key, of those in the block. By conditions: an index that the compiler does not know needs
  // memory.
  WT_DEVICE uint32_t word(uint64_t i) const {
    const uint32_t even = i & 2 ? words[2] : words[0], odd = i & 2 ? words[3] : words[1];
    return i & 1 ? odd : even;
  }
};

// Words 4 * block ... 4 * block + 3 of the key.
WT_DEVICE PhiloxBlock philox(PhiloxKey key, uint64_t block) {
  if (key.captured) {
    key.seed = key.captured[0];
    key.call += key.captured[1];
  }
  uint32_t k0 = uint32_t(key.seed), k1 = uint32_t(key.seed >> 32);
  uint32_t c0 = uint32_t(block), c1 = uint32_t(block >> 32), c2 = uint32_t(key.call),
           c3 = uint32_t(key.call >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t low0 = 0xD2511F53u * c0, high0 = __umulhi(0xD2511F53u, c0);
    const uint32_t low1 = 0xCD9E8D57u * c2, high1 = __umulhi(0xCD9E8D57u, c2);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// One number of the key.
WT_DEVICE uint32_t philox_word(PhiloxKey key, uint64_t i) { return philox(key, i / 4).word(i); }

// An element is kept when its number is at least this (2^32 for p = 1: none is).
inline uint64_t dropout_threshold(double p) { return uint64_t(__builtin_ceil(p * 0x1p32)); }

}  // namespace warptape::kernels::cuda
