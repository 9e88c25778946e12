// The storages that a region's pending calls read and write.
#pragma once

#include <deque>
#include <vector>

#include "graph/ir/call.h"

namespace warptape::graph {

inline constexpr uint32_t kNoNumber = UINT32_MAX;

// What a region knows of a storage, which it holds.
struct Memory {
  enum class State : uint8_t { Read, Unwritten, Written };
  Ref<Storage> storage;
  State state = State::Read;
  bool registered = false;  // counted in reader_count()
  bool visible = true;      // somebody else holds the storage, also when the calls have run
  uint32_t depth = 0;       // of scopes, where it was made
  uint32_t references = 1;  // references to the storage: this one, and tensors of recorded calls
  uint32_t number = 0;      // its index among the region's
  int64_t base = 0;         // in bytes, of what came from outside: where the part that calls use begins
  Ref<Storage> detached{};  // what calls work on, where others may look at the storage meanwhile
};

// Note [Regions and threads]: any number of regions read one storage, so that what a region knows of it lies
// in a table of the region's own. One alone may write it: it is writer_of() the storage, from when that is
// created or the first such call is recorded until the calls have run. reader_count() is how many regions
// know the storage otherwise, so that a writer finds out about them. No thread that waits holds either:
// - Whoever needs a storage that another thread's region writes, or writes one that another's reads, moves
//   what is pending out of that region as a Batch and runs it, or waits for the thread that did so. A region
//   is locked while calls are recorded or moved out, not while they run. No thread waits with its own region
//   locked (Region::check_unlocked()): what is being recorded is taken back, and recorded or run later. A
//   thread that runs a batch waits for no other whose thread waits for it (Batch::wait()).
// - While calls run nobody finds their results: what others see is deferred until all is complete, and calls
//   work on storages of their own (Storage::detach()).
class Memories {
 public:
  Memory* find(const Storage& s) {
    if (list_.empty()) return nullptr;
    const Entry& e = entry_of(s);
    return e.epoch == epoch_ ? e.memory : nullptr;
  }
  const Memory* find(const Storage& s) const { return const_cast<Memories*>(this)->find(s); }
  // Of a tensor of a recorded call.
  Memory& of(const Tensor& t) { return *find(t.storage()); }
  const Memory& of(const Tensor& t) const { return *find(t.storage()); }
  Memory& add(Storage& s);
  void clear();

  bool empty() const { return list_.empty(); }
  size_t size() const { return list_.size(); }
  Memory& operator[](size_t k) { return list_[k]; }
  auto begin() { return list_.begin(); }
  auto end() { return list_.end(); }
  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }

  // The memories of the calls' tensors, in order; valid until the next call of it.
  const std::vector<Memory*>& of_operands(const std::vector<Call>& calls);
  // The calls are about to run: those tensors of theirs that are on visible storages which `writer` writes
  // get storages of their own. Lets go of what nobody else holds, but for what Remats will compute.
  void detach(const Deferral* writer, std::vector<Call>& calls, const std::vector<bool>& rematerialized);
  // The storage for which calls work on this one.
  Storage* visible_of(const Storage& detached) const;

 private:
  struct Entry {
    const Storage* storage = nullptr;
    Memory* memory = nullptr;
    uint64_t epoch = 0;  // entries of others are empty
  };
  Entry& entry_of(const Storage& s);
  void grow();

  std::deque<Memory> list_;
  std::vector<Entry> table_;  // open addressing, at most half full
  uint64_t epoch_ = 1;
  std::vector<Memory*> operands_;
};

}  // namespace warptape::graph
