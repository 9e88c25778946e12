// Code for each dtype: inside, scalar_t is the type in C++.
#pragma once

#include "ATen/Functions.h"

namespace at {
namespace detail {

inline ScalarType scalar_type(ScalarType t) { return t; }
inline ScalarType scalar_type(const TensorOptions& o) { return o.dtype().toScalarType(); }  // of x.type()

}  // namespace detail
}  // namespace at

#define AT_DISPATCH_CASE(scalar_type, ...)                                      \
  case scalar_type: {                                                           \
    using scalar_t [[maybe_unused]] = ::c10::ScalarTypeToCPPTypeT<scalar_type>; \
    return __VA_ARGS__();                                                       \
  }
#define AT_DISPATCH_SWITCH(TYPE, NAME, ...)                                                        \
  [&] {                                                                                            \
    const ::at::ScalarType warptape_type = ::at::detail::scalar_type(TYPE);                        \
    switch (warptape_type) {                                                                       \
      __VA_ARGS__                                                                                  \
      default:                                                                                     \
        ::c10::detail::fail<::c10::NotImplementedError>("", '"', NAME, "\" not implemented for '", \
                                                        ::c10::toString(warptape_type), "'");      \
    }                                                                                              \
  }()

#define WARPTAPE_FLOATING(...)                            \
  AT_DISPATCH_CASE(::at::ScalarType::Double, __VA_ARGS__) \
  AT_DISPATCH_CASE(::at::ScalarType::Float, __VA_ARGS__)
#define WARPTAPE_INTEGRAL(...)                          \
  AT_DISPATCH_CASE(::at::ScalarType::Byte, __VA_ARGS__) \
  AT_DISPATCH_CASE(::at::ScalarType::Char, __VA_ARGS__) \
  AT_DISPATCH_CASE(::at::ScalarType::Int, __VA_ARGS__)  \
  AT_DISPATCH_CASE(::at::ScalarType::Long, __VA_ARGS__) \
  AT_DISPATCH_CASE(::at::ScalarType::Short, __VA_ARGS__)
#define WARPTAPE_COMPLEX(...)                                    \
  AT_DISPATCH_CASE(::at::ScalarType::ComplexDouble, __VA_ARGS__) \
  AT_DISPATCH_CASE(::at::ScalarType::ComplexFloat, __VA_ARGS__)
#define WARPTAPE_ALL(...) WARPTAPE_FLOATING(__VA_ARGS__) WARPTAPE_INTEGRAL(__VA_ARGS__)
#define WARPTAPE_1(t, ...) AT_DISPATCH_CASE(t, __VA_ARGS__)
#define WARPTAPE_2(t, u, ...) WARPTAPE_1(t, __VA_ARGS__) WARPTAPE_1(u, __VA_ARGS__)
#define WARPTAPE_3(t, u, v, ...) WARPTAPE_2(t, u, __VA_ARGS__) WARPTAPE_1(v, __VA_ARGS__)
#define WARPTAPE_4(t, u, v, w, ...) WARPTAPE_3(t, u, v, __VA_ARGS__) WARPTAPE_1(w, __VA_ARGS__)

#define AT_DISPATCH_CASE_FLOATING_TYPES(...) WARPTAPE_FLOATING(__VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(...) \
  WARPTAPE_FLOATING(__VA_ARGS__) WARPTAPE_1(::at::ScalarType::Half, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND2(t, u, ...) \
  WARPTAPE_FLOATING(__VA_ARGS__) WARPTAPE_2(t, u, __VA_ARGS__)
#define AT_DISPATCH_CASE_INTEGRAL_TYPES(...) WARPTAPE_INTEGRAL(__VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES(...) WARPTAPE_ALL(__VA_ARGS__)

#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, WARPTAPE_FLOATING(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(t, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, WARPTAPE_FLOATING(__VA_ARGS__) WARPTAPE_1(t, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(t, u, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, WARPTAPE_FLOATING(__VA_ARGS__) WARPTAPE_2(t, u, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND3(t, u, v, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, WARPTAPE_FLOATING(__VA_ARGS__) WARPTAPE_3(t, u, v, __VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, WARPTAPE_2(::at::ScalarType::Half, ::at::ScalarType::BFloat16, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, WARPTAPE_FLOATING(__VA_ARGS__) WARPTAPE_COMPLEX(__VA_ARGS__))
#define AT_DISPATCH_COMPLEX_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, WARPTAPE_COMPLEX(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, WARPTAPE_INTEGRAL(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES_AND(t, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, WARPTAPE_INTEGRAL(__VA_ARGS__) WARPTAPE_1(t, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, WARPTAPE_ALL(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND(t, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, WARPTAPE_ALL(__VA_ARGS__) WARPTAPE_1(t, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(t, u, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, WARPTAPE_ALL(__VA_ARGS__) WARPTAPE_2(t, u, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND3(t, u, v, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, WARPTAPE_ALL(__VA_ARGS__) WARPTAPE_3(t, u, v, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND4(t, u, v, w, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, WARPTAPE_ALL(__VA_ARGS__) WARPTAPE_4(t, u, v, w, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND_COMPLEX(TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME, WARPTAPE_ALL(__VA_ARGS__) WARPTAPE_COMPLEX(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND2(t, u, TYPE, NAME, ...) \
  AT_DISPATCH_SWITCH(TYPE, NAME,                                      \
                     WARPTAPE_ALL(__VA_ARGS__) WARPTAPE_COMPLEX(__VA_ARGS__) WARPTAPE_2(t, u, __VA_ARGS__))
#define AT_DISPATCH_INDEX_TYPES(TYPE, NAME, ...)                                                        \
  [&] {                                                                                                 \
    const ::at::ScalarType warptape_type = ::at::detail::scalar_type(TYPE);                             \
    TORCH_CHECK_NOT_IMPLEMENTED(warptape_type == ::at::kInt || warptape_type == ::at::kLong, '"', NAME, \
                                "\" not implemented for '", ::c10::toString(warptape_type), "'");       \
    if (warptape_type == ::at::kInt) {                                                                  \
      using index_t [[maybe_unused]] = int32_t;                                                         \
      return __VA_ARGS__();                                                                             \
    }                                                                                                   \
    using index_t [[maybe_unused]] = int64_t;                                                           \
    return __VA_ARGS__();                                                                               \
  }()
