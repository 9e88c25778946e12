// Values that backward will read and that are computed when it does, not kept from forward until then.
//
// Note [Promises]: what a program leaves to backward is held by the tape. Much of it is cheap to compute from
// what is held anyway (GELU's result from its argument). Such a value is promised: its storage stays deferred
// when the program has run, and has the call that computes it, whose inputs are kept. When backward asks for
// it in a region, the call is noted before the reader and becomes part of backward's program. Whoever else
// asks comes by force_storage(), and the call runs then.
// - Which values backward reads, and in which order, is learned (Fates): the first runs of a program keep
//   everything and watch what backward's regions read. A value that somebody else asked for is kept from
//   then on.
// - What is computed again is chosen by recompute(), on the program followed by readers that stand for
//   backward: see plan_promises().
// - A promise holds the tensors that it reads. Before one of these changes in place, or is given to code that
//   may change it unseen, what is promised from it is computed: whoever is about to change a storage that has
//   Storage::promise calls force_storage().
// - A promise that nobody can ask for any more goes with its storage.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "graph/ir/ir.h"

namespace warptape::graph {

// What became of a program's results after it had run, by the number of their memory.
struct Fates {
  struct Fate {
    uint32_t order = 0;  // in which backward read them
    bool early = false;  // somebody else read it, or it had to be there
  };
  std::map<uint32_t, Fate> read;
  std::set<uint32_t> exposed;  // memories that others see: nothing is computed from them later
  bool changed = false;        // since the last plan

  void add(uint32_t memory, bool by_backward);
};

// Of a promised memory: the call that computes it, whose output number `which` it is.
struct Recipe {
  uint32_t call, which, memory;
  std::vector<uint32_t> in;
};

// Which memories the program does not give but promises; marks those as its temporaries and what they are
// computed from as its results.
std::vector<Recipe> plan_promises(Program& program, const Fates& fates, int64_t least_bytes);
// The memories that the program computes by instructions which could run again, and that are seen outside.
std::vector<uint32_t> promisable(const Program& program, int64_t least_bytes);

// A tensor with the place of `t` on another storage.
inline Tensor on_storage(Ref<Storage> s, const Tensor& t) {
  return Tensor(
      Ref<TensorImpl>::adopt(new TensorImpl(std::move(s), t.dtype(), t.sizes(), t.strides(), t.offset())));
}

struct Promise {
  Call call;  // its output `which` is on a storage that stands for `of`
  uint32_t which;
  Storage* of;
  std::shared_ptr<Fates> fates;
  uint32_t memory;
  SmallVector<uint32_t, 3> versions;  // of what it reads
};

// The promises of a run of these calls, which work on memory of their own from now on where they write or
// read what is promised.
std::vector<std::unique_ptr<Promise>> make_promises(const std::vector<Recipe>& recipes,
                                                    const std::shared_ptr<Fates>& fates,
                                                    std::vector<Call>& calls);

class RegionMutex;
// Held by whoever gives, takes or computes promises, and for Fates; after a region's, before a Programs'.
RegionMutex& promise_mutex();

// From now on the storage, which is deferred, has its contents by the promise.
void give_promise(Storage& s, std::unique_ptr<Promise> promise);
// Notes in `fates` who reads the storage, which has contents.
void watch(Storage& s, std::shared_ptr<Fates> fates, uint32_t memory);
bool is_promised(const Storage& s);
// What the promise reads; nothing where there is none.
SmallVector<Tensor, 3> read_by_promise(const Storage& s);
// Takes the promise for a region to note its call, null where there is none. The storage stays deferred.
std::unique_ptr<Promise> take_promise(Storage& s);
// Computes what is promised.
void fulfil_promise(Storage& s);
// Computes it, and all that is promised from it.
WT_API void fulfil_promises_on(Storage& s);
// Gives a deferred storage that no region writes its contents.
void complete(Storage& s);
void promised_storage_gone(Storage& s);

}  // namespace warptape::graph
