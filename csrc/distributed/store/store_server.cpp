#include "distributed/store/store_server.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace warptape::distributed {
namespace {

constexpr size_t kMaxStrangers = 256;
constexpr int kTurn = 64;  // accepts, or reads, before others have theirs
constexpr Clock::time_point kNever = Clock::time_point::max();
// Ids of what is watched beside connections, which count from kFirst.
enum : uint64_t { kStop, kUnix, kTcp, kFirst };

bool waits(Request r) {
  return r == Request::kGet || r == Request::kWait || r == Request::kGetFile || r == Request::kPop;
}
bool sets(Request r) {
  return r == Request::kSet || r == Request::kAdd || r == Request::kCompareSet || r == Request::kSetFile ||
         r == Request::kAppend || r == Request::kPush;
}
bool well_formed(const Message& m) {
  const size_t n = m.texts.size();
  const auto what = static_cast<Request>(m.code);
  if (static_cast<bool>(m.file) != (what == Request::kSetFile)) return false;
  switch (what) {
    case Request::kGet:
    case Request::kAdd:
    case Request::kRemove:
    case Request::kSetFile:
    case Request::kGetFile:
    case Request::kPop:
    case Request::kLength:
      return n == 1;
    case Request::kSet:
    case Request::kAppend:
    case Request::kPush:
      return n == 2;
    case Request::kCompareSet:
      return n == 3;
    case Request::kHello:
      return m.number >= 0;
    case Request::kCheck:
    case Request::kWait:
    case Request::kSize:
    case Request::kDisconnect:
    case Request::kList:
      return true;
  }
  return false;
}

}  // namespace

struct StoreServer::Connection {
  enum State { kStranger, kIdle, kWaiting };
  Id id;
  Socket socket;
  bool is_unix;
  pid_t pid = 0;  // over a Unix socket
  State state = kStranger;
  Handshake handshake{};
  std::string in{}, out{};
  size_t sent = 0;  // of `out`
  File in_file{}, out_file{};
  bool writing = false;               // epoll tells when there is room again
  bool broken = false, last = false;  // drop it; drop it when all is sent
  Message request{};                  // what it asked for
  std::string lacks{};                // the key that it is parked under
  Clock::time_point deadline = kNever;
  int64_t rank = -1;  // that it said hello as
};

StoreServer::StoreServer(Endpoint& endpoint) : secret_(endpoint.secret), last_id_(kFirst), pid_(::getpid()) {
  const bool on_tcp = !secret_.empty();
  WT_CHECK(on_tcp || !endpoint.unix_name.empty(), ValueError, "store: to serve ", describe(endpoint),
           " over TCP takes a secret, which every rank must know; set WARPTAPE_SECRET");
  if (!endpoint.unix_name.empty()) unix_ = listen_unix(endpoint.unix_name);
  if (on_tcp) tcp_ = listen_tcp(endpoint.host, endpoint.port);
  epoll_ = Socket([] { return ::epoll_create1(EPOLL_CLOEXEC); });
  stop_ = Socket([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  spare_ = File(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  WT_CHECK(epoll_ && stop_ && spare_, DistNetworkError,
           "store: cannot make what a server needs: ", strerror(errno));
  watch(stop_, kStop, EPOLLIN, true);
  if (unix_) watch(unix_, kUnix, EPOLLIN, true);
  if (tcp_) watch(tcp_, kTcp, EPOLLIN, true);
  thread_ = std::make_unique<std::thread>([this] { run(); });
}

StoreServer::~StoreServer() {
  if (::getpid() != pid_) {
    (void)thread_.release();  // a thread of the parent: nothing to join, nothing to free
    return;
  }
  ::eventfd_write(stop_.get(), 1);
  thread_->join();
}

void StoreServer::watch(const Socket& socket, Id id, uint32_t events, bool anew) {
  epoll_event e{};
  e.events = events;
  e.data.u64 = id;
  int rc = ::epoll_ctl(epoll_.get(), anew ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, socket.get(), &e);
  WT_CHECK(rc == 0, DistNetworkError, "store: cannot watch a socket: ", strerror(errno));
}

void StoreServer::run() {
  ::pthread_setname_np(::pthread_self(), "warptape-store");
  sigset_t all;  // signals are for the threads of the program
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  epoll_event events[kTurn];
  while (true) {
    int n = ::epoll_wait(epoll_.get(), events, kTurn, static_cast<int>(until_deadline().count()));
    for (int i = 0; i < n; ++i) {
      Id id = events[i].data.u64;
      if (id == kStop) return;
      if (id == kUnix || id == kTcp) {
        accept_all(id == kUnix ? unix_ : tcp_, id == kUnix);
      } else if (auto at = connections_.find(id); at != connections_.end()) {
        try {
          handle(*at->second, events[i].events);
        } catch (const std::exception&) {  // out of memory, say: that client's trouble
          at->second->broken = true;
        }
        if (at->second->broken) drop(id);
      }
    }
    pass_deadlines();
  }
}

Milliseconds StoreServer::until_deadline() const {
  if (deadlines_.empty()) return Milliseconds(-1);
  auto left = std::chrono::ceil<Milliseconds>(deadlines_.begin()->first - Clock::now());
  return std::clamp(left, Milliseconds(0), Milliseconds(60'000));
}

void StoreServer::pass_deadlines() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= Clock::now()) {
    Connection& c = *connections_.at(deadlines_.begin()->second);
    try {
      if (c.state == Connection::kStranger) {
        c.broken = true;
      } else {
        std::vector<std::string> missing = c.request.texts;
        std::erase_if(missing, [&](auto& key) { return holds(c.request, key); });
        finish(c, Message::answer(Answer::kTimeout, std::move(missing)));
      }
    } catch (const std::exception&) {
      c.broken = true;
    }
    if (c.broken) drop(c.id);
  }
}

// ---- coming and going ----

void StoreServer::accept_all(const Socket& listener, bool is_unix) {
  for (int i = 0; i < kTurn; ++i) {
    Socket s = accept_from(listener);
    if (s) {
      try {
        admit(std::move(s), is_unix);
      } catch (const std::exception&) {  // no memory, or gone already: it will come again
      }
    } else if (errno == EMFILE || errno == ENFILE) {
      turn_one_away(listener);
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

// Without a descriptor left, whoever knocks would keep the thread busy for ever.
void StoreServer::turn_one_away(const Socket& listener) {
  spare_ = File();
  accept_from(listener);
  spare_ = File(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

void StoreServer::admit(Socket socket, bool is_unix) {
  Peer peer;
  if (is_unix) {
    peer = unix_peer(socket);
    if (peer.uid != ::geteuid()) return;
  } else {
    tune_tcp(socket);
  }
  if (strangers_.size() >= kMaxStrangers) drop(*strangers_.begin());
  Id id = ++last_id_;
  auto made = std::make_unique<Connection>(Connection{id, std::move(socket), is_unix, peer.pid});
  Connection& c = *connections_.emplace(id, std::move(made)).first->second;
  try {
    watch(c.socket, id, EPOLLIN, true);
    strangers_.insert(id);
    set_deadline(c, Clock::now() + Handshake::kTime);
    c.handshake.server_nonce = random_nonce();
    reply(c, c.handshake.greeting());
  } catch (const std::exception&) {
    c.broken = true;
  }
  if (c.broken) drop(id);
}

void StoreServer::drop(Id id) {
  auto at = connections_.find(id);
  std::unique_ptr<Connection> c = std::move(at->second);
  connections_.erase(at);
  unpark(*c);
  set_deadline(*c, kNever);
  strangers_.erase(id);
  // A descriptor that some child still holds would otherwise go on reporting.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, c->socket.get(), nullptr);
  if (c->rank < 0) return;
  const std::string key = gone_key(c->rank);
  values_.set(key, message("rank ", c->rank, c->pid ? message(" (process ", c->pid, ")") : "",
                           " is gone: it was killed, or ended without leaving, or its connection broke"));
  changed(key);
}

void StoreServer::set_deadline(Connection& c, Clock::time_point when) {
  if (c.deadline != kNever) deadlines_.erase({c.deadline, c.id});
  if (when != kNever) deadlines_.insert({when, c.id});
  c.deadline = when;
}

// ---- a connection's turn ----

void StoreServer::handle(Connection& c, uint32_t events) {
  if (events & EPOLLOUT) flush(c);
  if (!(events & ~EPOLLOUT)) return;
  char bytes[1 << 16];
  for (int i = 0; i < kTurn && !c.broken; ++i) {
    size_t room = c.state == Connection::kStranger ? Handshake::kAnswer - c.in.size() : sizeof bytes;
    File file;
    ssize_t n = receive_some(c.socket, bytes, room, c.is_unix ? &file : nullptr);
    if (n < 0 && would_block(errno)) return;
    if (n <= 0 || (file && c.in_file)) {
      c.broken = true;
      return;
    }
    if (file) c.in_file = std::move(file);
    if (!take(c, {bytes, static_cast<size_t>(n)})) c.broken = true;
  }
}

bool StoreServer::take(Connection& c, std::string_view bytes) {
  // Whoever has not got its answer has nothing to say.
  if (c.state == Connection::kWaiting || c.sent < c.out.size() || c.last) return false;
  c.in += bytes;
  if (c.state == Connection::kStranger) return c.in.size() < Handshake::kAnswer || meet(c);
  Message request;
  switch (decode(c.in, c.in_file, request)) {
    case Decoded::kMore:
      return true;
    case Decoded::kBroken:
      return false;
    case Decoded::kWhole:
      c.in = std::string();
      return begin(c, std::move(request));
  }
  return false;
}

bool StoreServer::meet(Connection& c) {
  if (!c.in.starts_with(Handshake::kMagic)) return false;
  if (c.handshake.read_answer(c.in, secret_)) {
    strangers_.erase(c.id);
    set_deadline(c, kNever);
    c.state = Connection::kIdle;
    reply(c, c.handshake.proof(secret_, "server"));
  } else {
    c.last = true;
    reply(c, Handshake::refusal());
  }
  c.in = std::string();
  return true;
}

bool StoreServer::begin(Connection& c, Message request) {
  if (!well_formed(request)) return false;
  if (static_cast<Request>(request.code) == Request::kDisconnect) {
    c.rank = -1;
    return false;
  }
  c.request = std::move(request);
  attempt(c);
  return true;
}

bool StoreServer::holds(const Message& request, const std::string& key) {
  const auto what = static_cast<Request>(request.code);
  if (what == Request::kGetFile) return static_cast<bool>(values_.find_file(key));
  return what == Request::kPop ? values_.length(key) > 0 : values_.check({&key, 1});
}

// Answers the request, or parks it.
void StoreServer::attempt(Connection& c) {
  const auto what = static_cast<Request>(c.request.code);
  Message answer;
  try {
    if (waits(what))
      for (const std::string& key : c.request.texts)
        if (!holds(c.request, key)) return park(c, key);
    answer = execute(c);
  } catch (const ValueError& e) {
    answer = Message::answer(Answer::kValueError, {e.what()});
  } catch (const DistNetworkError& e) {
    answer = Message::answer(Answer::kNetworkError, {e.what()});
  }
  const std::string key = sets(what) ? c.request.texts[0] : std::string();
  finish(c, std::move(answer));
  if (sets(what)) changed(key);
}

void StoreServer::finish(Connection& c, Message answer) {
  unpark(c);
  set_deadline(c, kNever);
  c.state = Connection::kIdle;
  c.request = Message();
  std::string bytes = encode(answer);
  reply(c, std::move(bytes), std::move(answer.file));
}

Message StoreServer::execute(Connection& c) {
  const std::vector<std::string>& t = c.request.texts;
  const int64_t number = c.request.number;
  auto done = [](int64_t n = 0) { return Message::answer(Answer::kOk, {}, n); };
  switch (static_cast<Request>(c.request.code)) {
    case Request::kSet:
      values_.set(t[0], t[1]);
      return done();
    case Request::kGet:
      return Message::answer(Answer::kOk, {values_.find(t[0]).value()});
    case Request::kAdd:
      return done(values_.add(t[0], number));
    case Request::kCompareSet:
      return Message::answer(Answer::kOk, {values_.compare_set(t[0], t[1], t[2])});
    case Request::kRemove:
      return done(values_.remove(t[0]));
    case Request::kCheck:
      return done(values_.check(t));
    case Request::kWait:
      return done();  // they are all there
    case Request::kSize:
      return done(values_.size());
    case Request::kSetFile:
      values_.set_file(t[0], c.request.file);
      return done();
    case Request::kGetFile: {
      Message m = done();
      m.file = values_.find_file(t[0]);
      return m;
    }
    case Request::kHello:
      c.rank = number;
      return done();
    case Request::kList:
      return Message::answer(Answer::kOk, values_.list());
    case Request::kAppend:
      values_.append(t[0], t[1]);
      return done();
    case Request::kPush:
      values_.push(t[0], t[1]);
      return done();
    case Request::kPop:
      return Message::answer(Answer::kOk, {values_.pop(t[0], Milliseconds(0))});
    case Request::kLength:
      return done(values_.length(t[0]));
    case Request::kDisconnect:
      break;
  }
  return done();
}

// ---- waiting ----

void StoreServer::park(Connection& c, const std::string& key) {
  unpark(c);
  c.lacks = key;
  parked_[key].insert(c.id);
  if (c.state == Connection::kWaiting) return;
  c.state = Connection::kWaiting;
  const Milliseconds time(c.request.number);
  set_deadline(c, Clock::now() + std::clamp(time, Milliseconds(0), kLongestTimeout));
}

void StoreServer::unpark(Connection& c) {
  auto at = parked_.find(c.lacks);
  if (at == parked_.end()) return;
  at->second.erase(c.id);
  if (at->second.empty()) parked_.erase(at);
}

// Tries again those who lacked the key. One that is lost on the way may set a key itself, and so take others
// out of the list.
void StoreServer::changed(const std::string& key) {
  auto list = parked_.find(key);
  if (list == parked_.end()) return;
  const std::set<Id> ids = list->second;
  for (Id id : ids) {
    auto at = connections_.find(id);
    if (at == connections_.end() || at->second->state != Connection::kWaiting) continue;
    try {
      attempt(*at->second);
    } catch (const std::exception&) {
      at->second->broken = true;
    }
    if (at->second->broken) drop(id);
  }
}

// ---- writing ----

void StoreServer::reply(Connection& c, std::string bytes, File file) {
  c.out = std::move(bytes);
  c.sent = 0;
  c.out_file = std::move(file);
  flush(c);
}

void StoreServer::flush(Connection& c) {
  while (c.sent < c.out.size()) {
    const File* file = c.sent == 0 ? &c.out_file : nullptr;
    ssize_t n = send_some(c.socket, c.out.data() + c.sent, c.out.size() - c.sent, file);
    if (n >= 0) {
      c.sent += static_cast<size_t>(n);
    } else if (!would_block(errno)) {
      c.broken = true;
      return;
    } else if (errno != EINTR) {
      if (!c.writing) watch(c.socket, c.id, EPOLLIN | EPOLLOUT, false);
      c.writing = true;
      return;
    }
  }
  if (c.writing) watch(c.socket, c.id, EPOLLIN, false);
  c.writing = false;
  c.out = std::string();
  c.sent = 0;
  c.out_file = File();
  if (c.last) c.broken = true;
}

std::shared_ptr<StoreServer> serve_store(Endpoint& endpoint) {
  return std::make_shared<StoreServer>(endpoint);
}

}  // namespace warptape::distributed
