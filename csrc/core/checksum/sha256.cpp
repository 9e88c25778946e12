#include "core/checksum/sha256.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "core/errors.h"

namespace warptape::distributed {
namespace {

constexpr size_t kBlock = 64;

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;
constexpr State kStart = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

// FIPS 180-4, section 6.2.2.
void compress(State& state, const unsigned char* block) {
  using std::rotr;
  uint32_t w[64];
  for (int t = 0; t < 16; ++t) {
    const unsigned char* p = block + 4 * t;
    w[t] = uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
  }
  for (int t = 16; t < 64; ++t) {
    uint32_t s0 = rotr(w[t - 15], 7) ^ rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    uint32_t s1 = rotr(w[t - 2], 17) ^ rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int t = 0; t < 64; ++t) {
    uint32_t s1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
    uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
    uint32_t s0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
    uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const State sum = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state.size(); ++i) state[i] += sum[i];
}

}  // namespace

Digest sha256(std::string_view data) {
  // One bit, zeros up to the last eight bytes of a block, and there the length in bits.
  std::string padded(data);
  padded += '\x80';
  padded.resize((padded.size() + 8 + kBlock - 1) / kBlock * kBlock);
  uint64_t bits = uint64_t{data.size()} * 8;
  for (size_t i = 1; i <= 8; ++i, bits >>= 8) padded[padded.size() - i] = static_cast<char>(bits & 0xff);

  State state = kStart;
  for (size_t at = 0; at < padded.size(); at += kBlock)
    compress(state, reinterpret_cast<const unsigned char*>(padded.data()) + at);
  Digest out;
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<char>(state[i / 4] >> (24 - 8 * (i % 4)) & 0xff);
  return out;
}

Digest hmac_sha256(std::string_view key, std::string_view data) {
  std::string inner(kBlock, '\0');
  if (key.size() > kBlock) {
    Digest hashed = sha256(key);
    std::copy(hashed.begin(), hashed.end(), inner.begin());
  } else {
    std::copy(key.begin(), key.end(), inner.begin());
  }
  std::string outer = inner;
  for (char& c : inner) c ^= 0x36;
  for (char& c : outer) c ^= 0x5c;
  Digest hashed = sha256(inner.append(data));
  return sha256(outer.append(hashed.data(), hashed.size()));
}

bool equal_digests(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char difference = 0;  // volatile: no early end
  for (size_t i = 0; i < a.size(); ++i) difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

Digest random_nonce() {
  Digest out;
  ssize_t n;
  do {
    n = ::getrandom(out.data(), out.size(), 0);
  } while (n < 0 && errno == EINTR);
  WT_CHECK(n == static_cast<ssize_t>(out.size()), DistNetworkError,
           "distributed: the system gives no random bytes: ", strerror(errno));
  return out;
}

}  // namespace warptape::distributed
