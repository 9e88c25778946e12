// The time that an op or a node's backward is tried on deferred memory, in a region.
#pragma once

#include "graph/record/region.h"

namespace warptape::graph {

// Thrown in a call that was believed to be noted as a whole, and has to be noted piece by piece.
struct NotWhole {};

enum class Tried : uint8_t { Noted, NeedsData, NotWhole };

class Scope {
 public:
  Scope(Region& region, const char* name, KeyTape& keys, const Attempts& attempts)
      : name(name),
        whole(attempts.are_whole()),
        region_(region),
        lock_(region.mutex_),
        defers_(own_thread_state().defers_memory, true),
        asked_(own_thread_state().asked_meta, false),
        keys_(own_thread_state().key_tape, &keys) {
    // Under the lock: until it is held another thread may run what is pending.
    calls = region.calls_.size();
    memories = region.memories_.size();
    region.scopes_.push_back(this);
  }
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // The argument is written: its memory is put aside, so that nobody writes it before what is pending.
  void written(const Tensor& t);
  // Whether what was called is to be noted as a whole.
  bool opaque() const;
  // Makes the call, and notes it as a whole where it skipped a kernel. Otherwise it is as if it had not been
  // made; where it needs data from within another that is noted, that one fails.
  template <class F, class N>
  Tried attempt(Attempts& attempts, F&& call, N&& note) {
    ++attempts.all;
    try {
      call();
      if (whole && skipped && !thread_state().asked_meta) throw NotWhole{};
      const bool noted_whole = opaque();
      if (noted_whole) note();
      attempts.whole += noted_whole;
      attempts.mixed |= !noted_whole;
      return Tried::Noted;
    } catch (const NotDeferrable&) {
      undo();
      restore();
      if (region_.scopes_.size() > 1) throw;
      ++attempts.failed;
      return Tried::NeedsData;
    } catch (const NotWhole&) {
      undo();
      restore();
      attempts.mixed = true;
      return Tried::NotWhole;
    }
  }
  // Takes back what was noted of it.
  void undo() { region_.truncate(calls); }
  // After a try that is to be made again: its arguments have the versions and the history that they had.
  void restore();
  // Whether something that it made is still to be written.
  bool unfinished() const;
  bool bumped() const;

  const char* name;  // of the op or node
  bool is_op = true;
  const bool whole;                // what it calls is not noted
  bool skipped = false;            // and such a call was made
  size_t calls = 0, memories = 0;  // of the region, at the beginning
  bool poisoned = false;           // what was noted reads what a skipped kernel was to write

 private:
  struct History {
    Tensor tensor;
    Edge edge;
    bool requires_grad;
  };
  struct Written {
    Tensor tensor;
    uint32_t version, of_view;
    History own, base;
  };
  static History history_of(const Tensor& t);
  static void restore(const History& h);
  Region& region_;
  RegionLock lock_;
  SmallVector<Written, 2> written_;
  Restore<bool> defers_, asked_;
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
