// By carry-less products: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction" (Intel, 2009), sections "Folding by 4" and "Bit-reflected data". The last 16 bytes go through
// a table instead of the paper's final reduction.
#include "core/checksum/crc32.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace warptape {
namespace {

constexpr uint32_t kPolynomial = 0xEDB88320;  // bit 31 is the coefficient of x^0

constexpr uint32_t times_x(uint32_t p) { return (p >> 1) ^ (p & 1 ? kPolynomial : 0); }

constexpr auto kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = times_x(table[i]);
  }
  return table;
}();

uint32_t by_table(uint32_t state, const unsigned char* p, size_t size) {
  for (; size; --size) state = (state >> 8) ^ kTable[(state ^ *p++) & 255];
  return state;
}

#if defined(__x86_64__)
// x^n modulo the polynomial, reflected, where a product of two reflected 64-bit halves wants it.
constexpr int64_t power(int n) {
  uint32_t p = 0x80000000;
  for (; n > 0; --n) p = times_x(p);
  return int64_t{p} << 1;
}

// What `x` becomes when `bits` zero bits follow, plus what stands there instead.
template <int bits>
[[gnu::target("pclmul,sse4.1"), gnu::always_inline]] inline __m128i fold(__m128i x, __m128i next) {
  const __m128i factors = _mm_set_epi64x(power(bits - 32), power(bits + 32));
  return _mm_xor_si128(
      next, _mm_xor_si128(_mm_clmulepi64_si128(x, factors, 0x00), _mm_clmulepi64_si128(x, factors, 0x11)));
}

[[gnu::target("pclmul,sse4.1"), gnu::always_inline]] inline __m128i load(const unsigned char* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// Of `size` bytes, a multiple of 16 and at least 64.
[[gnu::target("pclmul,sse4.1")]] uint32_t by_products(uint32_t state, const unsigned char* p, size_t size) {
  const unsigned char* end = p + size;
  __m128i a = _mm_xor_si128(load(p), _mm_cvtsi32_si128(static_cast<int>(state)));
  __m128i b = load(p + 16), c = load(p + 32), d = load(p + 48);
  for (p += 64; end - p >= 64; p += 64) {
    a = fold<512>(a, load(p));
    b = fold<512>(b, load(p + 16));
    c = fold<512>(c, load(p + 32));
    d = fold<512>(d, load(p + 48));
  }
  a = fold<128>(fold<128>(fold<128>(a, b), c), d);
  for (; p < end; p += 16) a = fold<128>(a, load(p));
  unsigned char rest[16];
  std::memcpy(rest, &a, sizeof rest);
  return by_table(0, rest, sizeof rest);
}

// Of a multiple of 128 bytes, twice as many at a time; the message that remains after folding is shorter and
// has the same checksum.
[[gnu::target("vpclmulqdq,pclmul,avx2")]] uint32_t by_wide_products(uint32_t state, const unsigned char* p,
                                                                    size_t size) {
  const __m256i factors = _mm256_broadcastsi128_si256(_mm_set_epi64x(power(1024 - 32), power(1024 + 32)));
  __m256i part[4];
  for (int i = 0; i < 4; ++i) part[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + i);
  part[0] = _mm256_xor_si256(part[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int>(state))));
  for (const unsigned char* end = p + size; (p += 128) != end;)
    for (int i = 0; i < 4; ++i)
      part[i] = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + i),
                                 _mm256_xor_si256(_mm256_clmulepi64_epi128(part[i], factors, 0x00),
                                                  _mm256_clmulepi64_epi128(part[i], factors, 0x11)));
  unsigned char rest[128];
  std::memcpy(rest, part, sizeof rest);
  return by_products(0, rest, sizeof rest);
}
#endif

}  // namespace

uint32_t crc32(uint32_t before, const void* data, size_t size) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint32_t state = ~before;
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  static const bool wide = fast && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx2");
  auto take = [&](bool can, size_t step, size_t least, auto part) {
    size_t most = size / step * step;
    if (!can || most < least) return;
    state = part(state, p, most);
    p += most, size -= most;
  };
  take(wide, 128, 512, by_wide_products);
  take(fast, 16, 64, by_products);
#endif
  return ~by_table(state, p, size);
}

}  // namespace warptape
