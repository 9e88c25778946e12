// What regions of several threads know of one storage: see Note [Regions and threads].
#include <condition_variable>

#include "autograd/engine.h"
#include "graph/ir/storage_state.h"
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

// What threads wait for: Batch::waits_for_ and Batch::ended_ of all.
struct Waits {
  std::mutex mutex;
  std::condition_variable ended;
};

Waits& waits() {
  static auto* const known = new Waits;
  return *known;
}

}  // namespace

PerThread<const Batch*> Batch::waits_for_;

void Batch::wait() const {
  const WithoutGil without_gil;
  std::unique_lock lock(waits().mutex);
  for (const Batch* b = this; b && !b->ended_; b = *b->runner_)
    WT_CHECK(!b->runs_here(), Error,
             "compile: an op of a compiled function that runs now reads or writes a tensor, not an argument "
             "of it, which ",
             b == this ? "the same run writes or reads"
                       : "a compiled function of another thread is to write or to read: let "
                         "that one end before");
  *waits_for_ = this;
  waits().ended.wait(lock, [&] { return ended_; });
  *waits_for_ = nullptr;
}

void Batch::end() {
  const std::lock_guard lock(waits().mutex);
  ended_ = true;
  waits().ended.notify_all();
}

void RegionMutex::relock(int depth) {
  if (!try_lock()) {
    const WithoutGil without_gil;
    lock();
  }
  depth_ = depth;
}

void CountsByName::add(const char* name) {
  const std::lock_guard lock(mutex_);
  ++counts_[name];
}

std::map<std::string, int64_t> CountsByName::all() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

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

// `rematerialized`: the call that computes it is about to be recorded; else it has its contents now.
Memory& Region::memory_of(Storage& s, bool rematerialized) {
  if (s.exported() && accessed_externally(s)) exposed_ = true;
  if (Memory* m = memories_.find(s)) return *m;
  // This order, and the other one in claim(): one of two threads finds out about the other.
  begin_reading(s);
  if (writer_of(s)) {
    end_reading(s);
    refuse_busy(s);
  }
  if (s.device().is_cuda()) record_stream(s.device());
  Memory& m = memories_.add(s);
  m.registered = true;
  m.depth = static_cast<uint32_t>(scopes_.size());
  if (s.is_deferred() && !rematerialized) complete(s);
  return m;
}

// Of what a call writes: its memory is evicted, so that nobody reads it before the call has run.
Memory& Region::claim(Storage& s, bool rematerialized) {
  Memory& m = memory_of(s, rematerialized);
  if (m.state != Memory::State::Read) return m;
  if (writer_of(s, std::memory_order_relaxed) != this) {
    if (!begin_writing(s, *this)) refuse_busy(s);
    if (reader_count(s) != 1) {
      end_writing(s);
      refuse_busy(s);
    }
    if (!rematerialized) rematerialize_before_write(s);
  }
  s.evict();
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
  return m ? m->references : 0;
}

// Before a call is recorded that reads the tensor: what another thread's region has pending for it runs, and
// the call of its Remat, if it has one, is recorded as well. Not inside of a scope, which may take back what
// it records.
void Region::force_before_use(const Tensor& t) {
  if (!t.defined()) return;
  Storage& s = t.storage();
  const Deferral* writer = writer_of(s, std::memory_order_relaxed);
  if (writer && writer != this && !mutex_.is_mine()) force_storage(s);
  if (!remat_state(s)) return;
  if (scopes_.empty() && !recording_)
    record_remat(t);
  else if (is_rematerialized(s))
    rematerialize(s);
}

void Region::record_remat(const Tensor& t) {
  Storage& s = t.storage();
  for (const Tensor& input : remat_inputs(s)) force_before_use(input);
  record([&] {
    if (is_rematerialized(s)) {
      for (const Tensor& input : remat_inputs(s)) memory_of(input.storage());
      claim(s, true);
    }
    std::unique_ptr<Remat> remat = detach_remat(s);
    if (!remat) return;
    for (const Tensor& own : remat->call.out) claim(own.storage(), true);
    Call& call = calls_.emplace_back(std::move(remat->call));
    call.in_backward = in_backward_pass();
    const auto in = std::exchange(call.in, {}), out = std::exchange(call.out, {});
    for (const Tensor& from : in) read(call, from);
    for (size_t k = 0; k < out.size(); ++k)
      write(call, k == remat->which ? on_storage(t->storage, out[k]) : out[k]);
  });
}

// Before somebody writes to the storage.
void Region::rematerialize_before_write(Storage& s) {
  if (remat_state(s)) rematerialize_dependents(s);
}

// No thread waits for another's region, or for calls that another runs, with its own locked.
void Region::check_unlocked(Storage& s) {
  const Region& own = of_thread();
  if (own.mutex_.is_mine()) own.refuse_busy(s);
}

// With the region locked.
std::vector<std::shared_ptr<Batch>> Region::running_on(const Storage& s) const {
  std::vector<std::shared_ptr<Batch>> out;
  for (const auto& b : running_)
    if (b->memories.find(s)) out.push_back(b);
  return out;
}

void Region::wait_for(const std::vector<std::shared_ptr<Batch>>& running, Storage& s) {
  if (!running.empty()) check_unlocked(s);
  for (const auto& b : running) b->wait();
}

// Runs what is pending; the lock is held, and the region knows the storage.
void Region::run_for(Storage& s) {
  if (!is_own()) {
    interrupted_ = true;
    return run_pending();
  }
  if (!scopes_.empty()) {
    // An op asks for data. Before it has done anything, what is pending runs and the op goes on; else it is
    // run from its beginning without being recorded.
    const Scope& outermost = *scopes_.front();
    if (is_unwritten(s) || calls_.size() > outermost.calls || memories_.size() > outermost.memories ||
        outermost.skipped || thread_state().asked_meta)
      throw NotDeferrable{};
  }
  flush();
}

void Region::force(Storage& s) {
  if (!is_own()) check_unlocked(s);
  std::vector<std::shared_ptr<Batch>> running;
  {
    const RegionLock lock(mutex_);
    if (writer_of(s) != this) return;  // another thread was faster
    if (memories_.find(s)) return run_for(s);
    running = running_on(s);
    WT_CHECK(!running.empty(), Error, "compile: a tensor waits for calls that nobody has");
  }
  wait_for(running, s);
}

void Region::force_readers(Storage& s) {
  Region& own = of_thread();
  const auto run = [&](Region& r, bool pending_too) {
    if (&r != &own) check_unlocked(s);
    std::vector<std::shared_ptr<Batch>> running;
    {
      const RegionLock lock(r.mutex_);
      if (pending_too && r.memories_.find(s)) r.run_for(s);
      running = r.running_on(s);
    }
    std::erase_if(running, [](const auto& b) { return b->runs_here(); });
    wait_for(running, s);
  };
  run(own, !thread_state().deferral);
  std::vector<Region*> all;
  {
    const std::lock_guard lock(regions().mutex);
    all = regions().all;
  }
  for (Region* r : all)
    if (r != &own && reader_count(s)) run(*r, true);
}

}  // namespace warptape::graph
