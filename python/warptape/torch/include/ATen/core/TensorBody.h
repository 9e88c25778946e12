// at::Tensor: a counted reference to a tensor of the runtime.
#pragma once

#include <tuple>

#include "ATen/core/TensorAccessor.h"
#include "c10/core/TensorOptions.h"
#include "warptape/call.h"

namespace at {

using namespace c10;

namespace indexing {
struct TensorIndex;
}
class Tensor;
using TensorList = ArrayRef<Tensor>;
using ITensorListRef = TensorList;
class Generator {};  // what draws is the device's default generator; this stands in signatures

class Tensor {
 public:
  Tensor() : impl_(nullptr) {}
  Tensor(const Tensor& other) : impl_(other.impl_) {
    if (impl_) wtx::api().retain(impl_);
  }
  Tensor(Tensor&& other) noexcept : impl_(std::exchange(other.impl_, nullptr)) {}
  Tensor& operator=(const Tensor& other) & {
    Tensor copy(other);
    std::swap(impl_, copy.impl_);
    return *this;
  }
  Tensor& operator=(Tensor&& other) & noexcept {
    std::swap(impl_, other.impl_);
    return *this;
  }
  // Of what an index made: x[i] = y writes into x.
  Tensor& operator=(const Tensor& other) && { return copy_(other, false), *this; }
  Tensor& operator=(const Scalar& value) && { return fill_(value), *this; }
  ~Tensor() {
    if (impl_) wtx::api().release(impl_);
  }
  // Takes over the caller's reference.
  static Tensor adopt(wtx_tensor* owned) {
    Tensor t;
    t.impl_ = owned;
    return t;
  }
  static Tensor share(wtx_tensor* borrowed) {
    if (borrowed) wtx::api().retain(borrowed);
    return adopt(borrowed);
  }
  wtx_tensor* unsafeGetTensorImpl() const { return impl_; }
  wtx_tensor* release() { return std::exchange(impl_, nullptr); }

  bool defined() const { return impl_ != nullptr; }
  bool has_value() const { return defined(); }
  void reset() { *this = Tensor(); }
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }
  size_t use_count() const { return impl_ ? wtx::api().use_count(impl_) : 0; }
  bool is_alias_of(const Tensor& other) const {
    return wtx::api().shares_storage(checked(), other.checked()) != 0;
  }

  // ---- geometry ----
  wtx_info info() const {
    wtx_info out;
    wtx::api().info(checked(), &out);
    return out;
  }
  int64_t dim() const { return info().ndim; }
  int64_t ndimension() const { return dim(); }
  int64_t numel() const { return info().numel; }
  size_t nbytes() const { return static_cast<size_t>(numel()) * itemsize(); }
  size_t itemsize() const { return elementSize(scalar_type()); }
  int64_t element_size() const { return static_cast<int64_t>(itemsize()); }
  IntArrayRef sizes() const {
    const auto i = info();
    return {i.sizes, static_cast<size_t>(i.ndim)};
  }
  IntArrayRef strides() const {
    const auto i = info();
    return {i.strides, static_cast<size_t>(i.ndim)};
  }
  int64_t size(int64_t dim) const { return sizes()[wrapped(dim)]; }
  int64_t stride(int64_t dim) const { return strides()[wrapped(dim)]; }
  IntArrayRef sym_sizes() const { return sizes(); }
  int64_t sym_size(int64_t dim) const { return size(dim); }
  int64_t sym_numel() const { return numel(); }
  int64_t storage_offset() const { return info().offset; }
  bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const {
    if (format == MemoryFormat::Contiguous) return info().contiguous != 0;
    return wtx::call<bool>("is_contiguous", *this, format);
  }
  bool is_view() const { return has(WTX_IS_VIEW); }

  // ---- kind ----
  ScalarType scalar_type() const { return static_cast<ScalarType>(info().dtype); }
  TypeMeta dtype() const { return scalar_type(); }
  Device device() const {
    const wtx_device d = info().device;
    return {static_cast<DeviceType>(d.type), static_cast<DeviceIndex>(d.type == WTX_CPU ? -1 : d.index)};
  }
  int64_t get_device() const { return is_cuda() ? info().device.index : -1; }
  Layout layout() const { return kStrided; }
  TensorOptions options() const { return TensorOptions(scalar_type()).device(device()).layout(kStrided); }
  TensorOptions type() const { return options(); }
  bool is_cuda() const { return info().device.type == WTX_CUDA; }
  bool is_cpu() const { return info().device.type == WTX_CPU; }
  bool is_meta() const { return info().device.type == WTX_META; }
  bool is_sparse() const { return false; }
  bool is_quantized() const { return false; }
  bool is_mps() const { return false; }
  bool is_xpu() const { return false; }
  bool is_non_overlapping_and_dense() const {
    return wtx::call<Tensor>("empty_like", *this, nullopt, nullopt, false, nullopt).strides() == strides();
  }
  bool is_floating_point() const { return isFloatingType(scalar_type()); }
  bool is_complex() const { return isComplexType(scalar_type()); }
  bool is_signed() const { return isSignedType(scalar_type()); }

  // ---- memory ----
  void* data_ptr() const {
    void* data = nullptr;
    wtx::check(wtx::api().data(checked(), &data));
    return data;
  }
  // The first element; the type must be the tensor's.
  template <class T>
  T* data_ptr() const {
    using Plain = std::remove_const_t<T>;
    TORCH_CHECK(scalar_type() == CppTypeToScalarType<Plain>::value, "expected scalar type ",
                CppTypeToScalarType<Plain>::value, " but found ", scalar_type());
    return static_cast<T*>(data_ptr());
  }
  template <class T>
  T* data() const {
    return data_ptr<T>();
  }
  const void* const_data_ptr() const { return data_ptr(); }
  void* mutable_data_ptr() const { return data_ptr(); }
  template <class T>
  const T* const_data_ptr() const {
    return data_ptr<std::remove_const_t<T>>();
  }
  template <class T>
  T* mutable_data_ptr() const {
    return data_ptr<T>();
  }
  size_t storage_nbytes() const { return wtx::api().storage_bytes(checked()); }

  template <class T, size_t N>
  TensorAccessor<T, N> accessor() const& {
    check_dims(N, "accessor");
    return {data_ptr<T>(), sizes().data(), strides().data()};
  }
  template <class T, size_t N>
  TensorAccessor<T, N> accessor() && = delete;
  template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits, class index_t = int64_t>
  GenericPackedTensorAccessor<T, N, PtrTraits, index_t> generic_packed_accessor() const {
    check_dims(N, "packed_accessor");
    TORCH_CHECK(sizeof(index_t) == 8 || numel() <= INT32_MAX,
                "numel needs to be smaller than int32_t max; otherwise, please use packed_accessor64");
    return {data_ptr<T>(), sizes().data(), strides().data()};
  }
  template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits>
  PackedTensorAccessor32<T, N, PtrTraits> packed_accessor32() const {
    return generic_packed_accessor<T, N, PtrTraits, int32_t>();
  }
  template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits>
  PackedTensorAccessor64<T, N, PtrTraits> packed_accessor64() const {
    return generic_packed_accessor<T, N, PtrTraits, int64_t>();
  }
  template <class T, size_t N, template <class> class PtrTraits = DefaultPtrTraits, class index_t = int64_t>
  GenericPackedTensorAccessor<T, N, PtrTraits, index_t> packed_accessor() const {
    return generic_packed_accessor<T, N, PtrTraits, index_t>();
  }

  // ---- the tape ----
  bool requires_grad() const { return has(WTX_REQUIRES_GRAD); }
  const Tensor& set_requires_grad(bool on) const {
    wtx::check(wtx::api().set_requires_grad(checked(), on));
    return *this;
  }
  const Tensor& requires_grad_(bool on = true) const { return set_requires_grad(on); }
  bool is_leaf() const { return has(WTX_IS_LEAF); }
  Tensor grad() const {
    wtx_tensor* found = nullptr;
    wtx::check(wtx::api().gradient(checked(), &found));
    return adopt(found);
  }
  Tensor& mutable_grad() = delete;  // the gradient is the runtime's: set_grad
  void set_grad(const Tensor& gradient) const {
    wtx::check(wtx::api().set_gradient(checked(), gradient.impl_));
  }
  void backward(const Tensor& gradient = {}, optional<bool> retain_graph = nullopt,
                bool create_graph = false) const {
    wtx_tensor* root = checked();
    wtx::check(wtx::api().backward(&root, &gradient.impl_, 1, nullptr, 0, retain_graph.value_or(create_graph),
                                   create_graph, 1, nullptr));
  }
  Tensor variable_data() const { return detach(); }
  Tensor tensor_data() const { return detach(); }
  void set_data(const Tensor& other) const { wtx::check(wtx::api().set_data(checked(), other.checked())); }

  // ---- conversions; all other ops come from the declarations of the runtime ----
  Tensor to(ScalarType dtype, bool non_blocking = false, bool copy = false,
            optional<MemoryFormat> format = nullopt) const {
    return wtx::call<Tensor>("to", *this, dtype, non_blocking, copy, format);
  }
  Tensor to(TypeMeta dtype, bool non_blocking = false, bool copy = false) const {
    return to(dtype.toScalarType(), non_blocking, copy);
  }
  Tensor to(Device device, bool non_blocking = false, bool copy = false) const {
    return wtx::call<Tensor>("to", *this, optional<Device>(device), optional<ScalarType>(), non_blocking,
                             copy, optional<MemoryFormat>());
  }
  Tensor to(DeviceType device, bool non_blocking = false, bool copy = false) const {
    return to(Device(device), non_blocking, copy);
  }
  Tensor to(Device device, ScalarType dtype, bool non_blocking = false, bool copy = false,
            optional<MemoryFormat> format = nullopt) const {
    return wtx::call<Tensor>("to", *this, optional<Device>(device), optional<ScalarType>(dtype), non_blocking,
                             copy, format);
  }
  Tensor to(const TensorOptions& o, bool non_blocking = false, bool copy = false,
            optional<MemoryFormat> format = nullopt) const {
    return wtx::call<Tensor>("to", *this, o.device_opt(), o.dtype_opt(), non_blocking, copy,
                             format ? format : o.memory_format_opt());
  }
  Tensor to(const Tensor& other, bool non_blocking = false, bool copy = false) const {
    return to(other.options(), non_blocking, copy);
  }
  Tensor toType(ScalarType dtype) const { return to(dtype); }
  Tensor type_as(const Tensor& other) const { return to(other); }
  Tensor cpu() const { return to(Device(kCPU)); }
  Tensor cuda() const { return to(Device(kCUDA)); }
  Scalar item() const { return wtx::call<Scalar>("item", *this); }
  template <class T>
  T item() const {
    return item().template to<T>();
  }

  // ---- indexing and operators (TensorOperators.h) ----
  Tensor operator[](int64_t index) const { return select(0, index); }
  Tensor operator[](const Scalar& index) const { return select(0, index.toLong()); }
  Tensor operator[](const Tensor& index) const { return index_select_(index); }
  Tensor index(ArrayRef<indexing::TensorIndex> indices) const;
  Tensor index(std::initializer_list<indexing::TensorIndex> indices) const;
  Tensor& index_put_(ArrayRef<indexing::TensorIndex> indices, const Tensor& value);
  Tensor& index_put_(std::initializer_list<indexing::TensorIndex> indices, const Tensor& value);
  Tensor& index_put_(std::initializer_list<indexing::TensorIndex> indices, const Scalar& value);
  Tensor slice(int64_t dim = 0, optional<int64_t> start = nullopt, optional<int64_t> end = nullopt,
               int64_t step = 1) const;
  Tensor operator-() const { return neg(); }
  Tensor operator~() const { return bitwise_not(); }
#define WARPTAPE_IN_PLACE(op, name)                                       \
  Tensor& operator op(const Tensor& other) { return name(other), *this; } \
  Tensor& operator op(const Scalar& other) { return name(other), *this; }
  WARPTAPE_IN_PLACE(+=, add_)
  WARPTAPE_IN_PLACE(-=, sub_)
  WARPTAPE_IN_PLACE(*=, mul_)
  WARPTAPE_IN_PLACE(/=, div_)
  WARPTAPE_IN_PLACE(&=, bitwise_and_)
  WARPTAPE_IN_PLACE(|=, bitwise_or_)
  WARPTAPE_IN_PLACE(^=, bitwise_xor_)
#undef WARPTAPE_IN_PLACE

  // A description: kind and sizes.
  std::string toString() const {
    return defined() ? str(c10::toString(scalar_type()), sizes(), is_cpu() ? "" : " on " + device().str())
                     : "[undefined tensor]";
  }

#include "ATen/ops/methods.inc"

 private:
  bool has(wtx_trait trait) const { return wtx::api().has(checked(), trait) != 0; }
  wtx_tensor* checked() const {
    if (C10_UNLIKELY(!impl_)) c10::detail::fail("expected a tensor, got an undefined one");
    return impl_;
  }
  size_t wrapped(int64_t d) const {
    const int64_t n = dim(), bound = n == 0 ? 1 : n;
    TORCH_CHECK_INDEX(d >= -bound && d < bound, "Dimension out of range (expected to be in range of [",
                      -bound, ", ", bound - 1, "], but got ", d, ")");
    TORCH_CHECK_INDEX(n != 0, "Dimension specified as ", d, " but tensor has no dimensions");
    return static_cast<size_t>(d < 0 ? d + n : d);
  }
  void check_dims(size_t n, const char* what) const {
    TORCH_CHECK(dim() == static_cast<int64_t>(n), what, ": expected ", n, " dims but tensor has ", dim());
  }
  Tensor index_select_(const Tensor& index) const;
  wtx_tensor* impl_;
};

using TensorBase = Tensor;
inline std::ostream& operator<<(std::ostream& out, const Tensor& t) { return out << t.toString(); }

}  // namespace at
