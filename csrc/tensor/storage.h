// A block of bytes on a device, shared by the tensors that view it.
#pragma once

#include "core/allocator.h"
#include "core/ref.h"

namespace warptape {

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

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  // Grows or shrinks the block, keeping the common prefix; 0 frees it: a sharded parameter's storage comes
  // and goes while the tensors on it stay. Where it shrinks they may reach beyond the new end, so the memory
  // is kept until 0 frees it. ValueError for foreign memory.
  void resize(size_t bytes);

  // Puts the storage onto other memory, which holds the same bytes; returns the memory it had.
  Ref<Storage> move_to(void* data, Deleter deleter, void* context);
  // What `deleter` would be called with, if it is this storage's.
  void* context_of(Deleter deleter) const { return deleter_ == deleter ? context_ : nullptr; }

  bool is_opaque() const { return opaque_; }

  // Note [Deferred memory]: inside of a compiled region calls are noted instead of run (graph/region.h). What
  // they will write is deferred until then: a new storage has no memory yet, one with older contents has its
  // memory put aside. Either way data() is null, so that whoever asks for it comes by force_storage.
  bool is_deferred() const { return deferred_; }
  static Ref<Storage> deferred(size_t bytes, Device device);
  void put_aside();
  void give_back();  // the memory that was put aside
  bool has_aside() const { return aside_; }
  // Gives a new deferred storage memory of its own, or that of `from`, which nobody else uses.
  void materialize();
  void materialize(Storage& from);
  void drop();  // deferred again: what it holds will be computed again
  // What the region of pending calls knows of this storage, or null.
  void* pending = nullptr;

  // Counts in-place changes by every tensor on this storage; saved tensors compare it.
  uint32_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }
  void set_version(uint32_t v) { version_.store(v, std::memory_order_relaxed); }

  // Someone outside (NumPy, DLPack) may write here without a version bump.
  bool exported() const { return exported_; }
  void mark_exported() { exported_ = true; }
  // Other processes may see the memory, and write it.
  bool shared() const { return shared_; }
  void mark_shared() { shared_ = exported_ = true; }

  static void* operator new(size_t size);
  static void operator delete(void* p);

 private:
  Storage(void* data, size_t bytes, Device device) : data_(data), bytes_(bytes), device_(device) {}
  ~Storage();

  void* data_;
  size_t bytes_;
  size_t capacity_ = bytes_;   // of the device allocator's memory
  Deleter deleter_ = nullptr;  // null: the memory is the device allocator's
  void* context_ = nullptr;
  Device device_;
  bool exported_ = false, shared_ = false, opaque_ = false, deferred_ = false;
  void* aside_ = nullptr;
  std::atomic<uint32_t> version_{0};
};

// See Note [Deferred memory]: runs what is pending, so that the storage has its contents; and takes note that
// a storage with a record is gone.
extern WT_API void (*force_storage)(Storage& s);
extern WT_API void (*pending_storage_gone)(Storage& s);

}  // namespace warptape
