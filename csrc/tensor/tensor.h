// A tensor: a strided view of a storage. It knows no gradient; the tape keeps what it needs in `extra`.
#pragma once

#include <memory>
#include <optional>

#include "core/dtype.h"
#include "core/shape.h"
#include "tensor/storage.h"

namespace warptape {

class Tensor;

// What a higher layer attaches to a tensor (the tape's gradient, node, hooks).
struct WT_API TensorExtra {
  virtual ~TensorExtra();
};

// In-place changes, where they are not counted by the storage: x.data shares memory, but no count.
struct VersionCounter : RefCounted<VersionCounter> {
  static void destroy(VersionCounter* v) { delete v; }
  std::atomic<uint32_t> value{0};
};

// Note [Python object of a tensor]: a TensorImpl has at most one Python object, and `python` points to it as
// long as both live. Normally the object owns the impl. When Python lets go first and the object carries
// state that must not be lost, the bindings hand the object to the impl: `owns_python` is set and the impl's
// end releases the object.
class WT_API TensorImpl : public RefCounted<TensorImpl> {
 public:
  TensorImpl(Ref<Storage> storage, DType dtype, Shape sizes, Shape strides, int64_t offset);
  static void destroy(TensorImpl* t);
  static void* operator new(size_t size);
  static void operator delete(void* p);

  Ref<Storage> storage;
  Shape sizes;
  Shape strides;   // in elements
  int64_t offset;  // in elements
  int64_t numel;
  DType dtype;
  bool contiguous;
  bool plain;              // a real one in host memory, not opaque: what every op takes
  bool inference = false;  // made under inference_mode: never recorded, no version
  bool owns_python = false;
  void* python = nullptr;
  Ref<VersionCounter> own_version;  // of x.data and its views; null: the storage's counts
  std::unique_ptr<TensorExtra> extra;

  // Takes on other memory (x.data = y).
  void set_storage(Ref<Storage> new_storage, DType new_dtype);
  // Sets the geometry anew (resize_, set_, as a view of the same storage).
  void set_geometry(Shape new_sizes, Shape new_strides, int64_t new_offset);

 private:
  ~TensorImpl();
};

// The handle. Undefined when it points to nothing.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}

  bool defined() const { return static_cast<bool>(impl_); }
  TensorImpl* impl() const { return impl_.get(); }
  TensorImpl* operator->() const { return impl_.get(); }
  const Ref<TensorImpl>& ref() const { return impl_; }
  bool same(const Tensor& o) const { return impl_ == o.impl_; }

  const Shape& sizes() const { return impl_->sizes; }
  const Shape& strides() const { return impl_->strides; }
  int64_t size(int64_t dim) const { return sizes()[wrap_dim(dim, ndim(), "size")]; }
  int64_t stride(int64_t dim) const { return strides()[wrap_dim(dim, ndim(), "stride")]; }
  int64_t ndim() const { return static_cast<int64_t>(impl_->sizes.size()); }
  int64_t numel() const { return impl_->numel; }
  int64_t offset() const { return impl_->offset; }
  DType dtype() const { return impl_->dtype; }
  Device device() const { return impl_->storage->device(); }
  bool is_contiguous() const { return impl_->contiguous; }
  // Whether no kernel is to run on it now: it lies on the meta device, or is deferred. Who asks for the
  // device alone takes device().is_meta().
  bool is_meta() const { return device().is_meta() || (impl_->storage->is_deferred() && skips_kernel()); }
  Storage& storage() const { return *impl_->storage; }
  size_t itemsize() const { return warptape::itemsize(dtype()); }
  // First element; null on the meta device and for an empty storage. OpaqueError on an opaque storage. Of
  // deferred memory, once what is pending has run.
  void* data() const {
    auto* base = static_cast<char*>(impl_->storage->data());
    if (!base) base = missing_data();
    return base ? base + impl_->offset * static_cast<int64_t>(itemsize()) : nullptr;
  }
  // For the plan of a kernel that is_meta() of its result guards: as data(), but null where the kernel will
  // be skipped because memory is deferred.
  void* planned_data() const { return impl_->storage->is_deferred() && skips_kernel() ? nullptr : data(); }
  kernels::View planned_view() const { return view_at(planned_data()); }
  template <class T>
  T* data_as() const {
    return static_cast<T*>(data());
  }
  uint32_t version() const {
    if (impl_->own_version) return impl_->own_version->value.load(std::memory_order_relaxed);
    return impl_->storage->version();
  }
  void bump_version() const {
    if (impl_->own_version)
      impl_->own_version->value.fetch_add(1, std::memory_order_relaxed);
    else
      impl_->storage->bump_version();
  }
  void set_version(uint32_t v) const {
    if (impl_->own_version)
      impl_->own_version->value.store(v, std::memory_order_relaxed);
    else
      impl_->storage->set_version(v);
  }
  // What a kernel sees; valid as long as this tensor.
  kernels::View view() const { return view_at(data()); }

 private:
  kernels::View view_at(void* data) const {
    return {
        data, impl_->sizes.data(), impl_->strides.data(), static_cast<int>(impl_->sizes.size()), impl_->dtype,
        false};
  }
  WT_API char* missing_data() const;
  // Of deferred memory: whether an op of this thread is being noted, which then takes note that it skips a
  // kernel. If not, what is pending runs.
  WT_API bool skips_kernel() const;
  Ref<TensorImpl> impl_;
};

using TensorList = std::span<const Tensor>;
using OptTensor = std::optional<Tensor>;

// A description for error messages: "float32[2, 3]" with the device when it is not the CPU.
WT_API std::ostream& operator<<(std::ostream& out, const Tensor& t);

}  // namespace warptape
