// The ranks of a group as MPI connects them: messages, and what becomes of them when something fails.
#pragma once

#include <mpi.h>

#include <atomic>
#include <functional>

#include "distributed/group/collective_header.h"

namespace warptape::distributed {

// Note [MPI never waits]: every call of MPI is made with the library's mutex held and returns at once, but
// for the making of a communicator, to which all its ranks have come. So MPI_THREAD_SERIALIZED is enough,
// time limits hold, and a thread that waits does not keep others of its process from moving on.
struct MpiLibrary {
  std::mutex mutex;
  int process = 0;                          // that began it
  int rank = 0, size = 1;                   // in MPI_COMM_WORLD
  int largest_tag = 32767;                  // what the standard promises
  std::atomic<bool> failed{false};          // messages will never be over: MPI_Finalize would wait for them
  std::vector<std::shared_ptr<void>> kept;  // memory that MPI may write to until the process ends
};
// Begins MPI the first time, and ends it when the process exits. DistBackendError where it cannot begin.
MpiLibrary& mpi();

// A message on its way, in pieces that MPI can count. Its memory stays as it is until it is over.
struct MpiMessage {
  int peer = kAnyRank;
  std::vector<MPI_Request> pieces;
};

class MpiPeers {
 public:
  using Describe = std::function<std::string()>;  // the call that a message belongs to, for errors

  // Collective: the ranks meet in `store` and make a communicator.
  MpiPeers(std::shared_ptr<Store> store, int rank, int size, Milliseconds timeout);
  ~MpiPeers();
  MpiPeers(const MpiPeers&) = delete;
  MpiPeers& operator=(const MpiPeers&) = delete;
  int rank() const { return rank_; }
  int size() const { return size_; }
  std::string who(int rank) const { return who_[static_cast<size_t>(rank)]; }  // "process 12 on host a"

  // Messages between two ranks match by tag, in order.
  MpiMessage send(int to, int tag, const void* data, int64_t bytes);
  MpiMessage receive(int from, int tag, void* data, int64_t bytes);
  bool over(MpiMessage& m);
  // Takes a message that has arrived from a rank, or from any; `source` is whose it was.
  bool take(int from, int tag, void* data, int64_t bytes, int& source);

  // Calls `step` until it returns true. Throws when the group was aborted, the user interrupts, or one of
  // `missing()` has left or died (all, if `any`); past the deadline calls `late`, which throws.
  void until(const std::function<bool()>& step, const std::function<std::vector<int>()>& missing, bool any,
             Clock::time_point deadline, const Describe& call, const std::function<void()>& late);

  void leave(const std::string& error);
  void abort(const std::string& reason, AbortReason kind = AbortReason::Requested);
  std::string aborted() const;
  AbortReason abort_reason() const { return kind_; }
  // Now and then asks the store whether another rank aborted the group, for calls that wait for nobody.
  void listen();
  void check() const;  // throws DistBackendError with the reason
  [[noreturn]] void fail(const std::string& reason, AbortReason kind);

 private:
  void look(const std::vector<int>& missing, bool any, const Describe& call);

  std::shared_ptr<Store> store_, world_store_;
  const int rank_, size_;
  std::vector<std::string> who_;
  std::vector<std::string> gone_;  // keys of the job's store
  std::vector<char> left_;         // how often a look found that the rank has left
  MPI_Comm comm_ = MPI_COMM_NULL;
  mutable std::mutex reason_mutex_;
  std::string reason_;
  std::atomic<Clock::time_point> next_listen_{Clock::time_point()};
  std::atomic<AbortReason> kind_{AbortReason::None};
};

}  // namespace warptape::distributed
