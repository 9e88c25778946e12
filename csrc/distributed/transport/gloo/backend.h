// The backend of CPU tensors whose ranks are on several hosts, over gloo's messages.
#pragma once

#include <list>
#include <map>

#include "distributed/group/process_group.h"
#include "distributed/transport/exchange_backend.h"
#include "distributed/transport/gloo/mesh.h"

namespace warptape::distributed {

// Sends and receives.
class GlooMailbox {
 public:
  explicit GlooMailbox(Mesh& mesh) : mesh_(mesh) {}
  ~GlooMailbox();
  std::shared_ptr<Transfer> post(const Collective& call, const std::string& site);
  bool done(Transfer& t);
  void wait(Transfer& t, Milliseconds timeout);
  // Moves on receives that do not know yet what comes, unless another thread does it just now.
  void try_progress();
  bool has_unmatched();

 private:
  struct PendingTransfer;
  bool move(PendingTransfer& t, bool briefly);
  void expect_data(PendingTransfer& t, uint64_t number);
  void check_fits(PendingTransfer& t);
  bool has_room();
  bool delivered(PendingTransfer& t);
  Mesh& mesh_;
  std::mutex mutex_;  // of what follows; a transfer is moved under its own
  std::list<std::shared_ptr<PendingTransfer>> under_way_, buffered_;
  std::map<std::pair<int, int>, uint64_t> sent_, expected_;  // messages to and from a rank, by tag
};

class GlooBackend final : public ExchangeBackend {
 public:
  GlooBackend(const std::shared_ptr<Store>& store, int rank, int size, Milliseconds timeout);
  const char* name() const override { return "gloo"; }
  std::shared_ptr<Transfer> post(const Collective& call, const std::string& site) override {
    return mailbox_.post(call, site);
  }
  bool done(Transfer& t) override { return mailbox_.done(t); }
  void wait(Transfer& t, Milliseconds timeout) override { mailbox_.wait(t, timeout); }
  void abort(const std::string& reason) override { mesh_.abort(reason); }
  void explain(const std::string& error) override { mesh_.explain(error); }
  std::string aborted() const override { return mesh_.aborted(); }

 private:
  void exchange(const Blocks& to, const Blocks& from) override;
  void check() const override { mesh_.check(); }

  Mesh mesh_;
  GlooMailbox mailbox_;
  uint64_t step_ = 0;  // exchanges made; the same on all ranks
};

}  // namespace warptape::distributed
