// What the files of the interface for extensions (extension.h) share, and what the bindings take of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "capi/extension/extension.h"
#include "op/op.h"

struct wtx_result;

namespace warptape::extension {

// ---- errors ----
// Notes the exception in flight as the thread's error.
void note_error() noexcept;
// Throws the thread's error, which an extension's function set before it returned -1.
[[noreturn]] WT_API void throw_error();
// What f does, or -1 with the thread's error noted.
template <class F>
int guarded(F&& f) noexcept {
  try {
    f();
    return 0;
  } catch (...) {
    note_error();
    return -1;
  }
}

// ---- handles ----
inline wtx_tensor* handle(TensorImpl* impl) { return reinterpret_cast<wtx_tensor*>(impl); }
inline wtx_tensor* handle(const Tensor& t) { return handle(t.impl()); }
inline TensorImpl* impl_of(const wtx_tensor* t) {
  return reinterpret_cast<TensorImpl*>(const_cast<wtx_tensor*>(t));
}
inline Tensor tensor_of(const wtx_tensor* t) { return Tensor(Ref<TensorImpl>::share(impl_of(t))); }
// An owned handle.
inline wtx_tensor* give(Tensor t) {
  if (t.defined()) t->retain();
  return handle(t);
}
inline DType dtype_of(int64_t t) {
  WT_CHECK(t >= 0 && t < kNumDTypes, DtypeError, "unknown dtype ", t);
  return static_cast<DType>(t);
}
inline wtx_dtype dtype_of(DType t) { return static_cast<wtx_dtype>(t); }
inline Device device_of(wtx_device d) {
  WT_CHECK(d.type >= 0 && d.type < kNumDeviceTypes, DeviceError, "unknown device type ", int{d.type});
  return {static_cast<DeviceType>(d.type), d.index};
}
inline wtx_device device_of(Device d) { return {static_cast<int8_t>(d.type), d.index}; }

WT_API const wtx_api& table();
// The parts of the table.
void fill_calls(wtx_api& api);
void fill_tape(wtx_api& api);
void fill_ops(wtx_api& api);

// ---- ops that extensions registered ----
struct Definition {
  std::string space, schema;
};
struct Implementation {
  std::string name, key;
  wtx_kernel kernel;
  void* context;
};
// What was registered since the last call, in order.
struct Registered {
  std::vector<Definition> definitions;
  std::vector<Implementation> implementations;
};
WT_API Registered take_registered();
// The extensions that were refused, as texts that name both versions.
WT_API std::vector<std::string> refused();

// Owned copies of values, as a kernel returned them.
class WT_API OwnedValue {
 public:
  explicit OwnedValue(const wtx_value& v);
  wtx_value value() const;

 private:
  wtx_value value_;
  std::vector<Tensor> tensors_;
  std::vector<wtx_tensor*> handles_;
  std::vector<char> bytes_;
};
// Runs a kernel of an extension; throws what it set.
WT_API std::vector<OwnedValue> run_kernel(const Implementation& op, std::span<const wtx_value> args);

}  // namespace warptape::extension

struct wtx_result {
  std::vector<warptape::extension::OwnedValue> values;
};
