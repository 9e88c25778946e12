// The generator that PyTorch's CPU build draws bernoulli_(p) from on Intel's processors: MCG31m1 of oneMKL
// (Notes for Intel oneMKL Vector Statistics, "MCG31m1"; L'Ecuyer, "Tables of linear congruential generators
// of different sizes and good lattice structure", Math. Comp. 68, 1999).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace warptape {

// Number i is seed a^i mod 2^31 - 1, so that any of them can be had without those before it.
class Mcg31 {
 public:
  static constexpr uint64_t kModulus = (uint64_t{1} << 31) - 1, kMultiplier = 1132489760;

  Mcg31(uint32_t seed, uint64_t first) {
    const uint64_t start = times(power(first), std::max<uint64_t>(seed % kModulus, 1));
    for (uint64_t i = 0; i < kLanes; ++i) lanes_[i] = times(start, power(i));
  }

  // out[i] = T(number i < p (2^31 - 1)).
  template <class T>
  void bernoulli(T* out, int64_t n, double p) {
    const uint64_t bound = below(p);
    constexpr uint64_t step = power(kLanes);
    for (; n > 0; n -= kLanes, out += kLanes) {
      if (n >= kLanes)
        for (size_t i = 0; i < kLanes; ++i) out[i] = static_cast<T>(lanes_[i] < bound ? 1.0f : 0.0f);
      else
        for (size_t i = 0; i < static_cast<size_t>(n); ++i)
          out[i] = static_cast<T>(lanes_[i] < bound ? 1.0f : 0.0f);
      for (uint64_t& x : lanes_) x = times(x, step);
    }
  }

 private:
  static constexpr int64_t kLanes = 16;  // numbers that advance together, so that none waits for the last

  static constexpr uint64_t times(uint64_t a, uint64_t b) {
    // The halves are named so that a vector of products needs no 64-bit multiplication.
    const uint64_t product = uint64_t{static_cast<uint32_t>(a)} * static_cast<uint32_t>(b);
    const uint64_t folded = (product & kModulus) + (product >> 31);
    return folded >= kModulus ? folded - kModulus : folded;
  }
  static constexpr uint64_t power(uint64_t exponent) {
    uint64_t result = 1;
    for (uint64_t base = kMultiplier; exponent; exponent >>= 1, base = times(base, base))
      if (exponent & 1) result = times(result, base);
    return result;
  }
  // The smallest number that, divided by the modulus in double, is not less than p.
  static uint64_t below(double p) {
    const auto guess = static_cast<uint64_t>(p * static_cast<double>(kModulus));
    uint64_t bound = guess > 2 ? guess - 2 : 0;
    while (bound <= kModulus && static_cast<double>(bound) / static_cast<double>(kModulus) < p) ++bound;
    return bound;
  }

  std::array<uint64_t, kLanes> lanes_;
};

}  // namespace warptape
