#include "tensor/tensor.h"

#include <ostream>

#include "core/context.h"
#include "core/errors.h"
#include "core/frontend.h"
#include "core/memory/free_list.h"

namespace warptape {

TensorExtra::~TensorExtra() = default;

void* TensorImpl::operator new(size_t size) { return FreeList<TensorImpl, Pooled::Tensor>::allocate(size); }
void TensorImpl::operator delete(void* p) { FreeList<TensorImpl, Pooled::Tensor>::deallocate(p); }

TensorImpl::TensorImpl(Ref<Storage> s, DType t, Shape sz, Shape st, int64_t off)
    : sizes(std::move(sz)), strides(std::move(st)), offset(off) {
  set_storage(std::move(s), t);
  numel = 1;
  for (int64_t n : sizes) numel *= n;
  contiguous = is_contiguous(sizes, strides);
}

TensorImpl::~TensorImpl() = default;

void TensorImpl::destroy(TensorImpl* t) {
  if (t->owns_python && t->python) frontend().release_object(t->python);
  delete t;
}

void TensorImpl::set_storage(Ref<Storage> new_storage, DType new_dtype) {
  storage = std::move(new_storage);
  dtype = new_dtype;
  plain = storage->device().is_host() && dtype < DType::Complex64 && !storage->is_opaque();
}

void TensorImpl::set_geometry(Shape new_sizes, Shape new_strides, int64_t new_offset) {
  sizes = std::move(new_sizes);
  strides = std::move(new_strides);
  offset = new_offset;
  numel = numel_of(sizes);
  contiguous = is_contiguous(sizes, strides);
}

bool Tensor::skips_kernel() const {
  if (thread_state().defers_memory) return own_thread_state().asked_meta = true;
  force_storage(storage());
  return false;
}

char* Tensor::missing_data() const {
  Storage& s = storage();
  if (s.is_deferred()) force_storage(s);
  if (!s.is_opaque()) {
    WT_CHECK(s.data() || !numel() || s.device().is_meta(), Error,
             "The tensor has a non-zero number of elements (", *this,
             "), but its data is not allocated: its storage has been resized to 0 bytes. Give it memory by "
             "untyped_storage().resize_(nbytes) before it is read or written");
    return static_cast<char*>(s.data());
  }
  throw OpaqueError(
      "cannot read the data of a tensor inside vmap or jvp: control flow on values, item(), tolist() and "
      "numpy() work outside of the function transform only; or the tensor outlived its transform, or is "
      "sparse, where a dense one is expected");
}

std::ostream& operator<<(std::ostream& out, const Tensor& t) {
  if (!t.defined()) return out << "None";
  out << t.dtype() << t.sizes();
  if (!t.device().is_host()) out << " on " << t.device();
  return out;
}

}  // namespace warptape
