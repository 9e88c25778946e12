// The backend of CPU tensors whose ranks are on several hosts, over gloo's messages. What several ranks hold
// is combined in the order of ranks and rounded once, as by shared memory: the numbers are the same.
#pragma once

#include <list>
#include <map>

#include "distributed/collective_header.h"
#include "distributed/gloo/mesh.h"
#include "distributed/process_group.h"

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

class GlooBackend final : public Backend {
 public:
  GlooBackend(const std::shared_ptr<Store>& store, int rank, int size, Milliseconds timeout);
  const char* name() const override { return "gloo"; }
  void run(const Collective& call, uint64_t sequence, const std::string& site, Milliseconds timeout) override;
  std::shared_ptr<Transfer> post(const Collective& call, const std::string& site) override {
    return mailbox_.post(call, site);
  }
  bool done(Transfer& t) override { return mailbox_.done(t); }
  void wait(Transfer& t, Milliseconds timeout) override { mailbox_.wait(t, timeout); }
  void abort(const std::string& reason) override { mesh_.abort(reason); }
  void explain(const std::string& error) override { mesh_.explain(error); }
  std::string aborted() const override { return mesh_.aborted(); }

 private:
  using Blocks = std::vector<Block>;  // one for each rank
  void dispatch();
  void exchange_headers();
  void exchange(const Blocks& to, const Blocks& from);
  Blocks none() const { return Blocks(static_cast<size_t>(mesh_.size())); }
  Blocks same(Block b) const { return Blocks(static_cast<size_t>(mesh_.size()), b); }
  Blocks parts(Block b) const;
  Blocks scratch(int64_t bytes);
  void combine(void* out, const Blocks& from, Block mine);
  void broadcast(Block data);
  void all_reduce(Block data);
  void reduce(Block data);
  void combine_parts(Block data);
  void reduce_scatter(const Blocks& in, Block out);
  void check_counts(const Exchange& blocks);

  Mesh mesh_;
  GlooMailbox mailbox_;
  std::vector<char> memory_;  // for what others send to be combined
  uint64_t step_ = 0;         // exchanges made; the same on all ranks
  std::vector<CallHeader> headers_;
  // The call at work.
  const Collective* call_ = nullptr;
  const std::string* site_ = nullptr;
  uint64_t sequence_ = 0;
  DType dtype_ = DType::Bool;
  Clock::time_point deadline_;
  Mesh::Describe describe_;
};

}  // namespace warptape::distributed
