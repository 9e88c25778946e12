// The one switch over the types that ops take.
#pragma once

#include "op/op.h"

namespace warptape {

// Calls f(std::type_identity<T>()) with the C++ type of an argument, without std::optional.
template <class F>
decltype(auto) visit_type(ArgType type, F&& f) {
#define WT_CASE(KIND, ...) \
  case ArgType::KIND:      \
    return f(std::type_identity<__VA_ARGS__>())
  switch (type) {
    WT_CASE(Tensor, Tensor);
    WT_CASE(TensorList, TensorList);
    WT_CASE(OptTensorList, std::span<const OptTensor>);
    WT_CASE(Int, int64_t);
    WT_CASE(Double, double);
    WT_CASE(Bool, bool);
    WT_CASE(Scalar, Scalar);
    WT_CASE(IntList, IntList);
    WT_CASE(IntLists, std::span<const Shape>);
    WT_CASE(DoubleList, std::span<const double>);
    WT_CASE(DType, DType);
    WT_CASE(Device, Device);
    WT_CASE(String, std::string_view);
    WT_CASE(Generator, Generator*);
    WT_CASE(ScalarList, ScalarList);
  }
#undef WT_CASE
  __builtin_unreachable();
}

// Calls f(x) with the argument that `v`, which is present, is.
template <class F>
decltype(auto) visit(ArgType type, const Value& v, F&& f) {
  return visit_type(
      type, [&]<class T>(std::type_identity<T>) -> decltype(auto) { return f(ArgTraits<T>::unbox(v)); });
}

// A visitor of one function per type; a generic one takes the types that no other has.
template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

}  // namespace warptape
