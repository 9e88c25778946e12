// A small key-value store through which ranks find each other: keys and values are bytes. Waiting calls throw
// DistStoreError when the time is over and DistNetworkError when the one who holds the store is gone; they
// can be interrupted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.h"

namespace warptape::distributed {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
inline constexpr Milliseconds kDefaultTimeout = std::chrono::minutes(30);
inline constexpr Milliseconds kLongestTimeout = std::chrono::hours(24 * 365);  // Clock holds it from now on

// An owned file descriptor.
class WT_API File {
 public:
  File() = default;
  explicit File(int fd) : fd_(fd) {}
  File(File&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  File& operator=(File o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~File();
  File duplicate() const;  // DistNetworkError when the process has no descriptor left
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

class WT_API Store {
 public:
  virtual ~Store();

  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits for the key.
  virtual std::string get(const std::string& key, Milliseconds timeout) = 0;
  std::string get(const std::string& key) { return get(key, timeout_); }
  // Adds to the number that the key holds (0 if it is new; kept as decimal text) and returns the sum.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
  // Sets the key to `desired` if it holds `expected` (or is new, and `expected` is empty); returns what the
  // key holds then, `expected` when it is new and stays so.
  virtual std::string compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) = 0;
  virtual bool remove(const std::string& key) = 0;  // whether it was there
  virtual bool check(std::span<const std::string> keys) = 0;
  virtual void wait(std::span<const std::string> keys, Milliseconds timeout) = 0;
  virtual int64_t size() = 0;                                                 // keys held
  virtual std::vector<std::string> list() = 0;                                // these keys
  virtual void append(const std::string& key, const std::string& value) = 0;  // to what it holds, if anything

  // Queues have names of their own beside the keys. A value that is popped is gone; pop waits for one.
  virtual void push(const std::string& queue, const std::string& value) = 0;
  virtual std::string pop(const std::string& queue, Milliseconds timeout) = 0;
  virtual int64_t length(const std::string& queue) = 0;

  // Hands a descriptor to whoever asks for it, as often as they ask. Only between processes of one host:
  // `shares_files()`.
  virtual bool shares_files() const = 0;
  virtual void set_file(const std::string& key, const File& file) = 0;
  virtual File get_file(const std::string& key, Milliseconds timeout) = 0;

  Milliseconds timeout() const { return timeout_; }
  virtual void set_timeout(Milliseconds t) { timeout_ = t; }

 protected:
  Milliseconds timeout_ = kDefaultTimeout;
};

// In the memory of this process, for ranks that are its threads and for the server's side of a shared one.
class WT_API LocalStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Milliseconds timeout) override;
  int64_t add(const std::string& key, int64_t amount) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  bool remove(const std::string& key) override;
  bool check(std::span<const std::string> keys) override;
  void wait(std::span<const std::string> keys, Milliseconds timeout) override;
  int64_t size() override;
  std::vector<std::string> list() override;
  void append(const std::string& key, const std::string& value) override;
  void push(const std::string& queue, const std::string& value) override;
  std::string pop(const std::string& queue, Milliseconds timeout) override;
  int64_t length(const std::string& queue) override;
  bool shares_files() const override { return true; }
  void set_file(const std::string& key, const File& file) override;
  File get_file(const std::string& key, Milliseconds timeout) override;
  // What get() would return now, if anything.
  std::optional<std::string> find(const std::string& key);
  File find_file(const std::string& key);
  // Ends all waiting, now and later, with a DistNetworkError: a rank of the simulated world has failed.
  void close(const std::string& reason);

 private:
  template <class Ready>
  void wait_until(std::unique_lock<std::mutex>& lock, Milliseconds timeout, const std::string& what,
                  Ready ready);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, File> files_;
  std::map<std::string, std::deque<std::string>> queues_;  // none of them empty
  std::string closed_;
};

// Another store's keys under a prefix.
class WT_API PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> store);
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Milliseconds timeout) override;
  int64_t add(const std::string& key, int64_t amount) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  bool remove(const std::string& key) override;
  bool check(std::span<const std::string> keys) override;
  void wait(std::span<const std::string> keys, Milliseconds timeout) override;
  int64_t size() override;
  std::vector<std::string> list() override;
  void append(const std::string& key, const std::string& value) override;
  void push(const std::string& queue, const std::string& value) override;
  std::string pop(const std::string& queue, Milliseconds timeout) override;
  int64_t length(const std::string& queue) override;
  bool shares_files() const override;
  void set_file(const std::string& key, const File& file) override;
  File get_file(const std::string& key, Milliseconds timeout) override;
  const std::shared_ptr<Store>& underlying() const { return store_; }

 private:
  std::string full(const std::string& key) const { return prefix_ + "/" + key; }
  std::vector<std::string> full(std::span<const std::string> keys) const;
  std::string prefix_;
  std::shared_ptr<Store> store_;
};

// Gives a key its first value, and waits no longer than `limit` for it: the rank that serves the store may be
// stopped or gone. Throws nothing.
WT_API void set_first(const std::shared_ptr<Store>& store, const std::string& key, const std::string& value,
                      Milliseconds limit);

// Where a store is served: on one host an abstract Unix socket by name (peers are checked by user id), across
// hosts a TCP port (both sides prove the secret before anything else is read). With a name and a secret it is
// served at both, and a client takes the name.
struct Endpoint {
  std::string unix_name;  // used when not empty
  std::string host;
  int port = 0;  // 0: any; the server says which it took
  std::string secret;
};
// Whether the host is this machine by its very spelling, so that a server there is seen by nobody else.
WT_API bool is_loopback(const std::string& host);

// Serves a LocalStore from a thread until it is destroyed.
class StoreServer;
// Listens, throwing DistNetworkError when the address is taken. The port taken is put into `endpoint`.
WT_API std::shared_ptr<StoreServer> serve_store(Endpoint& endpoint);
// Connects, trying again until the time is over; keeps `server` (may be null) alive as long as itself. With a
// rank, the server sets the key "gone/<rank>" to a reason when this process ends or the connection breaks
// before the store is destroyed.
WT_API std::shared_ptr<Store> connect_store(const Endpoint& endpoint, Milliseconds timeout,
                                            std::shared_ptr<StoreServer> server, int rank = -1);

}  // namespace warptape::distributed
