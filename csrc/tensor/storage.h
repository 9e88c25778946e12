// A block of bytes on a device, shared by the tensors that view it.
#pragma once

#include <atomic>

#include "core/memory/allocator.h"
#include "core/ref.h"

namespace warptape {

class Deferral;

class WT_API Storage : public RefCounted<Storage> {
 public:
  using Deleter = void (*)(void* context);

  // Deferred where the thread defers memory.
  static Ref<Storage> allocate(size_t bytes, Device device);
  static Ref<Storage> allocate_now(size_t bytes, Device device);
  // Foreign memory: `deleter(context)` is called once, when the last tensor lets go.
  static Ref<Storage> wrap(void* data, size_t bytes, Device device, Deleter deleter, void* context);
  // No memory: tensors on it stand for others, and whoever asks for their data raises OpaqueError.
  static Ref<Storage> opaque(Device device, Deleter deleter, void* context);
  static void destroy(Storage* s);

  // Who finds memory here, or finds the storage not deferred, finds its contents too, on any thread.
  void* data() const { return data_.load(std::memory_order_acquire); }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  // Grows or shrinks the block, keeping the common prefix; 0 frees it: a sharded parameter's storage comes
  // and goes while the tensors on it stay. Where it shrinks they may reach beyond the new end, so the memory
  // is kept until 0 frees it. ValueError for foreign memory.
  void resize(size_t bytes);

  // Puts the storage onto other memory, which holds the same bytes; returns the memory it had.
  Ref<Storage> move_to(void* data, Deleter deleter, void* context);
  // The same for who knows that nothing pending minds.
  Ref<Storage> exchange(void* data, Deleter deleter, void* context);
  // What `deleter` would be called with, if it is this storage's.
  void* context_of(Deleter deleter) const { return deleter_ == deleter ? context_ : nullptr; }

  bool is_opaque() const { return opaque_; }

  // Note [Deferred memory]: inside of a compiled region calls are noted instead of run
  // (graph/record/region.h). What they will write is deferred until then: a new storage has no memory yet,
  // one with older contents has its memory evicted. Either way data() is null, so that whoever asks for it
  // comes by force_storage.
  bool is_deferred() const { return deferred_.load(std::memory_order_acquire); }
  static Ref<Storage> deferred(size_t bytes, Device device);
  void evict();
  void restore();  // the memory that was evicted
  bool is_evicted() const { return evicted_; }
  // Whether there are contents, also evicted.
  bool has_contents() const { return !is_deferred() || evicted_; }
  // Gives a new deferred storage memory of its own, or that of `from`, which nobody else uses.
  void materialize();
  void materialize(Storage& from);
  void drop();  // deferred again: what it holds will be computed again
  // A storage with what this deferred one has evicted, or deferred as well: calls run on it, so that nobody
  // finds their results here before all are complete. attach() ends that.
  Ref<Storage> detach();
  void attach(Ref<Storage> detached);
  // The call that was to write the deferred storage failed: who reads it is told.
  void lose() { lost_ = true; }
  bool is_lost() const { return lost_; }
  // Whether calls that somebody makes later read or write it.
  bool pending() const {
    return writer.load(std::memory_order_relaxed) || readers.load(std::memory_order_relaxed) ||
           promise.load(std::memory_order_relaxed);
  }

  // Counts in-place changes by every tensor on this storage; saved tensors compare it.
  uint32_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }
  void set_version(uint32_t v) { version_.store(v, std::memory_order_relaxed); }

  // Someone outside (NumPy, DLPack) may write here without a version bump.
  bool exported() const { return exported_.load(std::memory_order_relaxed); }
  void mark_exported() { exported_.store(true, std::memory_order_relaxed); }
  // Other processes may see the memory, and write it.
  bool shared() const { return shared_.load(std::memory_order_relaxed); }
  void mark_shared() {
    shared_.store(true, std::memory_order_relaxed);
    mark_exported();
  }

  static void* operator new(size_t size);
  static void operator delete(void* p);

 private:
  Storage(void* data, size_t bytes, Device device) : data_(data), bytes_(bytes), device_(device) {}
  ~Storage();
  // Memory first, and last what says that there is none.
  void set_data(void* data) {
    data_.store(data, std::memory_order_release);
    deferred_.store(false, std::memory_order_release);
  }
  void* take_data(bool deferred) {
    deferred_.store(deferred, std::memory_order_release);
    return data_.exchange(nullptr, std::memory_order_acq_rel);
  }

  std::atomic<void*> data_;
  size_t bytes_;
  size_t capacity_ = bytes_;   // of the device allocator's memory
  Deleter deleter_ = nullptr;  // null: the memory is the device allocator's
  void* context_ = nullptr;
  Device device_;
  std::atomic<bool> exported_{false}, shared_{false}, deferred_{false};
  bool opaque_ = false, lost_ = false;
  void* evicted_ = nullptr;
  std::atomic<uint32_t> version_{0};

 public:  // behind what every op reads
  // The region whose pending calls write the storage, or null; how many regions have it among what their
  // pending calls read or write, but for new storages; and what is known of it between regions: see Note
  // [Promises] (graph/record/promise.h).
  std::atomic<Deferral*> writer{nullptr};
  std::atomic<uint32_t> readers{0};
  std::atomic<void*> promise{nullptr};
};

// See Note [Deferred memory]: runs what is pending, so that the storage has its contents and may be written;
// by DeferredCalls (tensor/deferral.h).
WT_API void force_storage(Storage& s);

}  // namespace warptape
