// What the server of a store and its clients say to each other.
//
// Handshake, of fixed size: the server greets with a magic line and a nonce; the client answers with the
// line, its own nonce and a proof, HMAC(secret, "client" nonces); the server with its proof, HMAC(secret,
// "server" nonces), or zeros to refuse. Neither reads anything else before. (On a Unix socket the user id was
// checked before, and the secret may be empty.) The secret keeps strangers out; it does not hide what is
// said.
//
// Then the client asks and the server answers, one message each in turn: a waiting call has its connection to
// itself. A message is a length (u32), then code (u8), whether a file comes with it (u8), number (i64), and
// texts, each a length (u32) and bytes; numbers are little-endian. So nothing is ever queued for a client but
// the one answer it asked for.
#pragma once

#include "core/checksum/sha256.h"
#include "distributed/store/store.h"

namespace warptape::distributed {

struct Handshake {
  static constexpr std::string_view kMagic = "warptape store 1";
  static constexpr size_t kGreeting = kMagic.size() + sizeof(Digest);
  static constexpr size_t kAnswer = kGreeting + sizeof(Digest);
  static constexpr size_t kProof = sizeof(Digest);
  static constexpr Milliseconds kTime{5000};

  Digest server_nonce{}, client_nonce{};

  std::string greeting() const;
  std::string answer(const std::string& secret) const;
  std::string proof(const std::string& secret, const char* side) const;
  static std::string refusal() { return std::string(kProof, '\0'); }
  // Each takes exactly what the other side sent; false when it is not what it must be.
  bool read_greeting(std::string_view bytes);
  bool read_answer(std::string_view bytes, const std::string& secret);
};

enum class Request : uint8_t {
  kSet,
  kGet,
  kAdd,
  kCompareSet,
  kRemove,
  kCheck,
  kWait,
  kSize,
  kSetFile,
  kGetFile,
  kHello,
  kDisconnect,
  kList,
  kAppend,
  kPush,
  kPop,
  kLength
};
enum class Answer : uint8_t { kOk, kTimeout, kValueError, kNetworkError };

struct Message {
  uint8_t code = 0;
  int64_t number = 0;  // amount, timeout in ms, rank, sum, count, truth
  std::vector<std::string> texts;
  File file;

  static Message request(Request r, std::vector<std::string> texts, int64_t number = 0) {
    return {static_cast<uint8_t>(r), number, std::move(texts), {}};
  }
  static Message answer(Answer a, std::vector<std::string> texts = {}, int64_t number = 0) {
    return {static_cast<uint8_t>(a), number, std::move(texts), {}};
  }
};

inline constexpr size_t kMaxMessage = 64 << 20;
inline constexpr size_t kMaxTexts = 1
                                    << 20;  // keys that are waited for: empty ones take eight times a message
// With its length; ValueError when it is too large.
std::string encode(const Message& m);

enum class Decoded { kMore, kWhole, kBroken };
// The one message that `bytes` is; `file` came with it.
Decoded decode(std::string_view bytes, File& file, Message& out);

// The key that says why the one who said hello as `rank` left without a goodbye.
std::string gone_key(int64_t rank);

}  // namespace warptape::distributed
