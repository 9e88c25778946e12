#include "core/checksum/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace warptape::distributed {
namespace {

// Polynomials over GF(2) modulo Castagnoli's, x^31 in bit 0 and x^0 in bit 31.
constexpr uint32_t kPolynomial = 0x82f63b78;

constexpr uint32_t times_x(uint32_t p) { return p >> 1 ^ (p & 1 ? kPolynomial : 0); }

constexpr uint32_t product(uint32_t a, uint32_t b) {
  uint32_t sum = 0;
  for (; a; a <<= 1, b = times_x(b)) sum ^= a >> 31 ? b : 0;
  return sum;
}

constexpr uint32_t power_of_x(size_t n) {
  uint32_t power = 1u << 31;
  for (uint32_t square = 1u << 30; n; n >>= 1, square = product(square, square))
    if (n & 1) power = product(power, square);
  return power;
}

constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t p = byte;
    for (int bit = 0; bit < 8; ++bit) p = times_x(p);
    table[byte] = p;
  }
  return table;
}();

#if defined(__x86_64__)
uint64_t word_at(const unsigned char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// Three runs of kRun bytes side by side, for the instruction ends three cycles after it began, and then one
// value of them: V. Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction" (Intel,
// 2011). A value moves past n bytes when it is multiplied by x^8n. The carry-less product of two polynomials
// is short of a factor x, and the instruction multiplies by x^32 and reduces, as in V. Gopal et al., "Fast
// CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009): hence x^(8n - 33).
template <size_t kRun>
[[gnu::target("pclmul")]] uint64_t three_runs(const unsigned char*& p, size_t& bytes, uint64_t crc) {
  constexpr uint64_t kPastOne = power_of_x(8 * kRun - 33), kPastTwo = power_of_x(16 * kRun - 33);
  const auto past = [](uint64_t value, uint64_t power) __attribute__((target("pclmul"))) {
    const auto a = _mm_cvtsi64_si128(static_cast<int64_t>(value));
    const auto b = _mm_cvtsi64_si128(static_cast<int64_t>(power));
    return _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_clmulepi64_si128(a, b, 0))));
  };
  for (; bytes >= 3 * kRun; bytes -= 3 * kRun, p += 2 * kRun) {
    uint64_t second = 0, third = 0;
    for (const auto* end = p + kRun; p != end; p += 8) {
      crc = _mm_crc32_u64(crc, word_at(p));
      second = _mm_crc32_u64(second, word_at(p + kRun));
      third = _mm_crc32_u64(third, word_at(p + 2 * kRun));
    }
    crc = past(crc, kPastTwo) ^ past(second, kPastOne) ^ third;
  }
  return crc;
}

uint32_t by_instruction(const void* data, size_t bytes, uint32_t before) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t crc = ~before;
  crc = three_runs<65536>(p, bytes, crc);  // long, for what comes from memory
  crc = three_runs<256>(p, bytes, crc);
  for (; bytes >= 8; bytes -= 8, p += 8) crc = _mm_crc32_u64(crc, word_at(p));
  auto rest = static_cast<uint32_t>(crc);
  for (; bytes; --bytes) rest = _mm_crc32_u8(rest, *p++);
  return ~rest;
}
#endif

}  // namespace

uint32_t crc32c_by_table(const void* data, size_t bytes, uint32_t before) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint32_t crc = ~before;
  while (bytes--) crc = crc >> 8 ^ kTable[(crc ^ *p++) & 0xff];
  return ~crc;
}

uint32_t crc32c(const void* data, size_t bytes, uint32_t before) {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
  if (has) return by_instruction(data, bytes, before);
#endif
  return crc32c_by_table(data, bytes, before);
}

}  // namespace warptape::distributed
