// Collectives of CPU tensors as exchanges, in which a rank sends each other rank a block and receives one.
// A backend that moves messages derives from it. What several ranks hold is combined in the order of ranks
// and rounded once, as by shared memory: the numbers are the same.
#pragma once

#include "distributed/group/collective_header.h"

namespace warptape::distributed {

class WT_API ExchangeBackend : public Backend {
 public:
  void run(const Collective& call, uint64_t sequence, const std::string& site, Milliseconds timeout) override;

 protected:
  using Blocks = std::vector<Block>;  // one for each rank
  ExchangeBackend(int rank, int size) : rank_(rank), size_(size), headers_(static_cast<size_t>(size)) {}
  // Moves the blocks until deadline(). Both ends know the sizes; an empty block is no message.
  virtual void exchange(const Blocks& to, const Blocks& from) = 0;
  virtual void check() const = 0;  // throws the reason if the group was aborted

  std::string describe_call() const;      // the one at work, for errors
  std::string last_call(int rank) const;  // "was last in call 3, ...": what a rank is known to have called
  Clock::time_point deadline() const { return deadline_; }
  // All memory that an exchange which failed may still use; the next one has other memory.
  std::shared_ptr<void> abandon_memory();

 private:
  void dispatch();
  void exchange_headers();
  Blocks none() const { return Blocks(static_cast<size_t>(size_)); }
  Blocks same(Block b) const { return Blocks(static_cast<size_t>(size_), b); }
  Blocks parts(Block b) const;
  Blocks scratch(int64_t bytes);
  void combine(void* out, const Blocks& from, Block mine);
  void broadcast(Block data);
  void all_reduce(Block data);
  void reduce(Block data);
  void combine_parts(Block data);
  void reduce_scatter(const Blocks& in, Block out);
  void check_counts(const Exchange& blocks);

  const int rank_, size_;
  std::vector<char> memory_;  // for what others send to be combined
  std::vector<CallHeader> headers_, arriving_;
  std::vector<int64_t> counts_;
  // The call at work.
  const Collective* call_ = nullptr;
  const std::string* site_ = nullptr;
  uint64_t sequence_ = 0;
  DType dtype_ = DType::Bool;
  Clock::time_point deadline_;
};

}  // namespace warptape::distributed
