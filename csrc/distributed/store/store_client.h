// A store that another process, or another thread of this one, serves.
#pragma once

#include "distributed/store/socket.h"
#include "distributed/store/store_wire.h"

namespace warptape::distributed {

class StoreServer;

// A call takes a connection of its own from those that are idle, or makes one: so a thread that waits holds
// up no other, an interrupted or late call just closes its connection, and a forked child makes new ones.
class WT_API ServedStore final : public Store {
 public:
  ServedStore(Endpoint endpoint, Milliseconds timeout, std::shared_ptr<StoreServer> server, int rank = -1,
              bool patient = true);
  ~ServedStore() override;
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
  bool shares_files() const override { return !endpoint_.unix_name.empty(); }
  void set_file(const std::string& key, const File& file) override;
  File get_file(const std::string& key, Milliseconds timeout) override;
  const Endpoint& endpoint() const { return endpoint_; }

 private:
  Socket open(Clock::time_point deadline, bool patient) const;
  bool shake_hands(const Socket& socket, Clock::time_point deadline) const;
  Socket take();
  Message exchange(const Socket& socket, const Message& request, Clock::time_point deadline) const;
  Message call(const Message& request, Milliseconds wait);
  Message call(const Message& request) { return call(request, timeout_); }
  Message call_and_wait(Message request, Milliseconds timeout);
  void check_shares_files() const;

  Endpoint endpoint_;
  std::shared_ptr<StoreServer> server_;  // ends after the connections
  std::mutex mutex_;                     // of what follows
  std::vector<Socket> idle_;
  pid_t pid_;        // whose they are
  Socket presence_;  // what the server knows the rank by
};

}  // namespace warptape::distributed
