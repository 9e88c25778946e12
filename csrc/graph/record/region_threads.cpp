// What regions of several threads know of one storage: see Note [Regions and threads].
#include "autograd/engine.h"
#include "graph/record/scope.h"

namespace warptape::graph {
namespace {

struct Regions {
  std::mutex mutex;
  std::vector<Region*> all, unused;  // unused: of threads that ended
};

Regions& regions() {
  static auto* const known = new Regions;  // threads may end after the process's static objects
  return *known;
}

}  // namespace

void CountsByName::add(const char* name) {
  const std::lock_guard lock(mutex_);
  ++counts_[name];
}

std::map<std::string, int64_t> CountsByName::all() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

bool (*seen_by_others)(const Storage& s) = [](const Storage& s) { return s.exported() && !s.shared(); };

Region& Region::of_thread() {
  struct Lease {
    Region* region = nullptr;
    Lease() {
      const std::lock_guard lock(regions().mutex);
      if (regions().unused.empty()) {
        region = regions().all.emplace_back(new Region);
      } else {
        region = regions().unused.back();
        regions().unused.pop_back();
      }
    }
    ~Lease() {
      region->compiled_.reset();
      region->recording_.reset();
      region->sample_ = {};
      const std::lock_guard lock(regions().mutex);
      regions().unused.push_back(region);
    }
  };
  static PerThread<Lease> lease;
  return *lease->region;
}

void Region::refuse_busy(Storage& s) const {
  if (!scopes_.empty()) throw NotDeferrable{};
  throw Busy{Ref<Storage>::share(&s)};
}

// `promised`: what computes it is about to be noted; else it has its contents now.
Memory& Region::memory_of(Storage& s, bool promised) {
  if (s.exported() && seen_by_others(s)) exposed_ = true;
  if (Memory* m = memories_.find(s)) return *m;
  // This order, and the other one in claim(): one of two threads finds out about the other.
  s.readers.fetch_add(1);
  if (s.writer.load()) {
    s.readers.fetch_sub(1);
    refuse_busy(s);
  }
  if (s.device().is_cuda()) note_stream(s.device());
  Memory& m = memories_.add(s);
  m.registered = true;
  m.depth = static_cast<uint32_t>(scopes_.size());
  if (s.is_deferred() && !promised) complete(s);
  return m;
}

// Of what a call writes: its memory is put aside, so that nobody reads it before the call has run.
Memory& Region::claim(Storage& s, bool promised) {
  Memory& m = memory_of(s, promised);
  if (m.state != Memory::State::Read) return m;
  if (s.writer.load(std::memory_order_relaxed) != this) {
    Deferral* nobody = nullptr;
    if (!s.writer.compare_exchange_strong(nobody, this)) refuse_busy(s);
    if (s.readers.load() != 1) {
      s.writer.store(nullptr);
      refuse_busy(s);
    }
    if (!promised) settle_promises(s);
  }
  s.put_aside();
  return m;
}

bool Region::knows(const Tensor& t) {
  const RegionLock lock(mutex_);
  return t.defined() && memories_.find(t.storage());
}

bool Region::is_unwritten(const Storage& s) const {
  const Memory* m = memories_.find(s);
  return m && m->state == Memory::State::Unwritten;
}

size_t Region::held(const Storage& s) const {
  const RegionLock lock(mutex_);
  const Memory* m = memories_.find(s);
  return m ? m->held : 0;
}

// Before a call is noted that reads the tensor: what another thread's region has pending for it runs, and
// what computes it, if it is promised, is noted as well. Not inside of a scope, which may take back what it
// notes.
void Region::meet(const Tensor& t) {
  if (!t.defined()) return;
  Storage& s = t.storage();
  const Deferral* writer = s.writer.load(std::memory_order_relaxed);
  if (writer && writer != this && !mutex_.is_mine()) force_storage(s);
  if (!s.promise.load(std::memory_order_relaxed)) return;
  if (scopes_.empty() && !recording_)
    note_promise(t);
  else if (is_promised(s))
    fulfil_promise(s);
}

void Region::note_promise(const Tensor& t) {
  Storage& s = t.storage();
  for (const Tensor& input : read_by_promise(s)) meet(input);
  note([&] {
    if (is_promised(s)) {
      for (const Tensor& input : read_by_promise(s)) memory_of(input.storage());
      claim(s, true);
    }
    std::unique_ptr<Promise> promise = take_promise(s);
    if (!promise) return;
    for (const Tensor& own : promise->call.out) claim(own.storage(), true);
    Call& call = calls_.emplace_back(std::move(promise->call));
    call.in_backward = in_backward_pass();
    const auto in = std::exchange(call.in, {}), out = std::exchange(call.out, {});
    for (const Tensor& from : in) read(call, from);
    for (size_t k = 0; k < out.size(); ++k)
      write(call, k == promise->which ? on_storage(t->storage, out[k]) : out[k]);
  });
}

// Before somebody writes to the storage.
void Region::settle_promises(Storage& s) {
  if (s.promise.load(std::memory_order_relaxed)) fulfil_promises_on(s);
}

// No thread waits for another's region with its own locked.
void Region::check_may_wait() const {
  const Region& own = of_thread();
  if (this == &own || !own.mutex_.is_mine()) return;
  if (!own.scopes_.empty()) throw NotDeferrable{};
  throw Error(
      "compile: an op of a compiled function that runs now reads or writes a tensor, not an argument of it, "
      "which a compiled function of another thread is to write or to read: let that one end before");
}

// Runs what is pending; the lock is held, and the region knows the storage.
void Region::run_for(Storage& s) {
  if (!is_own()) {
    interrupted_ = true;
    return run_pending();
  }
  if (!scopes_.empty()) {
    // An op asks for data. Before it has done anything, what is pending runs and the op goes on; else it is
    // run from its beginning without being noted.
    const Scope& outermost = *scopes_.front();
    if (is_unwritten(s) || calls_.size() > outermost.calls || memories_.size() > outermost.memories ||
        outermost.skipped || thread_state().asked_meta)
      throw NotDeferrable{};
  }
  flush();
}

void Region::force(Storage& s) {
  check_may_wait();
  const RegionLock lock(mutex_);
  if (s.writer.load() != this) return;  // another thread was faster
  WT_CHECK(memories_.find(s), Error,
           "compile: an op of a compiled function that runs now reads a tensor, not an argument of it, which "
           "the same run writes");
  run_for(s);
}

void Region::force_readers(Storage& s) {
  Region& own = of_thread();
  const auto run = [&](Region& r) {
    r.check_may_wait();
    const RegionLock lock(r.mutex_);
    if (r.memories_.find(s)) r.run_for(s);
  };
  if (!thread_state().deferral) run(own);
  std::vector<Region*> all;
  {
    const std::lock_guard lock(regions().mutex);
    all = regions().all;
  }
  for (Region* r : all)
    if (r != &own && s.readers.load()) run(*r);
}

}  // namespace warptape::graph
