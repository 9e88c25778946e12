// Values that backward reads and that are computed again when it does, not held from forward until then.
//
// Note [Rematerialization]: what a program leaves to backward is held by the tape. Much of it is cheap to
// compute from what is held anyway (GELU's result from its argument). Such a value is left out: its storage
// stays deferred when the program has run, and has a Remat: the call that computes it, whose inputs are held.
// When backward asks for the value in a region, that call is recorded before the reader and becomes part of
// backward's program. Whoever else asks comes by force_storage(), and the call runs then.
// - Which values backward reads, and in which order, is learned (UseSummary): the first runs of a program
//   leave out nothing and watch what backward's regions read. A value that somebody else asked for is held
//   from then on.
// - recompute() decides what is computed again, on the program followed by readers that stand for backward:
//   see plan_remats().
// - A Remat holds the tensors that it reads. Before one of these changes in place, or is handed to code that
//   may change it unseen, its dependents are computed: whoever is about to change a storage that has a
//   remat_state() calls force_storage().
// - A Remat goes with its storage.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "graph/ir/ir.h"

namespace warptape::graph {

// How a program's results were used after it had run, by the number of their memory.
struct UseSummary {
  struct Use {
    uint32_t order = 0;  // in which backward read them
    bool early = false;  // somebody else read it, or it had to be there
  };
  std::map<uint32_t, Use> read;
  std::set<uint32_t> exposed;  // memories that others see: nothing is computed from them later
  bool changed = false;        // since the last plan

  void add(uint32_t memory, bool by_backward);
};

// The call that computes a memory again, which is its output number `which`.
struct RematCall {
  uint32_t call, which, memory;
  std::vector<uint32_t> in;
};

// Which memories the program leaves out and later calls compute again; marks those as its temporaries and
// what they are computed from as its results.
std::vector<RematCall> plan_remats(Program& program, const UseSummary& use_summary,
                                   const ProgramOptions& options);
// The memories that the program computes by instructions which could run again, and that are seen outside.
std::vector<uint32_t> rematerializable(const Program& program, const ProgramOptions& options);

// A tensor with the geometry of `t` on another storage.
inline Tensor on_storage(Ref<Storage> s, const Tensor& t) {
  return Tensor(
      Ref<TensorImpl>::adopt(new TensorImpl(std::move(s), t.dtype(), t.sizes(), t.strides(), t.offset())));
}

struct Remat {
  Call call;  // its output `which` is on a storage that stands for `of`
  uint32_t which;
  Storage* of;
  std::shared_ptr<UseSummary> use_summary;
  uint32_t memory;
  SmallVector<uint32_t, 3> versions;  // of what it reads
};

// The Remats of a run of these calls, which from now on work on memory of their own where they write or read
// what a Remat computes.
std::vector<std::unique_ptr<Remat>> make_remats(const std::vector<RematCall>& remat_calls,
                                                const std::shared_ptr<UseSummary>& use_summary,
                                                std::vector<Call>& calls);

class RegionMutex;
// Guards all Remats and UseSummary. It is locked after a region's mutex and before a Programs'.
RegionMutex& remat_mutex();

// From now on the deferred storage gets its contents by `remat`.
void attach_remat(Storage& s, std::unique_ptr<Remat> remat);
// Records in `use_summary` who reads the storage, which has contents.
void watch(Storage& s, std::shared_ptr<UseSummary> use_summary, uint32_t memory);
bool is_rematerialized(const Storage& s);
// What the storage's Remat reads; nothing where there is none.
SmallVector<Tensor, 3> remat_inputs(const Storage& s);
// Takes the Remat off the storage, for a region to record its call; null where there is none. The storage
// stays deferred.
std::unique_ptr<Remat> detach_remat(Storage& s);
// Computes the storage's contents by its Remat.
void rematerialize(Storage& s);
// The same, and for all storages whose Remats read this one.
WT_API void rematerialize_dependents(Storage& s);
// Gives a deferred storage that no region writes its contents.
void complete(Storage& s);
void remat_storage_gone(Storage& s);

}  // namespace warptape::graph
