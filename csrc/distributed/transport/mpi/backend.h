// The backend of CPU tensors whose ranks mpirun started, over MPI's messages.
#pragma once

#include <list>

#include "distributed/transport/exchange_backend.h"
#include "distributed/transport/mpi/peers.h"

namespace warptape::distributed {

// Sends and receives. Whoever waits moves those of all groups of its process: a rank that waits in one group
// may be the one whose message another rank waits for in a second group.
class MpiMailbox {
 public:
  explicit MpiMailbox(MpiPeers& peers);
  ~MpiMailbox();
  MpiMailbox(const MpiMailbox&) = delete;
  MpiMailbox& operator=(const MpiMailbox&) = delete;
  std::shared_ptr<Transfer> post(const Collective& call, const std::string& site);
  bool done(Transfer& t);
  void wait(Transfer& t, Milliseconds timeout);
  void deliver();  // buffered sends, for a while
  static void progress_all();

 private:
  struct PendingTransfer;
  void progress();
  bool match(PendingTransfer& t);
  MpiPeers& peers_;
  std::mutex mutex_;
  std::list<std::shared_ptr<PendingTransfer>> under_way_;  // in the order of their posting
};

class MpiBackend final : public ExchangeBackend {
 public:
  MpiBackend(const std::shared_ptr<Store>& store, int rank, int size, Milliseconds timeout)
      : ExchangeBackend(rank, size), peers_(store, rank, size, timeout), mailbox_(peers_) {}
  ~MpiBackend() override { close(); }
  const char* name() const override { return "mpi"; }
  void run(const Collective& call, uint64_t sequence, const std::string& site,
           Milliseconds timeout) override {
    peers_.listen();
    ExchangeBackend::run(call, sequence, site, timeout);
  }
  std::shared_ptr<Transfer> post(const Collective& call, const std::string& site) override {
    return mailbox_.post(call, site);
  }
  bool done(Transfer& t) override { return mailbox_.done(t); }
  void wait(Transfer& t, Milliseconds timeout) override { mailbox_.wait(t, timeout); }
  void abort(const std::string& reason) override { peers_.abort(reason); }
  void explain(const std::string& error) override { error_ = error; }
  void close() override;
  std::string aborted() const override { return peers_.aborted(); }
  AbortReason abort_reason() const override { return peers_.abort_reason(); }

 private:
  void exchange(const Blocks& to, const Blocks& from) override;
  void check() const override { peers_.check(); }

  MpiPeers peers_;
  MpiMailbox mailbox_;
  std::string error_;  // after which this rank leaves
  bool closed_ = false;
};

}  // namespace warptape::distributed
