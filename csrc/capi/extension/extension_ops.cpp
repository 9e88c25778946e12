// Ops that extensions register. They are kept here until the Python layer asks: a library registers them from
// its static constructors, where no Python may run.
#include <map>
#include <mutex>

#include "capi/extension/extension_parts.h"

namespace warptape::extension {
namespace {

std::mutex mutex;
Registered registered;
std::map<std::string, std::map<std::string, Implementation>, std::less<>> kernels;  // by op and key

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
    kernels[name][key] = registered.implementations.back();
  });
}

int result_push(wtx_result* result, const wtx_value* value) {
  return guarded([&] { result->values.emplace_back(*value); });
}

// The keys whose function a call takes, the first that there is.
std::vector<std::string> keys_of(std::span<const wtx_value> args) {
  const char* device = nullptr;
  bool recorded = false;
  const auto see = [&](const wtx_tensor* t) {
    if (!t) return;
    if (!device) device = tensor_of(t).device().is_cuda() ? "CUDA" : tensor_of(t).is_meta() ? "Meta" : "CPU";
    recorded |= needs_grad(tensor_of(t));
  };
  for (const wtx_value& v : args) {
    if (v.kind == WTX_KIND_TENSOR) see(v.tensor);
    if (v.kind == WTX_KIND_TENSORS)
      for (size_t i = 0; i < v.list.size; ++i) see(static_cast<wtx_tensor* const*>(v.list.data)[i]);
  }
  std::vector<std::string> keys;
  const std::string place = device ? device : "CPU";
  if (recorded) keys = {"Autograd", "Autograd" + place};
  keys.insert(keys.end(), {place, "CompositeExplicitAutograd", "CompositeImplicitAutograd", "Autograd"});
  return keys;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

Implementation find_kernel(const char* name, std::span<const wtx_value> args) {
  const auto keys = keys_of(args);
  std::lock_guard lock(mutex);
  const auto op = kernels.find(std::string_view(name));
  WT_CHECK(op != kernels.end(), NotImplementedError, "no extension has registered a function for ", name);
  for (const std::string& key : keys)
    if (const auto found = op->second.find(key); found != op->second.end()) return found->second;
  throw NotImplementedError(message(name, ": no function for any of ", joined(keys)));
}

int call_registered(const char* name, const wtx_value* args, size_t num_args, wtx_result** out) {
  return guarded([&] {
    const Implementation op = find_kernel(name, {args, num_args});
    auto result = std::make_unique<wtx_result>();
    if (op.kernel(op.context, args, num_args, result.get()) != 0) throw_error();
    *out = result.release();
  });
}

size_t item_size(wtx_kind kind) {
  if (kind == WTX_KIND_NUMBERS) return sizeof(wtx_value);
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
  api.call_registered = call_registered;
  api.result_count = [](const wtx_result* r) { return r->values.size(); };
  api.result_value = [](const wtx_result* r, size_t i) { return r->values[i].value(); };
  api.result_free = [](wtx_result* r) { delete r; };
}

}  // namespace warptape::extension
