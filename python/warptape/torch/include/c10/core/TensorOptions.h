// How a tensor is to be made.
#pragma once

#include "c10/core/Device.h"
#include "c10/core/Scalar.h"

namespace c10 {

enum class Layout : int8_t { Strided, Sparse };
constexpr Layout kStrided = Layout::Strided, kSparse = Layout::Sparse;
enum class MemoryFormat : int8_t { Contiguous, Preserve, ChannelsLast, ChannelsLast3d };

class TensorOptions {
 public:
  TensorOptions() = default;
  TensorOptions(ScalarType t) : dtype_(t) {}
  TensorOptions(TypeMeta t) : dtype_(t.toScalarType()) {}
  TensorOptions(Device d) : device_(d) {}
  TensorOptions(DeviceType d) : device_(d) {}
  TensorOptions(Layout l) : layout_(l) {}
  TensorOptions(MemoryFormat f) : memory_format_(f) {}

  TensorOptions dtype(optional<ScalarType> t) const { return with(&TensorOptions::dtype_, t); }
  TensorOptions dtype(ScalarType t) const { return dtype(optional<ScalarType>(t)); }
  TensorOptions dtype(TypeMeta t) const { return dtype(t.toScalarType()); }
  template <class T>
  TensorOptions dtype() const {
    return dtype(CppTypeToScalarType<T>::value);
  }
  TensorOptions device(optional<Device> d) const { return with(&TensorOptions::device_, d); }
  TensorOptions device(DeviceType type, DeviceIndex index = -1) const { return device(Device(type, index)); }
  TensorOptions device_index(DeviceIndex index) const { return device(Device(kCUDA, index)); }
  TensorOptions layout(optional<Layout> l) const { return with(&TensorOptions::layout_, l); }
  TensorOptions requires_grad(optional<bool> on) const { return with(&TensorOptions::requires_grad_, on); }
  TensorOptions pinned_memory(optional<bool> on) const { return with(&TensorOptions::pinned_, on); }
  TensorOptions memory_format(optional<MemoryFormat> f) const {
    return with(&TensorOptions::memory_format_, f);
  }

  TypeMeta dtype() const { return dtype_.value_or(default_dtype()); }
  Device device() const { return device_.value_or(Device(kCPU)); }
  Layout layout() const { return layout_.value_or(kStrided); }
  bool requires_grad() const { return requires_grad_.value_or(false); }
  bool pinned_memory() const { return pinned_.value_or(false); }
  bool has_dtype() const { return dtype_.has_value(); }
  bool has_device() const { return device_.has_value(); }
  optional<ScalarType> dtype_opt() const { return dtype_; }
  optional<Device> device_opt() const { return device_; }
  optional<bool> requires_grad_opt() const { return requires_grad_; }
  optional<MemoryFormat> memory_format_opt() const { return memory_format_; }
  bool is_cuda() const { return device().is_cuda(); }
  // Of what Tensor::type() returns.
  ScalarType scalarType() const { return dtype().toScalarType(); }
  std::string toString() const { return str(device().is_cuda() ? "CUDA" : "CPU", dtype(), "Type"); }
  friend bool operator==(const TensorOptions& a, const TensorOptions& b) {
    return a.scalarType() == b.scalarType() && a.device() == b.device() && a.layout() == b.layout();
  }
  friend bool operator!=(const TensorOptions& a, const TensorOptions& b) { return !(a == b); }
  friend std::ostream& operator<<(std::ostream& out, const TensorOptions& o) { return out << o.toString(); }
  // These options where they are set, `other` where it is.
  TensorOptions merge_in(const TensorOptions& other) const {
    TensorOptions out = *this;
    if (other.dtype_) out.dtype_ = other.dtype_;
    if (other.device_) out.device_ = other.device_;
    if (other.layout_) out.layout_ = other.layout_;
    if (other.requires_grad_) out.requires_grad_ = other.requires_grad_;
    if (other.pinned_) out.pinned_ = other.pinned_;
    if (other.memory_format_) out.memory_format_ = other.memory_format_;
    return out;
  }

 private:
  static ScalarType default_dtype() { return static_cast<ScalarType>(wtx::api().default_dtype()); }
  template <class T>
  TensorOptions with(optional<T> TensorOptions::* member, optional<T> value) const {
    TensorOptions out = *this;
    out.*member = value;
    return out;
  }
  optional<ScalarType> dtype_;
  optional<Device> device_;
  optional<Layout> layout_;
  optional<MemoryFormat> memory_format_;
  optional<bool> requires_grad_, pinned_;
};

inline TensorOptions dtype(ScalarType t) { return TensorOptions(t); }
inline TensorOptions dtype(TypeMeta t) { return TensorOptions(t); }
template <class T>
TensorOptions dtype() {
  return TensorOptions(CppTypeToScalarType<T>::value);
}
inline TensorOptions device(Device d) { return TensorOptions(d); }
inline TensorOptions device(DeviceType type, DeviceIndex index) { return TensorOptions(Device(type, index)); }
inline TensorOptions layout(Layout l) { return TensorOptions(l); }
inline TensorOptions requires_grad(bool on = true) { return TensorOptions().requires_grad(on); }
inline TensorOptions memory_format(MemoryFormat f) { return TensorOptions(f); }

}  // namespace c10
