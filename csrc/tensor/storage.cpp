#include "tensor/storage.h"

#include <algorithm>
#include <cstring>

#include "core/context.h"
#include "core/device_runtime.h"
#include "core/errors.h"
#include "core/memory/free_list.h"
#include "core/memory/memory_trace.h"
#include "core/profiler.h"
#include "tensor/deferral.h"

namespace warptape {

void* Storage::operator new(size_t size) { return FreeList<Storage, Pooled::Storage>::allocate(size); }
void Storage::operator delete(void* p) { FreeList<Storage, Pooled::Storage>::deallocate(p); }

namespace {
// For whoever asks what memory is taken and given back.
void note(const void* data, int64_t bytes, Device device) noexcept {
  if (traces_memory.load(std::memory_order_relaxed)) note_memory(data, bytes, device);
  if (__builtin_expect(thread_state().profiler != nullptr, 0)) record_memory(data, bytes, device);
}

void* take(size_t bytes, Device device) {
  void* data = allocator_of(device).allocate(bytes);
  note(data, static_cast<int64_t>(bytes), device);
  return data;
}

void leave(void* data, size_t bytes, Device device) noexcept {
  note(data, -static_cast<int64_t>(bytes), device);
  allocator_of(device).deallocate(data, bytes);
}
}  // namespace

namespace {
DeferredCalls* deferred_calls = nullptr;
}

DeferredCalls::~DeferredCalls() = default;
void install(DeferredCalls& calls) { deferred_calls = &calls; }
DeferredCalls* installed_deferred_calls() { return deferred_calls; }
void force_storage(Storage& s) { deferred_calls->force(s); }

Ref<Storage> Storage::allocate(size_t bytes, Device device) {
  if (__builtin_expect(thread_state().defers_memory, 0) && bytes && !device.is_meta())
    return deferred(bytes, device);
  return allocate_now(bytes, device);
}

Ref<Storage> Storage::allocate_now(size_t bytes, Device device) {
  void* data = device.is_meta() ? nullptr : take(bytes, device);
  return Ref<Storage>::adopt(new Storage(data, bytes, device));
}

Ref<Storage> Storage::wrap(void* data, size_t bytes, Device device, Deleter deleter, void* context) {
  auto* s = new Storage(data, bytes, device);
  s->deleter_ = deleter;
  s->context_ = context;
  return Ref<Storage>::adopt(s);
}

Ref<Storage> Storage::opaque(Device device, Deleter deleter, void* context) {
  Ref<Storage> s = wrap(nullptr, 0, device, deleter, context);
  s->opaque_ = true;
  return s;
}

void Storage::destroy(Storage* s) { delete s; }

Ref<Storage> Storage::deferred(size_t bytes, Device device) {
  auto* s = new Storage(nullptr, bytes, device);
  s->deferred_.store(true, std::memory_order_relaxed);
  if (thread_state().deferral) thread_state().deferral->made(*s);
  return Ref<Storage>::adopt(s);
}

void Storage::evict() {
  if (!is_deferred()) evicted_ = take_data(true);
}

void Storage::restore() { set_data(std::exchange(evicted_, nullptr)); }

void Storage::materialize() { set_data(evicted_ ? std::exchange(evicted_, nullptr) : take(bytes_, device_)); }

void Storage::materialize(Storage& from) {
  deleter_ = std::exchange(from.deleter_, nullptr);
  context_ = std::exchange(from.context_, nullptr);
  if (bytes_ != from.bytes_) bytes_ = from.bytes_;
  capacity_ = from.capacity_;
  set_data(from.take_data(false));
}

void Storage::drop() {
  if (is_deferred()) return;
  void* data = take_data(true);
  if (deleter_)
    std::exchange(deleter_, nullptr)(context_);
  else
    leave(data, capacity_, device_);
  capacity_ = bytes_;
}

Ref<Storage> Storage::detach() {
  auto* s = new Storage(std::exchange(evicted_, nullptr), bytes_, device_);
  s->capacity_ = capacity_;
  s->deferred_.store(!s->data(), std::memory_order_relaxed);
  s->deleter_ = std::exchange(deleter_, nullptr);
  s->context_ = std::exchange(context_, nullptr);
  if (exported()) s->mark_exported();
  if (shared()) s->mark_shared();
  return Ref<Storage>::adopt(s);
}

void Storage::attach(Ref<Storage> detached) {
  version_.fetch_add(detached->version(), std::memory_order_relaxed);
  if (detached->use_count() == 1) return materialize(*detached);
  // Code that the calls ran has kept it.
  deleter_ = [](void* kept) { static_cast<Storage*>(kept)->release(); };
  context_ = detached.get();
  set_data(detached.release()->data());
}

Storage::~Storage() {
  if (__builtin_expect(promise.load(std::memory_order_relaxed) != nullptr, 0))
    deferred_calls->storage_gone(*this);
  if (evicted_) restore();
  if (deleter_) {
    deleter_(context_);
  } else if (void* memory = data()) {
    leave(memory, capacity_, device_);
  }
}

Ref<Storage> Storage::move_to(void* data, Deleter deleter, void* context) {
  if (pending()) force_storage(*this);
  return exchange(data, deleter, context);
}

Ref<Storage> Storage::exchange(void* data, Deleter deleter, void* context) {
  Ref<Storage> before = wrap(data_.exchange(data), bytes_, device_, deleter_, context_);
  before->capacity_ = std::exchange(capacity_, bytes_);
  deleter_ = deleter;
  context_ = context;
  return before;
}

void Storage::resize(size_t bytes) {
  if (pending()) force_storage(*this);
  WT_CHECK(!deleter_, ValueError, "resize_: this storage wraps memory of someone else and cannot be resized");
  if (device_.is_meta() || bytes == bytes_ || (bytes && bytes <= capacity_)) {
    bytes_ = bytes;
    return;
  }
  void* fresh = take(bytes, device_);
  if (size_t keep = std::min(bytes, bytes_)) {
    if (device_.is_host()) {
      std::memcpy(fresh, data(), keep);
    } else {
      runtime_of(device_.type).copy(fresh, device_, data(), device_, keep, false);
    }
  }
  leave(data(), capacity_, device_);
  data_.store(fresh, std::memory_order_release);
  bytes_ = capacity_ = bytes;
}

}  // namespace warptape
