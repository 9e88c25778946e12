#include "tensor/storage.h"

#include <algorithm>
#include <cstring>

#include "core/device_runtime.h"
#include "core/errors.h"
#include "core/free_list.h"

namespace warptape {

void* Storage::operator new(size_t size) { return FreeList<Storage>::allocate(size); }
void Storage::operator delete(void* p) { FreeList<Storage>::deallocate(p); }

Ref<Storage> Storage::allocate(size_t bytes, Device device) {
  void* data = device.is_meta() ? nullptr : allocator_of(device).allocate(bytes);
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

Storage::~Storage() {
  if (deleter_) {
    deleter_(context_);
  } else if (data_) {
    allocator_of(device_).deallocate(data_, bytes_);
  }
}

Ref<Storage> Storage::move_to(void* data, Deleter deleter, void* context) {
  Ref<Storage> before = wrap(data_, bytes_, device_, deleter_, context_);
  data_ = data;
  deleter_ = deleter;
  context_ = context;
  return before;
}

void Storage::resize(size_t bytes) {
  WT_CHECK(!deleter_, ValueError, "resize_: this storage wraps memory of someone else and cannot be resized");
  if (device_.is_meta() || bytes == bytes_) {
    bytes_ = bytes;
    return;
  }
  Allocator& allocator = allocator_of(device_);
  void* fresh = allocator.allocate(bytes);
  if (size_t keep = std::min(bytes, bytes_)) {
    if (device_.is_cpu()) {
      std::memcpy(fresh, data_, keep);
    } else {
      runtime_of(device_.type).copy(fresh, device_, data_, device_, keep, false);
    }
  }
  allocator.deallocate(data_, bytes_);
  data_ = fresh;
  bytes_ = bytes;
}

}  // namespace warptape
