// The backend of ranks on one host, over shared memory.
#pragma once

#include <deque>
#include <list>

#include "distributed/transport/shm/shm_region.h"

namespace warptape::distributed {

// Sends and receives: messages cut into packets that go through the channels of the region. Whoever waits
// moves the packets of all transfers of its process, those of other groups too: a rank that waits in one
// group may be the one whose message another rank waits for in a second group, before it comes to the first.
class Mailbox {
 public:
  explicit Mailbox(Region& region);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;
  std::shared_ptr<Transfer> post(const Collective& call, const std::string& site);
  bool done(Transfer& t);
  void wait(Transfer& t, Milliseconds timeout);
  static void try_progress_every();  // of all groups, but for those where another thread does it just now

 private:
  struct PendingTransfer;
  struct Message;  // arrived before anyone asked for it
  void try_progress();
  void progress_all();
  bool push(PendingTransfer& sending);
  bool pull(int from);
  bool begin_message(int from, const PacketHeader& header);
  void check_fits(const PendingTransfer& receiving, int from, const PacketHeader& header);
  void finish(PendingTransfer& t);
  Region& region_;
  std::mutex mutex_;
  std::list<std::shared_ptr<PendingTransfer>> sends_, receives_;
  struct Arriving {  // where the next packet of a rank goes
    std::shared_ptr<PendingTransfer> receive;
    std::shared_ptr<Message> unexpected;
  };
  std::vector<Arriving> arriving_;
  std::vector<std::deque<std::shared_ptr<Message>>> unexpected_;
};

class ShmBackend final : public Backend {
 public:
  ShmBackend(Store& store, int rank, int size, Milliseconds timeout);
  const char* name() const override { return "shm"; }
  void run(const Collective& call, uint64_t sequence, const std::string& site, Milliseconds timeout) override;
  std::shared_ptr<Transfer> post(const Collective& call, const std::string& site) override {
    return mailbox_.post(call, site);
  }
  bool done(Transfer& t) override { return mailbox_.done(t); }
  void wait(Transfer& t, Milliseconds timeout) override { mailbox_.wait(t, timeout); }
  void abort(const std::string& reason) override { region_.abort(reason); }
  void explain(const std::string& error) override { region_.explain(error); }
  std::string aborted() const override { return region_.aborted(); }
  AbortReason abort_reason() const override { return region_.abort_reason(); }

 private:
  void dispatch();
  void round();
  uint32_t parity() const { return region_.rounds() & 1; }
  template <class Read>
  void share(Block mine, bool writes, Read&& read);
  void combine(void* out, const void* const* inputs, int64_t bytes);
  void broadcast(Block data);
  void all_reduce(Block data);
  void all_reduce_at_once(Block data);
  void reduce(Block data);
  void all_gather(Block in, const std::vector<Block>& out);
  void reduce_scatter(const std::vector<Block>& in, Block out);
  void exchange(const Exchange& blocks);
  int64_t exchange_counts(const Exchange& blocks);

  Region region_;
  Mailbox mailbox_;
  // The call at work.
  const Collective* call_ = nullptr;
  const std::string* site_ = nullptr;
  uint64_t sequence_ = 0;
  DType dtype_ = DType::Bool;
  Clock::time_point deadline_;
  bool compared_ = false;
};

}  // namespace warptape::distributed
