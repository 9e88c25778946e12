#include "distributed/store/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <set>
#include <thread>

#include "kernels/runtime/interrupt.h"

namespace warptape::distributed {
namespace {

struct Sockets {
  std::mutex mutex;
  std::set<int> fds;
};

// Never destroyed: a server may run until the process is gone.
Sockets& sockets() {
  static Sockets& all = *new Sockets;
  return all;
}

// In the child. Numbers stay taken, so that whoever still holds one closes nothing of somebody else.
void leave_sockets() {
  int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd : sockets().fds) ::dup3(null, fd, O_CLOEXEC);
  ::close(null);
  sockets().mutex.unlock();
}

void watch_forks() {
  static const int once =
      ::pthread_atfork([] { sockets().mutex.lock(); }, [] { sockets().mutex.unlock(); }, leave_sockets);
  (void)once;
}

constexpr int kKind = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int kBacklog = 4096;  // the system takes the smaller of this and its own limit

// The length of an abstract name is part of it.
std::pair<sockaddr_un, socklen_t> unix_address(const std::string& name) {
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  WT_CHECK(name.size() < sizeof a.sun_path, ValueError, "store: the socket's name '", name,
           "' is too long; at most ", sizeof a.sun_path - 1, " bytes");
  std::copy(name.begin(), name.end(), a.sun_path + 1);
  return {a, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

struct Addresses {
  addrinfo* list = nullptr;
  int error = 0;
  Addresses(const std::string& host, int port, int family, int flags) {
    addrinfo hints{};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags | AI_NUMERICSERV;
    error = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &list);
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  ~Addresses() {
    if (list) ::freeaddrinfo(list);
  }
  std::string why() const { return error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error); }
};

void set_option(const Socket& s, int level, int option, int value) {
  ::setsockopt(s.get(), level, option, &value, sizeof value);
}

// Empty, with errno, when the address cannot be had.
Socket listen_at(const addrinfo& a) {
  Socket s([&] { return ::socket(a.ai_family, kKind, 0); });
  if (!s) return s;
  set_option(s, SOL_SOCKET, SO_REUSEADDR, 1);
  if (a.ai_family == AF_INET6) set_option(s, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(s.get(), a.ai_addr, a.ai_addrlen) == 0 && ::listen(s.get(), kBacklog) == 0) return s;
  int error = errno;
  s = Socket();
  errno = error;
  return s;
}

int port_of(const Socket& s) {
  sockaddr_storage a{};
  socklen_t n = sizeof a;
  ::getsockname(s.get(), reinterpret_cast<sockaddr*>(&a), &n);
  return ntohs(a.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(a).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(a).sin_port);
}

// Whoever tries a free port of this machine often enough is given that port for its own end, and meets
// itself.
bool met_itself(const Socket& s) {
  sockaddr_storage a{}, b{};
  socklen_t n = sizeof a, m = sizeof b;
  return ::getsockname(s.get(), reinterpret_cast<sockaddr*>(&a), &n) == 0 &&
         ::getpeername(s.get(), reinterpret_cast<sockaddr*>(&b), &m) == 0 && n == m &&
         std::memcmp(&a, &b, n) == 0;
}

// Finishes what connect() began; 0 or an error number.
int finish_connect(const Socket& s, const sockaddr* address, socklen_t size, Clock::time_point deadline) {
  if (::connect(s.get(), address, size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for(s, POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t n = sizeof error;
  ::getsockopt(s.get(), SOL_SOCKET, SO_ERROR, &error, &n);
  return error;
}

}  // namespace

void Socket::lock_sockets() {
  watch_forks();
  sockets().mutex.lock();
}

void Socket::note_and_unlock(int fd) {
  if (fd >= 0) sockets().fds.insert(fd);
  sockets().mutex.unlock();
}

Socket::~Socket() {
  if (fd_ < 0) return;
  std::lock_guard lock(sockets().mutex);
  sockets().fds.erase(fd_);
  ::close(fd_);
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos);
}

std::string describe(const Endpoint& e) {
  if (!e.unix_name.empty()) return "the Unix socket @" + e.unix_name;
  return (e.host.find(':') == std::string::npos ? e.host : "[" + e.host + "]") + ":" + std::to_string(e.port);
}

Socket listen_unix(const std::string& name) {
  auto [address, size] = unix_address(name);
  Socket s([] { return ::socket(AF_UNIX, kKind, 0); });
  if (s && ::bind(s.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 &&
      ::listen(s.get(), kBacklog) == 0)
    return s;
  WT_CHECK(errno != EADDRINUSE, DistNetworkError, "store: the Unix socket @", name,
           " is taken: another process serves a store under this name; give each job its own id or port, or "
           "end the other job");
  throw DistNetworkError(message("store: cannot listen on the Unix socket @", name, ": ", strerror(errno)));
}

Socket listen_tcp(const std::string& host, int& port) {
  WT_CHECK(port >= 0 && port <= 65535, ValueError, "store: expected a port from 0 to 65535, got ", port);
  const Endpoint here{.unix_name = {}, .host = host, .port = port, .secret = {}};
  Addresses named(host, port, AF_UNSPEC, 0);
  Addresses any6("", port, AF_INET6, AI_PASSIVE), any4("", port, AF_INET, AI_PASSIVE);
  WT_CHECK(named.list, DistNetworkError, "store: cannot listen on ", describe(here), ": ", named.why());
  Socket s;
  if (is_loopback(host)) {
    // IPv4 first: whoever says localhost may mean either, and tries both.
    const addrinfo* a = named.list;
    while (a->ai_next && a->ai_family != AF_INET) a = a->ai_next;
    s = listen_at(*a);
  } else {
    if (any6.list) s = listen_at(*any6.list);
    if (!s && (!any6.list || errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL) && any4.list)
      s = listen_at(*any4.list);
  }
  WT_CHECK(s || errno != EADDRINUSE, DistNetworkError, "store: port ", port,
           " is taken: another process listens on ", describe(here),
           "; choose another MASTER_PORT, or end that process");
  WT_CHECK(s, DistNetworkError, "store: cannot listen on ", describe(here), ": ", strerror(errno));
  port = port_of(s);
  return s;
}

Socket accept_from(const Socket& listener) {
  return Socket([&] { return ::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
}

// Small messages go at once, and a host that vanished is noticed within half a minute.
void tune_tcp(const Socket& s) {
  set_option(s, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(s, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(s, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(s, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(s, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

Socket try_connect(const Endpoint& e, Clock::time_point deadline, std::string& why) {
  if (!e.unix_name.empty()) {
    auto [address, size] = unix_address(e.unix_name);
    Socket s([] { return ::socket(AF_UNIX, kKind, 0); });
    int error = s ? finish_connect(s, reinterpret_cast<sockaddr*>(&address), size, deadline) : errno;
    if (error == 0) return s;
    why = strerror(error);
    return Socket();
  }
  Addresses addresses(e.host, e.port, AF_UNSPEC, 0);
  if (!addresses.list) why = addresses.why();
  for (const addrinfo* a = addresses.list; a; a = a->ai_next) {
    Socket s([&] { return ::socket(a->ai_family, kKind, 0); });
    int error = s ? finish_connect(s, a->ai_addr, a->ai_addrlen, deadline) : errno;
    if (error == 0 && !met_itself(s)) {
      tune_tcp(s);
      return s;
    }
    why = strerror(error ? error : ECONNREFUSED);
  }
  return Socket();
}

Peer unix_peer(const Socket& s) {
  ucred c{};
  socklen_t n = sizeof c;
  WT_CHECK(::getsockopt(s.get(), SOL_SOCKET, SO_PEERCRED, &c, &n) == 0, DistNetworkError,
           "store: cannot see who is at the other end: ", strerror(errno));
  return {c.uid, c.pid};
}

namespace {
union Control {
  char bytes[CMSG_SPACE(sizeof(int))];
  cmsghdr align;
};
}  // namespace

ssize_t send_some(const Socket& s, const char* data, size_t n, const File* file) {
  iovec part{const_cast<char*>(data), n};
  Control control{};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  if (file && *file) {
    m.msg_control = control.bytes;
    m.msg_controllen = sizeof control.bytes;
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    int fd = file->get();
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  return ::sendmsg(s.get(), &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t receive_some(const Socket& s, char* data, size_t n, File* file) {
  iovec part{data, n};
  Control control{};
  msghdr m{};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  if (file) {
    m.msg_control = control.bytes;
    m.msg_controllen = sizeof control.bytes;
  }
  ssize_t got = ::recvmsg(s.get(), &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return got;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(sizeof(int)))
      continue;
    int fd;
    std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
    *file = File(fd);
  }
  if (m.msg_flags & MSG_CTRUNC) {
    errno = EMFILE;
    return -1;
  }
  return got;
}

bool wait_for(const Socket& s, short events, Clock::time_point deadline) {
  while (true) {
    kernels::cpu::poll_interrupt();
    auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now());
    pollfd p{s.get(), events, 0};
    int n = ::poll(&p, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 50)));
    if (n > 0) return true;
    if (left.count() <= 0) return false;
  }
}

void sleep_for(Milliseconds time) {
  for (; time.count() > 0; time -= Milliseconds(50)) {
    std::this_thread::sleep_for(std::min(time, Milliseconds(50)));
    kernels::cpu::poll_interrupt();
  }
}

}  // namespace warptape::distributed
