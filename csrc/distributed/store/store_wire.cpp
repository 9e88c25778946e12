#include "distributed/store/store_wire.h"

#include <algorithm>

namespace warptape::distributed {
namespace {

std::string_view view(const Digest& d) { return {d.data(), d.size()}; }

Digest to_digest(std::string_view bytes) {
  Digest d;
  std::copy_n(bytes.begin(), d.size(), d.begin());
  return d;
}

template <class T>
void put(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i)
    out += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff);
}

// Takes numbers and bytes from the front; `ok` turns false when there are too few.
struct Reader {
  std::string_view rest;
  bool ok = true;

  std::string_view bytes(size_t n) {
    ok = ok && n <= rest.size();
    std::string_view out = ok ? rest.substr(0, n) : std::string_view();
    rest.remove_prefix(out.size());
    return out;
  }
  template <class T>
  T number() {
    uint64_t out = 0;
    size_t shift = 0;
    for (char c : bytes(sizeof(T))) {
      out |= uint64_t{static_cast<unsigned char>(c)} << shift;
      shift += 8;
    }
    return static_cast<T>(out);
  }
};

}  // namespace

std::string Handshake::greeting() const { return std::string(kMagic).append(view(server_nonce)); }

std::string Handshake::answer(const std::string& secret) const {
  return std::string(kMagic).append(view(client_nonce)).append(proof(secret, "client"));
}

std::string Handshake::proof(const std::string& secret, const char* side) const {
  Digest d = hmac_sha256(secret, std::string(side).append(view(server_nonce)).append(view(client_nonce)));
  return std::string(view(d));
}

bool Handshake::read_greeting(std::string_view bytes) {
  if (bytes.size() != kGreeting || !bytes.starts_with(kMagic)) return false;
  server_nonce = to_digest(bytes.substr(kMagic.size()));
  return true;
}

bool Handshake::read_answer(std::string_view bytes, const std::string& secret) {
  if (bytes.size() != kAnswer || !bytes.starts_with(kMagic)) return false;
  client_nonce = to_digest(bytes.substr(kMagic.size()));
  return equal_digests(bytes.substr(kGreeting), proof(secret, "client"));
}

std::string encode(const Message& m) {
  size_t size = 2 + sizeof(int64_t);
  for (const std::string& t : m.texts) size += sizeof(uint32_t) + t.size();
  WT_CHECK(size <= kMaxMessage, ValueError, "store: a key with its value may have ", kMaxMessage >> 20,
           " MiB, got ", size, " bytes; tensors and large data travel by collectives");
  std::string out;
  out.reserve(sizeof(uint32_t) + size);
  put(out, static_cast<uint32_t>(size));
  put(out, m.code);
  put(out, static_cast<uint8_t>(static_cast<bool>(m.file)));
  put(out, m.number);
  for (const std::string& t : m.texts) {
    put(out, static_cast<uint32_t>(t.size()));
    out += t;
  }
  return out;
}

Decoded decode(std::string_view bytes, File& file, Message& out) {
  Reader r{bytes};
  size_t size = r.number<uint32_t>();
  if (!r.ok) return Decoded::kMore;
  if (size > kMaxMessage || r.rest.size() > size) return Decoded::kBroken;
  if (r.rest.size() < size) return Decoded::kMore;
  out.code = r.number<uint8_t>();
  bool has_file = r.number<uint8_t>() != 0;
  out.number = r.number<int64_t>();
  out.texts.clear();
  while (r.ok && !r.rest.empty()) {
    if (out.texts.size() == kMaxTexts) return Decoded::kBroken;
    out.texts.emplace_back(r.bytes(r.number<uint32_t>()));
  }
  if (!r.ok || has_file != static_cast<bool>(file)) return Decoded::kBroken;
  out.file = std::move(file);
  return Decoded::kWhole;
}

std::string gone_key(int64_t rank) { return "gone/" + std::to_string(rank); }

}  // namespace warptape::distributed
