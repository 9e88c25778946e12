// Looks after the calls of a group that lie in NCCL's stream, where the host waits for nothing: ends the
// group when one is late or NCCL reports an error, and compares through the store, beside the calls, whether
// the ranks make the same ones.
#pragma once

#include <atomic>
#include <deque>
#include <thread>

#include "distributed/group/collective_header.h"
#include "distributed/transport/nccl/communicator.h"

namespace warptape::distributed {

// A call in the stream.
struct NcclCall final : Transfer {
  ~NcclCall() override;
  std::string text() const;

  CallHeader header{};  // its tensors are the stream's, not ours
  uint64_t number = 0;  // among the group's collectives on this device; 0 for Send and Recv
  int rank = 0;         // of the caller
  int device = 0;
  bool host_waits = false;
  Milliseconds timeout{};
  Clock::time_point begin;
  std::function<std::string(bool well)> ended;
  cudaEvent_t end = nullptr;  // recorded when `issued`
  std::atomic<bool> issued{false}, over{false};
};

class Watchdog : public std::enable_shared_from_this<Watchdog> {
 public:
  Watchdog(std::shared_ptr<Store> store, int rank, int size);
  void watch(std::shared_ptr<Communicator> communicator);  // once
  void add(std::shared_ptr<NcclCall> call);                // before it is issued
  // Ends the group: the first reason holds.
  void fail(AbortReason kind, const std::string& reason);
  void check();                            // throws when the group has come to its end
  void explain(const std::string& error);  // the one after which this rank leaves
  std::string reason() const;
  AbortReason abort_reason() const;
  // Returns when no call is under way, then leaves the group.
  void close();

 private:
  struct Entry {
    uint64_t number, hash;
    CallHeader header;
  };
  using Entries = std::vector<Entry>;
  using Lock = std::unique_lock<std::mutex>;
  void poll_calls();
  void poll_store();
  std::string late(const NcclCall& call);
  void talk(const std::shared_ptr<NcclCall>& first, const Entries& mine, bool publish);
  void compare(const Entries& mine, int rank, const Entries& theirs);
  void check_peers(const NcclCall& call);
  Entries calls_of(int rank);

  const std::shared_ptr<Store> store_;
  const int rank_, size_;
  std::shared_ptr<Communicator> communicator_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<NcclCall>> under_way_;
  std::deque<Entry> entries_;  // of the last calls
  uint64_t calls_ = 0, compared_ = 0;
  Clock::time_point last_call_;
  std::string reason_, told_, error_;  // `told_` is for the other ranks, `error_` after what this one leaves
  AbortReason abort_reason_ = AbortReason::None;
  std::atomic<bool> failed_{false};
  bool closing_ = false, departure_published_ = false;
  std::vector<Entry> last_of_;  // what other ranks are known to have called last
  int next_looked_at_ = 0;      // of the ranks that may be lost
  std::thread watching_, talking_;
};

}  // namespace warptape::distributed
