// Ops that extensions register. They are kept here until the Python layer asks: a library registers them from
// its static constructors, where no Python may run.
#include <mutex>

#include "capi/extension_parts.h"

namespace warptape::extension {
namespace {

std::mutex mutex;
Registered registered;

int define(const char* space, const char* schema) {
  return guarded([&] {
    std::lock_guard lock(mutex);
    registered.definitions.push_back({space, schema});
  });
}

int implement(const char* name, const char* key, wtx_kernel kernel, void* context) {
  return guarded([&] {
    std::lock_guard lock(mutex);
    registered.implementations.push_back({name, key, kernel, context});
  });
}

int result_push(wtx_result* result, const wtx_value* value) {
  return guarded([&] { result->values.emplace_back(*value); });
}

size_t item_size(wtx_kind kind) {
  return kind == WTX_KIND_STRING ? 1 : kind == WTX_KIND_INTS || kind == WTX_KIND_DOUBLES ? 8 : 0;
}

}  // namespace

OwnedValue::OwnedValue(const wtx_value& v) : value_(v) {
  if (v.kind == WTX_KIND_TENSOR) tensors_.push_back(tensor_of(v.tensor));
  if (v.kind == WTX_KIND_TENSORS)
    for (size_t i = 0; i < v.list.size; ++i) {
      tensors_.push_back(tensor_of(static_cast<wtx_tensor* const*>(v.list.data)[i]));
      handles_.push_back(handle(tensors_.back()));
    }
  const size_t bytes = item_size(v.kind) ? v.list.size * item_size(v.kind) : 0;
  if (bytes)
    bytes_.assign(static_cast<const char*>(v.list.data), static_cast<const char*>(v.list.data) + bytes);
}

wtx_value OwnedValue::value() const {
  wtx_value v = value_;
  if (v.kind == WTX_KIND_TENSORS) v.list.data = handles_.data();
  if (item_size(v.kind)) v.list.data = bytes_.data();
  return v;
}

Registered take_registered() {
  std::lock_guard lock(mutex);
  return std::exchange(registered, {});
}

std::vector<OwnedValue> run_kernel(const Implementation& op, std::span<const wtx_value> args) {
  wtx_result result;
  if (op.kernel(op.context, args.data(), args.size(), &result) != 0) throw_error();
  return std::move(result.values);
}

void fill_ops(wtx_api& api) {
  api.define = define;
  api.implement = implement;
  api.result_push = result_push;
}

}  // namespace warptape::extension
