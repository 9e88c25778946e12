// Sockets that belong to this process alone, and what both ends of a connection need of the system.
#pragma once

#include <sys/types.h>

#include <type_traits>
#include <utility>

#include "distributed/store/store.h"

namespace warptape::distributed {

// An owned descriptor that no child has: exec closes it, and in a forked child its number stands for
// /dev/null. So a connection ends with the process that made it, whatever children that process leaves.
class Socket {
 public:
  Socket() = default;
  // Takes what `make` returns, and if that is no descriptor leaves errno as it was set. No fork falls between
  // the making and the noting.
  template <class Make>
    requires std::is_invocable_r_v<int, Make>
  explicit Socket(Make&& make) {
    lock_sockets();
    fd_ = make();
    note_and_unlock(fd_);
  }
  Socket(Socket&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Socket& operator=(Socket o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~Socket();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  static void lock_sockets();
  static void note_and_unlock(int fd);
  int fd_ = -1;
};

std::string describe(const Endpoint& endpoint);  // for messages

// Throw DistNetworkError: taken, not allowed, no such address. A TCP server on a loopback host is reached
// from this machine only; on any other it listens at every address, for a host's own name may resolve to
// anything.
Socket listen_unix(const std::string& name);
Socket listen_tcp(const std::string& host, int& port);
// What `listener` has waiting; empty, with errno, when that is nothing.
Socket accept_from(const Socket& listener);
void tune_tcp(const Socket& socket);
// One attempt; empty when nobody is there, and `why` says so.
Socket try_connect(const Endpoint& endpoint, Clock::time_point deadline, std::string& why);

struct Peer {
  uid_t uid = 0;
  pid_t pid = 0;
};
Peer unix_peer(const Socket& socket);

// Both never block, send no SIGPIPE, and return what send and recv return. A file travels with the first of
// the bytes; `file` may be null. A file that finds no room here fails with EMFILE.
ssize_t send_some(const Socket& socket, const char* data, size_t n, const File* file);
ssize_t receive_some(const Socket& socket, char* data, size_t n, File* file);
inline bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// Waits for events of poll(); false when the time is over. Can be interrupted, as can sleep_for.
bool wait_for(const Socket& socket, short events, Clock::time_point deadline);
void sleep_for(Milliseconds time);

}  // namespace warptape::distributed
