// From C++ to the values of warptape/extension.h and back.
#pragma once

#include <tuple>

#include "c10/core/TensorOptions.h"

namespace at {
class Tensor;
class Generator;
}  // namespace at

namespace warptape {
namespace [[gnu::visibility("hidden")]] extension {

// Arguments. A template, so that nothing is converted on the way to an overload.
template <class T, class = void>
struct Box;
inline wtx_value none() {
  wtx_value v;
  v.kind = WTX_KIND_NONE;
  v.d[0] = v.d[1] = 0;
  return v;
}
inline wtx_value of_int(wtx_kind kind, int64_t i) {
  wtx_value v = none();
  v.kind = kind;
  v.i = i;
  return v;
}
inline wtx_value of_list(wtx_kind kind, const void* data, size_t size) {
  wtx_value v = none();
  v.kind = kind;
  v.list.data = data;
  v.list.size = size;
  return v;
}
#define WARPTAPE_BOX(T, ...)                                 \
  template <>                                                \
  struct Box<T> {                                            \
    static wtx_value box(const T& x) { return __VA_ARGS__; } \
  }
WARPTAPE_BOX(std::nullopt_t, (void)x, none());
WARPTAPE_BOX(bool, of_int(WTX_KIND_BOOL, x));
WARPTAPE_BOX(int64_t, of_int(WTX_KIND_INT, x));
WARPTAPE_BOX(double, c10::Scalar(x).value());
WARPTAPE_BOX(c10::Scalar, x.value());
WARPTAPE_BOX(c10::ScalarType, of_int(WTX_KIND_DTYPE, static_cast<int64_t>(x)));
WARPTAPE_BOX(c10::TypeMeta, of_int(WTX_KIND_DTYPE, static_cast<int64_t>(x.toScalarType())));
WARPTAPE_BOX(c10::IntArrayRef, of_list(WTX_KIND_INTS, x.data(), x.size()));
WARPTAPE_BOX(std::vector<int64_t>, of_list(WTX_KIND_INTS, x.data(), x.size()));
WARPTAPE_BOX(c10::ArrayRef<double>, of_list(WTX_KIND_DOUBLES, x.data(), x.size()));
WARPTAPE_BOX(std::vector<double>, of_list(WTX_KIND_DOUBLES, x.data(), x.size()));
WARPTAPE_BOX(c10::string_view, of_list(WTX_KIND_STRING, x.data(), x.size()));
WARPTAPE_BOX(std::string, of_list(WTX_KIND_STRING, x.data(), x.size()));
WARPTAPE_BOX(c10::OptionalIntArrayRef, x ? of_list(WTX_KIND_INTS, (*x).data(), (*x).size()) : none());
#undef WARPTAPE_BOX
template <>
struct Box<c10::ArrayRef<c10::Scalar>> {
  static wtx_value box(const c10::ArrayRef<c10::Scalar>& list) {
    static_assert(sizeof(c10::Scalar) == sizeof(wtx_value), "a list of numbers is a list of values");
    return of_list(WTX_KIND_NUMBERS, list.data(), list.size());
  }
};
template <class T>
struct Box<T, std::enable_if_t<std::is_arithmetic<T>::value>> {
  static wtx_value box(T x) { return c10::Scalar(x).value(); }
};
template <>
struct Box<c10::Device> {
  static wtx_value box(const c10::Device& d) {
    wtx_value v = none();
    v.kind = WTX_KIND_DEVICE;
    v.device.type = static_cast<int8_t>(d.type());
    v.device.index = d.is_cuda() ? d.index() : int8_t{0};
    return v;
  }
};
// Formats by their names in PyTorch.
template <>
struct Box<c10::MemoryFormat> {
  static wtx_value box(const c10::MemoryFormat& f) {
    constexpr c10::string_view names[] = {"torch.contiguous_format", "torch.preserve_format",
                                          "torch.channels_last", "torch.channels_last_3d"};
    const c10::string_view& name = names[static_cast<int>(f)];
    return of_list(WTX_KIND_STRING, name.data(), name.size());
  }
};
template <class T>
struct Box<T, std::enable_if_t<std::is_same<T, at::Tensor>::value>> {
  static wtx_value box(const T& t) {
    wtx_value v = none();
    v.kind = WTX_KIND_TENSOR;
    v.tensor = t.unsafeGetTensorImpl();
    return v;
  }
};
// Tensors are pointers and nothing else.
template <class T>
struct Box<c10::ArrayRef<T>, std::enable_if_t<std::is_same<T, at::Tensor>::value>> {
  static wtx_value box(c10::ArrayRef<T> list) {
    static_assert(sizeof(T) == sizeof(wtx_tensor*), "a list of tensors is a list of pointers");
    return of_list(WTX_KIND_TENSORS, list.data(), list.size());
  }
};
template <class T>
struct Box<std::vector<T>, std::enable_if_t<std::is_same<T, at::Tensor>::value>> {
  static wtx_value box(const std::vector<T>& list) { return Box<c10::ArrayRef<T>>::box(list); }
};
template <>
struct Box<std::optional<at::Generator>> {
  static wtx_value box(const std::optional<at::Generator>&) { return none(); }
};
template <class T>
struct Box<std::optional<T>> {
  static wtx_value box(const std::optional<T>& x) { return x ? Box<T>::box(*x) : none(); }
};

// Results.
template <class R>
struct Unbox;
template <>
struct Unbox<void> {
  static void take(const wtx_value&) {}
};
template <>
struct Unbox<at::Tensor> {
  template <class T = at::Tensor>
  static T take(const wtx_value& v) {
    return T::adopt(v.tensor);
  }
};
template <class T>
struct Unbox<std::vector<T>> {
  static std::vector<T> take(const wtx_value& v) {
    if constexpr (std::is_same<T, at::Tensor>::value) {
      std::vector<T> out;
      if (v.kind == WTX_KIND_TENSOR) out.push_back(T::adopt(v.tensor));  // an op that returns one or many
      if (v.kind == WTX_KIND_TENSORS)
        for (size_t i = 0; i < v.list.size; ++i)
          out.push_back(T::adopt(static_cast<wtx_tensor* const*>(v.list.data)[i]));
      return out;
    } else {
      const T* items = static_cast<const T*>(v.list.data);
      return std::vector<T>(items, items + v.list.size);
    }
  }
};
template <class... T>
struct Unbox<std::tuple<T...>> {
  static std::tuple<T...> take(const wtx_value& v) {
    return take(static_cast<wtx_tensor* const*>(v.list.data), std::index_sequence_for<T...>());
  }
  template <size_t... I>
  static std::tuple<T...> take(wtx_tensor* const* items, std::index_sequence<I...>) {
    return std::tuple<T...>(T::adopt(items[I])...);
  }
};
template <>
struct Unbox<c10::Scalar> {
  static c10::Scalar take(const wtx_value& v) {
    if (v.kind == WTX_KIND_COMPLEX) return c10::complex<double>(v.d[0], v.d[1]);
    if (v.kind == WTX_KIND_DOUBLE) return v.d[0];
    if (v.kind == WTX_KIND_BOOL) return v.i != 0;
    return v.i;
  }
};
template <>
struct Unbox<bool> {
  static bool take(const wtx_value& v) { return v.i != 0; }
};
template <>
struct Unbox<int64_t> {
  static int64_t take(const wtx_value& v) { return v.i; }
};
template <>
struct Unbox<double> {
  static double take(const wtx_value& v) { return v.d[0]; }
};
template <>
struct Unbox<c10::ScalarType> {
  static c10::ScalarType take(const wtx_value& v) { return static_cast<c10::ScalarType>(v.i); }
};

inline wtx_value call_boxed(const char* name, const wtx_value* args, size_t count) {
  wtx_value out;
  check(api().call(name, args, count, &out));
  return out;
}
// The op of that name, of the overload with these arguments.
template <class R, class... A>
R call(const char* name, const A&... args) {
  const wtx_value values[] = {Box<A>::box(args)..., none()};
  return Unbox<R>::take(call_boxed(name, values, sizeof...(A)));
}
// An op that changes its first argument and returns it: what it returns is dropped.
template <class T, class... A>
T& call_in_place(const char* name, T& self, const A&... args) {
  call<at::Tensor>(name, self, args...);
  return self;
}

}  // namespace extension
}  // namespace warptape
