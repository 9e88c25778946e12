// Functions of tensors. Those of ATen/ops are written from the declarations of the ops.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>

#include "ATen/TensorIndexing.h"

namespace at {

// Puts a result into a tensor that the caller has, which takes on its sizes.
inline Tensor& write_out(Tensor& out, const Tensor& result) {
  if (out.sizes() != result.sizes()) out.resize_(result.sizes());
  return out.copy_(result);
}

#include "ATen/ops/functions.inc"

inline Tensor arange(const Scalar& start, const Scalar& end, const TensorOptions& options) {
  return arange(start, end, 1, options);
}
inline Tensor zeros_like(const Tensor& self, MemoryFormat format) {
  return zeros_like(self, TensorOptions(), format);
}
inline Tensor empty_like(const Tensor& self, MemoryFormat format) {
  return empty_like(self, TensorOptions(), format);
}
inline Tensor empty(IntArrayRef size, optional<ScalarType> dtype, optional<Layout>, optional<Device> device,
                    optional<bool> pinned, optional<MemoryFormat> format) {
  return empty(size, TensorOptions().dtype(dtype).device(device).pinned_memory(pinned), format);
}

// Memory of somebody else as a tensor. `deleter` is called with it when no tensor needs it.
inline Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides,
                        const std::function<void(void*)>& deleter, const TensorOptions& options = {}) {
  struct Held {
    std::function<void(void*)> deleter;
    void* data;
  };
  Held* held = deleter ? new Held{deleter, data} : nullptr;
  const auto drop = [](void* p) {
    auto* h = static_cast<Held*>(p);
    if (h) h->deleter(h->data);
    delete h;
  };
  TORCH_CHECK(strides.empty() || strides.size() == sizes.size(), "from_blob: ", sizes.size(), " sizes and ",
              strides.size(), " strides");
  wtx_tensor* made = nullptr;
  const Device device = options.device();
  const int status = wtx::api().from_blob(
      data, sizes.data(), strides.empty() ? nullptr : strides.data(), sizes.size(),
      static_cast<wtx_dtype>(options.dtype().toScalarType()),
      wtx_device{static_cast<int8_t>(device.type()), device.is_cuda() ? device.index() : int8_t{0}}, drop,
      held, &made);
  if (status != 0) delete held;
  wtx::check(status);
  Tensor t = Tensor::adopt(made);
  if (options.requires_grad()) t.set_requires_grad(true);
  return t;
}
inline Tensor from_blob(void* data, IntArrayRef sizes, const std::function<void(void*)>& deleter,
                        const TensorOptions& options = {}) {
  return from_blob(data, sizes, {}, deleter, options);
}
inline Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides,
                        const TensorOptions& options = {}) {
  return from_blob(data, sizes, strides, std::function<void(void*)>(), options);
}
inline Tensor from_blob(void* data, IntArrayRef sizes, const TensorOptions& options = {}) {
  return from_blob(data, sizes, {}, std::function<void(void*)>(), options);
}

// A tensor of the given values: of their type, floats of the default dtype, unless the options say another.
template <class T>
Tensor tensor(ArrayRef<T> values, const TensorOptions& options = {}) {
  constexpr ScalarType own = CppTypeToScalarType<T>::value;
  Tensor t = empty({static_cast<int64_t>(values.size())}, TensorOptions(own));
  std::copy(values.begin(), values.end(), t.template data_ptr<T>());
  const ScalarType dtype =
      options.dtype_opt().value_or(isFloatingType(own)  ? TensorOptions().dtype().toScalarType()
                                   : own == kBool       ? kBool
                                   : isComplexType(own) ? own
                                                        : kLong);
  t = t.to(TensorOptions(dtype).device(options.device()));
  return options.requires_grad() ? t.set_requires_grad(true) : t;
}
template <class T>
Tensor tensor(std::initializer_list<T> values, const TensorOptions& options = {}) {
  return tensor(ArrayRef<T>(values.begin(), values.size()), options);
}
template <class T>
Tensor tensor(const std::vector<T>& values, const TensorOptions& options = {}) {
  return tensor(ArrayRef<T>(values), options);
}
template <class T, std::enable_if_t<std::is_arithmetic<T>::value, int> = 0>
Tensor tensor(T value, const TensorOptions& options = {}) {
  return tensor(ArrayRef<T>(&value, 1), options).reshape(IntArrayRef());
}

inline int64_t numel(const Tensor& self) { return self.numel(); }
inline int64_t size(const Tensor& self, int64_t dim) { return self.size(dim); }
inline bool is_floating_point(const Tensor& self) { return self.is_floating_point(); }
inline ScalarType promoteTypes(ScalarType a, ScalarType b) {
  return wtx::call<ScalarType>("promote_types", a, b);
}
inline bool hasCUDA() { return wtx::api().device_count() > 0; }

}  // namespace at
