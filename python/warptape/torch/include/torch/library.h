// TORCH_LIBRARY and TORCH_LIBRARY_IMPL: ops under torch.ops.
#pragma once

#include "ATen/core/ivalue.h"
#include "torch/types.h"

namespace torch {
namespace detail {

// ---- a C++ function as a kernel ----

[[noreturn]] inline void bad_argument(const char* expected) {
  c10::detail::fail<c10::TypeError>("", "expected ", expected);
}

template <class T, class = void>
struct FromValue;
inline double number(const wtx_value& v) {
  if (v.kind == WTX_KIND_DOUBLE) return v.d[0];
  if (v.kind != WTX_KIND_INT && v.kind != WTX_KIND_BOOL) bad_argument("a number");
  return static_cast<double>(v.i);
}
template <class T>
struct FromValue<T, std::enable_if_t<std::is_floating_point<T>::value>> {
  static T get(const wtx_value& v) { return static_cast<T>(number(v)); }
};
template <class T>
struct FromValue<T, std::enable_if_t<std::is_integral<T>::value>> {
  static T get(const wtx_value& v) {
    if (v.kind != WTX_KIND_INT && v.kind != WTX_KIND_BOOL) bad_argument("an int");
    return static_cast<T>(v.i);
  }
};
template <>
struct FromValue<at::Tensor> {
  static at::Tensor get(const wtx_value& v) {
    if (v.kind == WTX_KIND_NONE) return {};
    if (v.kind != WTX_KIND_TENSOR) bad_argument("a Tensor");
    return at::Tensor::share(v.tensor);
  }
};
template <>
struct FromValue<at::Scalar> {
  static at::Scalar get(const wtx_value& v) {
    if (v.kind < WTX_KIND_BOOL || v.kind > WTX_KIND_COMPLEX) bad_argument("a number");
    return wtx::Unbox<at::Scalar>::take(v);
  }
};
template <>
struct FromValue<at::ScalarType> {
  static at::ScalarType get(const wtx_value& v) {
    if (v.kind != WTX_KIND_DTYPE) bad_argument("a dtype");
    return static_cast<at::ScalarType>(v.i);
  }
};
template <>
struct FromValue<at::Device> {
  static at::Device get(const wtx_value& v) {
    if (v.kind != WTX_KIND_DEVICE) bad_argument("a device");
    return {static_cast<at::DeviceType>(v.device.type), v.device.index};
  }
};
template <class T>
struct FromValue<
    T, std::enable_if_t<std::is_same<T, std::string>::value || std::is_same<T, c10::string_view>::value>> {
  static T get(const wtx_value& v) {
    if (v.kind != WTX_KIND_STRING) bad_argument("a string");
    return T(static_cast<const char*>(v.list.data), v.list.size);
  }
};
// Lists are views of what the caller holds, but for those that are converted.
template <>
struct FromValue<std::vector<at::Tensor>> {
  static std::vector<at::Tensor> get(const wtx_value& v) {
    if (v.kind != WTX_KIND_TENSORS && v.list.size) bad_argument("a list of Tensors");
    std::vector<at::Tensor> out;
    for (size_t i = 0; i < v.list.size; ++i)
      out.push_back(at::Tensor::share(static_cast<wtx_tensor* const*>(v.list.data)[i]));
    return out;
  }
};
template <>
struct FromValue<at::TensorList> : FromValue<std::vector<at::Tensor>> {};
template <>
struct FromValue<std::vector<int64_t>> {
  static std::vector<int64_t> get(const wtx_value& v) {
    if (v.kind == WTX_KIND_INT) return {v.i};
    if (v.kind != WTX_KIND_INTS && v.list.size) bad_argument("a list of ints");
    const auto* items = static_cast<const int64_t*>(v.list.data);
    return std::vector<int64_t>(items, items + v.list.size);
  }
};
template <>
struct FromValue<at::IntArrayRef> : FromValue<std::vector<int64_t>> {};
template <>
struct FromValue<at::OptionalIntArrayRef> {
  static at::optional<std::vector<int64_t>> get(const wtx_value& v) {
    if (v.kind == WTX_KIND_NONE) return at::nullopt;
    return FromValue<std::vector<int64_t>>::get(v);
  }
};
template <>
struct FromValue<std::vector<double>> {
  static std::vector<double> get(const wtx_value& v) {
    if (v.kind == WTX_KIND_INTS) {
      const auto ints = FromValue<std::vector<int64_t>>::get(v);
      return std::vector<double>(ints.begin(), ints.end());
    }
    if (v.kind != WTX_KIND_DOUBLES) bad_argument("a list of floats");
    const auto* items = static_cast<const double*>(v.list.data);
    return std::vector<double>(items, items + v.list.size);
  }
};
template <>
struct FromValue<c10::ArrayRef<double>> : FromValue<std::vector<double>> {};
template <class T>
struct FromValue<at::optional<T>> {
  static at::optional<T> get(const wtx_value& v) {
    if (v.kind == WTX_KIND_NONE) return at::nullopt;
    return at::optional<T>(FromValue<T>::get(v));
  }
};

template <class R>
struct Push {
  static void push(wtx_result* out, const R& result) {
    const wtx_value v = wtx::Box<R>::box(result);
    wtx::check(wtx::api().result_push(out, &v));
  }
};
template <class... R>
struct Push<std::tuple<R...>> {
  static void push(wtx_result* out, const std::tuple<R...>& results) {
    std::apply([&](const auto&... r) { (Push<std::decay_t<decltype(r)>>::push(out, r), ...); }, results);
  }
};

// The arguments of a call, held while it runs: IntArrayRef is made of a vector here.
template <class R, class... A>
struct Kernel {
  template <class F>
  static int run(const F& f, const wtx_value* args, size_t count, wtx_result* out) {
    return wtx::guarded([&] {
      TORCH_CHECK_TYPE(count == sizeof...(A), "the kernel takes ", sizeof...(A),
                       " arguments, and its schema has ", count);
      call(f, args, out, std::index_sequence_for<A...>());
    });
  }
  template <class F, size_t... I>
  static void call(const F& f, const wtx_value* args, wtx_result* out, std::index_sequence<I...>) {
    auto held = std::make_tuple(FromValue<std::decay_t<A>>::get(args[I])...);
    if constexpr (std::is_void<R>::value)
      f(static_cast<A>(std::get<I>(held))...);
    else
      Push<std::decay_t<R>>::push(out, f(static_cast<A>(std::get<I>(held))...));
  }
};

template <class F>
struct Signature : Signature<decltype(&F::operator())> {};
template <class R, class... A>
struct Signature<R (*)(A...)> {
  using type = Kernel<R, A...>;
};
template <class C, class R, class... A>
struct Signature<R (C::*)(A...) const> {
  using type = Kernel<R, A...>;
};

}  // namespace detail

// A function for a dispatch key, as torch::dispatch makes it.
template <class F>
struct CppFunction {
  std::string key;
  F f;
};
template <class F>
auto dispatch(c10::DeviceType device, F f) {
  return CppFunction<F>{c10::DeviceTypeName(device), std::move(f)};
}
template <class F>
auto dispatch(const char* key, F f) {
  return CppFunction<F>{key, std::move(f)};
}

// What the blocks of TORCH_LIBRARY are given. It registers ops, and functions for them, as they are loaded.
class Library {
 public:
  Library(std::string space, std::string key) : space_(std::move(space)), key_(std::move(key)) {}

  Library& def(const std::string& schema) {
    wtx::check(wtx::api().define(space_.c_str(), schema.c_str()));
    return *this;
  }
  // With a function for all devices, made of ops that have gradients.
  template <class F>
  Library& def(const std::string& schema, F&& f) {
    def(schema.find('(') == std::string::npos ? schema + "(...) -> ..." : schema);
    return add(schema.substr(0, schema.find('(')), "CompositeImplicitAutograd", std::forward<F>(f));
  }
  template <class F>
  Library& impl(const std::string& name, F&& f) {
    return add(name, key_.empty() ? "CompositeImplicitAutograd" : key_, std::forward<F>(f));
  }
  template <class F>
  Library& impl(const std::string& name, c10::DeviceType device, F&& f) {
    return add(name, c10::DeviceTypeName(device), std::forward<F>(f));
  }
  template <class F>
  Library& impl(const std::string& name, CppFunction<F> f) {
    return add(name, f.key, std::move(f.f));
  }
  Library& set_python_module(const char*, const char* = "") { return *this; }

 private:
  template <class F>
  Library& add(const std::string& name, const std::string& key, F&& f) {
    using Function = std::decay_t<F>;
    auto* held = new Function(std::forward<F>(f));  // as long as the process
    const wtx_kernel kernel = [](void* p, const wtx_value* args, size_t count, wtx_result* out) {
      return detail::Signature<Function>::type::run(*static_cast<Function*>(p), args, count, out);
    };
    const std::string full = name.find("::") == std::string::npos ? space_ + "::" + name : name;
    wtx::check(wtx::api().implement(full.c_str(), key.c_str(), kernel, held));
    return *this;
  }
  std::string space_, key_;
};

// The older way to register: static auto ops = torch::RegisterOperators().op("space::name", &function);
class RegisterOperators {
 public:
  template <class F>
  RegisterOperators& op(const std::string& schema, F&& f) & {
    const size_t colons = schema.find("::");
    TORCH_CHECK(colons != std::string::npos, "RegisterOperators: expected space::name, got ", schema);
    if (wtx::table().api)
      Library(schema.substr(0, colons), "").def(schema.substr(colons + 2), std::forward<F>(f));
    return *this;
  }
  template <class F>
  RegisterOperators&& op(const std::string& schema, F&& f) && {
    op(schema, std::forward<F>(f));
    return std::move(*this);
  }
};

namespace detail {

// Runs a block, unless the runtime refused the extension: it is asked again where the ops are looked for.
struct LibraryInit {
  LibraryInit(const char* space, const char* key, void (*block)(Library&)) {
    if (!wtx::table().api) return;
    Library library(space, key);
    block(library);
  }
};

}  // namespace detail
}  // namespace torch

// ---- ops called by name ----

namespace c10 {

template <class F>
class TypedOperatorHandle;
template <class R, class... A>
class TypedOperatorHandle<R(A...)> {
 public:
  explicit TypedOperatorHandle(std::string name) : name_(std::move(name)) {}
  R call(A... args) const {
    const wtx_value values[] = {wtx::Box<std::decay_t<A>>::box(args)..., wtx::none()};
    if (name_.compare(0, 6, "aten::") == 0)
      return wtx::Unbox<R>::take(wtx::call_boxed(name_.c_str() + 6, values, sizeof...(A)));
    wtx_result* made = nullptr;
    wtx::check(wtx::api().call_registered(name_.c_str(), values, sizeof...(A), &made));
    struct Free {
      wtx_result* result;
      ~Free() { wtx::api().result_free(result); }
    } held{made};
    return take(made, static_cast<R*>(nullptr));
  }

 private:
  static void take(const wtx_result*, void*) {}
  template <class T>
  static T take(const wtx_result* r, T*) {
    TORCH_CHECK(wtx::api().result_count(r) == 1, "expected one result");
    return torch::detail::FromValue<T>::get(wtx::api().result_value(r, 0));
  }
  template <class... T>
  static std::tuple<T...> take(const wtx_result* r, std::tuple<T...>*) {
    TORCH_CHECK(wtx::api().result_count(r) == sizeof...(T), "expected ", sizeof...(T), " results");
    return take_all<T...>(r, std::index_sequence_for<T...>());
  }
  template <class... T, size_t... I>
  static std::tuple<T...> take_all(const wtx_result* r, std::index_sequence<I...>) {
    return std::tuple<T...>(torch::detail::FromValue<T>::get(wtx::api().result_value(r, I))...);
  }
  std::string name_;
};
template <class R, class... A>
class TypedOperatorHandle<R (*)(A...)> : public TypedOperatorHandle<R(A...)> {
  using TypedOperatorHandle<R(A...)>::TypedOperatorHandle;
};

struct OperatorHandle {
  std::string name;
  template <class F>
  TypedOperatorHandle<F> typed() const {
    return TypedOperatorHandle<F>(name);
  }
};
struct Dispatcher {
  static Dispatcher& singleton() {
    static Dispatcher one;
    return one;
  }
  // An op of an extension, or of aten; whether it is there shows when it is called.
  OperatorHandle findSchemaOrThrow(const std::string& name, const std::string& overload) const {
    return {overload.empty() || name.compare(0, 6, "aten::") == 0 ? name : name + "." + overload};
  }
};

}  // namespace c10
namespace torch {
using c10::Dispatcher;
}

#define WARPTAPE_LIBRARY(space, key, m, id)                                              \
  static void C10_CONCATENATE(warptape_library_, id)(::torch::Library&);                 \
  static const ::torch::detail::LibraryInit C10_CONCATENATE(warptape_library_init_, id)( \
      space, key, &C10_CONCATENATE(warptape_library_, id));                              \
  void C10_CONCATENATE(warptape_library_, id)(::torch::Library & m)
#define TORCH_LIBRARY(space, m) WARPTAPE_LIBRARY(#space, "", m, __COUNTER__)
#define TORCH_LIBRARY_FRAGMENT(space, m) WARPTAPE_LIBRARY(#space, "", m, __COUNTER__)
#define TORCH_LIBRARY_IMPL(space, key, m) WARPTAPE_LIBRARY(#space, #key, m, __COUNTER__)
#define TORCH_SELECTIVE_NAME(name) name
#define TORCH_SELECTIVE_SCHEMA(schema) schema
#define TORCH_FN(function) (&function)
