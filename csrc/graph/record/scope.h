// The time that an op or a node's backward is tried on deferred memory, in a region.
#pragma once

#include "graph/ir/history.h"
#include "graph/record/region.h"

namespace warptape::graph {

// Thrown in a call that was believed to be opaque, and has to be recorded call by call.
struct NotOpaque {};

enum class Tried : uint8_t { Recorded, NeedsData, NotOpaque };

class Scope {
 public:
  Scope(Region& region, const char* name, KeyTape& keys, const Attempts& attempts)
      : name(name),
        opaque(attempts.are_opaque()),
        region_(region),
        lock_(region.mutex_),
        defers_(own_thread_state().defers_memory, true),
        meta_flag_(own_thread_state().asked_meta, false),
        keys_(own_thread_state().key_tape, &keys) {
    // Under the lock: until it is held another thread may run what is pending.
    calls = region.calls_.size();
    memories = region.memories_.size();
    region.scopes_.push_back(this);
  }
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // The argument is written: its memory is evicted, so that nobody writes it before what is pending.
  void written(const Tensor& t);
  // Whether what was called is to be recorded as one opaque call.
  bool needs_opaque() const;
  // Makes the call, and records it as opaque where it skipped a kernel. Otherwise it is as if it had not been
  // made; where it needs data from within another that is recorded, that one fails.
  template <class F, class N>
  Tried attempt(Attempts& attempts, F&& call, N&& record) {
    ++attempts.all;
    try {
      call();
      if (opaque && skipped && !thread_state().asked_meta) throw NotOpaque{};
      const bool is_opaque_call = needs_opaque();
      if (is_opaque_call) record();
      attempts.opaque += is_opaque_call;
      attempts.mixed |= !is_opaque_call;
      return Tried::Recorded;
    } catch (const NotDeferrable&) {
      undo();
      restore();
      if (region_.scopes_.size() > 1) throw;
      ++attempts.failed;
      return Tried::NeedsData;
    } catch (const NotOpaque&) {
      undo();
      restore();
      attempts.mixed = true;
      return Tried::NotOpaque;
    }
  }
  // Takes back what was recorded of it.
  void undo() { region_.truncate(calls); }
  // After a try that is to be made again: its arguments have the versions and the history that they had.
  void restore();
  // Whether something that it made is still to be written.
  bool unfinished() const;
  bool bumped() const;

  const char* name;  // of the op or node
  bool is_op = true;
  const bool opaque;               // what it calls is not recorded
  bool skipped = false;            // and such a call was made
  size_t calls = 0, memories = 0;  // of the region, at the beginning
  bool poisoned = false;           // what was recorded reads what a skipped kernel was to write

 private:
  struct Written {
    Tensor tensor;
    uint32_t version, of_view;
    History own, base;
  };
  Region& region_;
  RegionLock lock_;
  SmallVector<Written, 2> written_;
  Restore<bool> defers_, meta_flag_;
  Restore<KeyTape*> keys_;
};

// While it lives, the thread records nothing.
class Paused {
 public:
  Paused()
      : deferral_(own_thread_state().deferral, nullptr),
        dispatch_(own_thread_state().dispatch, thread_state().dispatch & ~kCapture),
        defers_(own_thread_state().defers_memory, false) {}

 private:
  Restore<Deferral*> deferral_;
  Restore<uint32_t> dispatch_;
  Restore<bool> defers_;
};

}  // namespace warptape::graph
