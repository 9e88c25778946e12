// The connections between the ranks of a group, by gloo over TCP: messages, and what becomes of them when
// something fails.
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <functional>
#include <thread>

#include "distributed/group/collective.h"

namespace warptape::distributed {

// A message on its way. Its memory stays as it is until it is over or this is destroyed.
struct MeshMessage {
  int peer = kAnyRank;  // of a message from whoever sends first: who that was, once it is over
  bool sending = false, over = false;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
};

class Mesh {
 public:
  using Describe = std::function<std::string()>;  // the call that a message belongs to, for errors

  // Collective: the ranks meet in `store` and connect.
  Mesh(std::shared_ptr<Store> store, int rank, int size, Milliseconds timeout);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;
  int rank() const { return rank_; }
  int size() const { return size_; }

  // Messages between two ranks match by slot, in order. Both ends must say the same number of bytes: gloo's
  // thread ends the process over a message that does not fit.
  MeshMessage send(int to, uint64_t slot, const void* data, int64_t bytes, const Describe& call);
  MeshMessage receive(int from, uint64_t slot, void* data, int64_t bytes, const Describe& call);
  // Whether it is over, at the latest after a while; `briefly` that is a millisecond.
  bool wait_a_while(MeshMessage& m, bool briefly, const Describe& call);
  void wait(std::vector<MeshMessage>& messages, Clock::time_point deadline, const Describe& call);
  // Between whiles of waiting: throws when the group was aborted, or the user interrupts.
  void poll();

  void abort(const std::string& reason);
  std::string aborted() const;
  void check() const;  // throws DistBackendError with the reason
  [[noreturn]] void fail(const std::string& reason);
  void explain(const std::string& error) { error_ = error; }
  std::string who(int rank) const { return who_[static_cast<size_t>(rank)]; }  // "process 12 on host a"
  // A rank that a message from any rank cannot come from, if that ends the wait for it: one whose connection
  // broke, or the last when all have left; else -1. Takes a millisecond for each.
  int check_peers();
  [[noreturn]] void lost(int peer, const char* why, const Describe& call);

  // Set by the backend: called while waiting; whether to do so every millisecond.
  std::function<void()> on_idle;
  std::function<bool()> in_haste;
  // What a rank is known to have called last, for messages.
  std::function<std::string(int rank)> last_call;

 private:
  // Why a rank ends: expected of every other rank from the start, so that it gets through to one that
  // waits for somebody else, whatever becomes of the store.
  struct ExitNotice {
    char kind = 0;  // 0: none yet
    char reason[2047] = {};
  };
  struct PeerWatch {
    ExitNotice notice;
    MeshMessage message;
    bool received = false, gone = false, left = false;
  };
  void connect(Milliseconds timeout);
  MeshMessage make(int peer, bool sending, const void* data, int64_t bytes);
  void poll_store();
  bool settle(MeshMessage& m, bool briefly);
  void read_notice(PeerWatch& v);
  void poll_exit_notices();
  void send_exit_notice(char kind, const std::string& reason);
  [[noreturn]] void time_out(std::vector<MeshMessage>& messages, const Describe& call);
  void wake_waiters();

  std::shared_ptr<Store> store_;
  int rank_, size_;
  std::vector<std::string> who_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::vector<PeerWatch> peers_;  // by rank
  std::mutex peers_mutex_;
  ExitNotice own_notice_;
  std::string error_;  // after which this rank leaves; set before its end
  mutable std::mutex reason_mutex_;
  std::string reason_;
  std::atomic<bool> failed_{false};
  // gloo's waits know no moment between "over" and "the connection is broken": this thread ends them now and
  // then, so that those who wait can look around.
  std::mutex waiting_mutex_;
  std::condition_variable waiting_changed_;
  std::vector<std::pair<MeshMessage*, bool>> waiting_;  // whether briefly
  bool asleep_ = false, stopping_ = false;
  std::thread waker_;
};

}  // namespace warptape::distributed
