// A block of bytes on a device, shared by the tensors that view it.
#pragma once

#include "core/allocator.h"
#include "core/ref.h"

namespace warptape {

class WT_API Storage : public RefCounted<Storage> {
 public:
  using Deleter = void (*)(void* context);

  static Ref<Storage> allocate(size_t bytes, Device device);
  // Foreign memory: `deleter(context)` is called once, when the last tensor lets go.
  static Ref<Storage> wrap(void* data, size_t bytes, Device device, Deleter deleter, void* context);
  // No memory: tensors on it stand for others, and whoever asks for their data raises OpaqueError.
  static Ref<Storage> opaque(Device device, Deleter deleter, void* context);
  static void destroy(Storage* s);

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  // Grows or shrinks the block (0 frees it), keeping the common prefix: a sharded parameter's storage comes
  // and goes while the tensors on it stay. ValueError for foreign memory.
  void resize(size_t bytes);

  // Puts the storage onto other memory, which holds the same bytes; returns the memory it had.
  Ref<Storage> move_to(void* data, Deleter deleter, void* context);
  // What `deleter` would be called with, if it is this storage's.
  void* context_of(Deleter deleter) const { return deleter_ == deleter ? context_ : nullptr; }

  bool is_opaque() const { return opaque_; }

  // Counts in-place changes by every tensor on this storage; saved tensors compare it.
  uint32_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }

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
  Deleter deleter_ = nullptr;  // null: the memory is the device allocator's
  void* context_ = nullptr;
  Device device_;
  bool exported_ = false, shared_ = false, opaque_ = false;
  std::atomic<uint32_t> version_{0};
};

}  // namespace warptape
