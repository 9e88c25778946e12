#include "distributed/store/store_client.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace warptape::distributed {
namespace {

constexpr size_t kMaxIdle = 8;
constexpr int kMaxClosed = 30;        // a server that is ours may drop us under a flood of others
constexpr Milliseconds kGrace{2000};  // the server's answer that the time is over may come so late
constexpr Milliseconds kFirstPause{10}, kLastPause{100};

Clock::time_point after(Milliseconds time) {
  return Clock::now() + std::clamp(time, Milliseconds(0), kLongestTimeout);
}

std::string seconds(Milliseconds t) { return message(static_cast<double>(t.count()) / 1000.0, " s"); }

// Appends what comes, at most up to `n` bytes in all. False, with errno (0: an end), when the connection or
// the time is over.
bool receive_up_to(const Socket& s, size_t n, std::string& in, File* file, Clock::time_point deadline) {
  char bytes[1 << 16];
  while (true) {
    ssize_t got = receive_some(s, bytes, std::min(sizeof bytes, n - in.size()), file);
    if (got > 0) {
      in.append(bytes, static_cast<size_t>(got));
      return true;
    }
    if (got == 0) errno = 0;
    if (got == 0 || !would_block(errno)) return false;
    if (!wait_for(s, POLLIN, deadline)) {
      errno = ETIMEDOUT;
      return false;
    }
  }
}

bool send_all(const Socket& s, std::string_view bytes, const File* file, Clock::time_point deadline) {
  for (size_t sent = 0; sent < bytes.size();) {
    ssize_t n = send_some(s, bytes.data() + sent, bytes.size() - sent, sent == 0 ? file : nullptr);
    if (n >= 0) {
      sent += static_cast<size_t>(n);
    } else if (!would_block(errno)) {
      return false;
    } else if (!wait_for(s, POLLOUT, deadline)) {
      errno = ETIMEDOUT;
      return false;
    }
  }
  return true;
}

std::string join(const std::vector<std::string>& keys) {
  std::string out;
  for (const std::string& k : keys) out += (out.empty() ? "'" : ", '") + k + "'";
  return out;
}

}  // namespace

// ---- connecting ----

ServedStore::ServedStore(Endpoint endpoint, Milliseconds timeout, std::shared_ptr<StoreServer> server,
                         int rank, bool patient)
    : endpoint_(std::move(endpoint)), server_(std::move(server)), pid_(::getpid()) {
  WT_CHECK(!endpoint_.unix_name.empty() || !endpoint_.secret.empty(), ValueError, "store: to reach ",
           describe(endpoint_), " over TCP takes a secret, which every rank must know; set WARPTAPE_SECRET");
  timeout_ = timeout;
  const auto deadline = after(timeout);
  idle_.push_back(open(deadline, patient));
  if (rank >= 0) {
    presence_ = open(deadline, patient);
    exchange(presence_, Message::request(Request::kHello, {}, rank), deadline);
  }
}

ServedStore::~ServedStore() {
  if (!presence_ || pid_ != ::getpid()) return;
  const std::string bytes = encode(Message::request(Request::kDisconnect, {}));
  send_some(presence_, bytes.data(), bytes.size(), nullptr);
}

// Patient: the server may not be there yet.
Socket ServedStore::open(Clock::time_point deadline, bool patient) const {
  const auto start = Clock::now();
  int closed = 0;
  for (Milliseconds pause = kFirstPause;; pause = std::min(pause * 3 / 2, kLastPause)) {
    std::string why;
    Socket s = try_connect(endpoint_, deadline, why);
    if (s) {
      if (shake_hands(s, std::min(deadline, after(Handshake::kTime)))) return s;
      why = "it closes the connection before a word is said";
      WT_CHECK(++closed < kMaxClosed, DistNetworkError, "store: ", describe(endpoint_), ": ", why,
               "; it is not a store of warptape, or too many unauthenticated connections are open");
    } else {
      WT_CHECK(patient, DistNetworkError, "store: the server at ", describe(endpoint_), " is gone: ", why,
               "; the process that serves it, usually rank 0, has ended");
    }
    WT_CHECK(Clock::now() + pause < deadline, DistNetworkError, "store: cannot connect to ",
             describe(endpoint_), ", tried for ",
             seconds(std::chrono::round<Milliseconds>(Clock::now() - start)), ": ", why,
             "; is the process that serves it, usually rank 0, running there, and do all ranks have the same "
             "address (MASTER_ADDR, MASTER_PORT, job id)?");
    sleep_for(pause);
  }
}

// False when the other end hung up before it could be told apart; throws when it is not our server.
bool ServedStore::shake_hands(const Socket& s, Clock::time_point deadline) const {
  const std::string where = describe(endpoint_);
  WT_CHECK(endpoint_.unix_name.empty() || unix_peer(s).uid == ::geteuid(), DistNetworkError, "store: ", where,
           " belongs to a process of another user; choose another job id or port");
  Handshake h;
  std::string in;
  auto next = [&](size_t n) {
    in.clear();
    while (in.size() < n) {
      if (receive_up_to(s, n, in, nullptr, deadline)) {
        // A line of another protocol may be shorter than what is waited for.
        size_t seen = n == Handshake::kGreeting ? std::min(in.size(), Handshake::kMagic.size()) : 0;
        WT_CHECK(Handshake::kMagic.starts_with(std::string_view(in).substr(0, seen)), DistNetworkError,
                 "store: what listens at ", where,
                 " is not a store of warptape (or of another version); is the port another program's?");
        continue;
      }
      WT_CHECK(errno != ETIMEDOUT || Clock::now() < deadline, DistNetworkError, "store: ", where,
               " accepts connections but does not answer; it is not a store of warptape, or its process is "
               "stopped");
      return false;
    }
    return true;
  };
  if (!next(Handshake::kGreeting)) return false;
  h.read_greeting(in);
  h.client_nonce = random_nonce();
  if (!send_all(s, h.answer(endpoint_.secret), nullptr, deadline) || !next(Handshake::kProof)) return false;
  WT_CHECK(in != Handshake::refusal(), DistNetworkError, "store: ", where,
           " refused the secret; every rank must have the same WARPTAPE_SECRET, and the address must be of "
           "this job");
  WT_CHECK(equal_digests(in, h.proof(endpoint_.secret, "server")), DistNetworkError, "store: ", where,
           " does not know this job's secret: it is the server of another job");
  return true;
}

// ---- calling ----

Socket ServedStore::take() {
  {
    std::lock_guard lock(mutex_);
    if (pid_ != ::getpid()) {
      idle_.clear();
      pid_ = ::getpid();
    }
    if (!idle_.empty()) {
      Socket s = std::move(idle_.back());
      idle_.pop_back();
      return s;
    }
  }
  return open(after(timeout_), false);
}

Message ServedStore::exchange(const Socket& s, const Message& request, Clock::time_point deadline) const {
  Message answer;
  File file;
  std::string in;
  bool sent = send_all(s, encode(request), &request.file, deadline);
  while (sent &&
         receive_up_to(s, sizeof(uint32_t) + kMaxMessage, in, shares_files() ? &file : nullptr, deadline)) {
    Decoded state = decode(in, file, answer);
    if (state == Decoded::kWhole) return answer;
    if (state == Decoded::kBroken) errno = EPROTO;
    if (state == Decoded::kBroken) break;
  }
  const int error = errno;
  WT_CHECK(error != ETIMEDOUT, DistNetworkError, "store: the server at ", describe(endpoint_),
           " does not answer; the process that serves it, usually rank 0, may be stopped");
  WT_CHECK(error != EMFILE, DistNetworkError,
           "store: the process has no file descriptor left for what the store hands over; raise the limit of "
           "open files (ulimit -n)");
  throw DistNetworkError(message("store: the server at ", describe(endpoint_),
                                 " is gone: ", error ? strerror(error) : "it closed the connection",
                                 "; the process that serves it, usually rank 0, has ended"));
}

Message ServedStore::call(const Message& request, Milliseconds wait) {
  Socket s = take();
  Message answer = exchange(s, request, after(wait) + kGrace);
  {
    std::lock_guard lock(mutex_);
    if (idle_.size() < kMaxIdle) idle_.push_back(std::move(s));
  }
  const std::string text = answer.texts.empty() ? std::string() : answer.texts[0];
  switch (static_cast<Answer>(answer.code)) {
    case Answer::kOk:
      return answer;
    case Answer::kTimeout:
      throw DistStoreError(
          message("store: waited ", seconds(wait), " for ", join(answer.texts), ", which no rank has set"));
    case Answer::kValueError:
      throw ValueError(text);
    case Answer::kNetworkError:
      throw DistNetworkError("in the process that serves the store: " + text);
  }
  throw DistNetworkError("store: the server answers something unknown; all ranks need the same version");
}

Message ServedStore::call_and_wait(Message request, Milliseconds timeout) {
  request.number = timeout.count();
  return call(request, timeout);
}

namespace {
std::string only_text(Message m) {
  WT_CHECK(m.texts.size() == 1, DistNetworkError, "store: the server's answer lacks its value");
  return std::move(m.texts[0]);
}
std::vector<std::string> copy(std::span<const std::string> keys) { return {keys.begin(), keys.end()}; }
}  // namespace

void ServedStore::set(const std::string& key, const std::string& value) {
  call(Message::request(Request::kSet, {key, value}));
}

std::string ServedStore::get(const std::string& key, Milliseconds timeout) {
  return only_text(call_and_wait(Message::request(Request::kGet, {key}), timeout));
}

int64_t ServedStore::add(const std::string& key, int64_t amount) {
  return call(Message::request(Request::kAdd, {key}, amount)).number;
}

std::string ServedStore::compare_set(const std::string& key, const std::string& expected,
                                     const std::string& desired) {
  return only_text(call(Message::request(Request::kCompareSet, {key, expected, desired})));
}

bool ServedStore::remove(const std::string& key) {
  return call(Message::request(Request::kRemove, {key})).number != 0;
}

bool ServedStore::check(std::span<const std::string> keys) {
  return call(Message::request(Request::kCheck, copy(keys))).number != 0;
}

void ServedStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  call_and_wait(Message::request(Request::kWait, copy(keys)), timeout);
}

int64_t ServedStore::size() { return call(Message::request(Request::kSize, {})).number; }

std::vector<std::string> ServedStore::list() { return call(Message::request(Request::kList, {})).texts; }

void ServedStore::append(const std::string& key, const std::string& value) {
  call(Message::request(Request::kAppend, {key, value}));
}

void ServedStore::push(const std::string& queue, const std::string& value) {
  call(Message::request(Request::kPush, {queue, value}));
}

std::string ServedStore::pop(const std::string& queue, Milliseconds timeout) {
  return only_text(call_and_wait(Message::request(Request::kPop, {queue}), timeout));
}

int64_t ServedStore::length(const std::string& queue) {
  return call(Message::request(Request::kLength, {queue})).number;
}

void ServedStore::check_shares_files() const {
  WT_CHECK(shares_files(), DistNetworkError, "store: ", describe(endpoint_),
           " is reached over TCP, which hands over no file descriptors; on one host meet at a Unix socket");
}

void ServedStore::set_file(const std::string& key, const File& file) {
  check_shares_files();
  Message m = Message::request(Request::kSetFile, {key});
  m.file = file.duplicate();
  call(m);
}

File ServedStore::get_file(const std::string& key, Milliseconds timeout) {
  check_shares_files();
  return call_and_wait(Message::request(Request::kGetFile, {key}), timeout).file;
}

std::shared_ptr<Store> connect_store(const Endpoint& endpoint, Milliseconds timeout,
                                     std::shared_ptr<StoreServer> server, int rank) {
  return std::make_shared<ServedStore>(endpoint, timeout, std::move(server), rank);
}

}  // namespace warptape::distributed
