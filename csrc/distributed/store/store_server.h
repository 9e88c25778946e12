// One thread that serves a LocalStore to the clients of an endpoint.
#pragma once

#include <map>
#include <set>
#include <thread>
#include <unordered_map>

#include "distributed/store/socket.h"
#include "distributed/store/store_wire.h"

namespace warptape::distributed {

// Note [Serving]: the thread never waits for anyone but epoll. A client's request that cannot be answered yet
// is parked under the first key it lacks and tried again when that key is set. Who has not proven the secret
// is a stranger: at most kMaxStrangers of them, for Handshake::kTime, with a buffer of Handshake::kAnswer.
class WT_API StoreServer {
 public:
  explicit StoreServer(Endpoint& endpoint);
  ~StoreServer();  // closes every connection; harmless in a forked child, which has neither thread nor
                   // sockets
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

 private:
  struct Connection;
  using Id = uint64_t;  // counts up, so that the oldest stranger is the first, and no id comes twice

  void watch(const Socket& socket, Id id, uint32_t events, bool anew);
  void run();
  Milliseconds until_deadline() const;
  void pass_deadlines();
  void accept_all(const Socket& listener, bool is_unix);
  void turn_one_away(const Socket& listener);
  void admit(Socket socket, bool is_unix);
  void drop(Id id);

  void handle(Connection& c, uint32_t events);
  bool take(Connection& c, std::string_view bytes);  // false: not what the protocol allows
  bool meet(Connection& c);
  bool begin(Connection& c, Message request);
  bool holds(const Message& request, const std::string& key);
  void attempt(Connection& c);
  void finish(Connection& c, Message answer);
  Message execute(Connection& c);
  void park(Connection& c, const std::string& key);
  void unpark(Connection& c);
  void changed(const std::string& key);
  void reply(Connection& c, std::string bytes, File file = {});
  void flush(Connection& c);
  void set_deadline(Connection& c, Clock::time_point when);

  std::string secret_;
  LocalStore values_;
  Socket epoll_, stop_, unix_, tcp_;
  File spare_;  // given up for a moment when there is no descriptor left
  std::unordered_map<Id, std::unique_ptr<Connection>> connections_;
  std::set<Id> strangers_;
  std::map<std::string, std::set<Id>> parked_;  // by the key they lack
  std::set<std::pair<Clock::time_point, Id>> deadlines_;
  Id last_id_ = 0;
  pid_t pid_;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace warptape::distributed
