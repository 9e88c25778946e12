// The `*_copy` form of a view op: the same arguments, the result in contiguous memory of its own.
//   const auto permute_copy = copy_of<permute>("permute_copy");
// in the file that defines the view op, below it: the declaration is read when the library is loaded.
#pragma once

#include "ops/copy.h"

namespace warptape::ops {

inline Tensor fresh_copy(const Tensor& view) { return view.is_contiguous() ? clone(view) : contiguous(view); }
inline std::vector<Tensor> fresh_copy(std::vector<Tensor> views) {
  for (Tensor& view : views) view = fresh_copy(view);
  return views;
}

template <const auto& OP, class Type>
struct ViewCopy;
template <const auto& OP, class R, class... A>
struct ViewCopy<OP, Op<R(A...)>> : Op<R(A...)> {
  explicit ViewCopy(const char* name)
      : Op<R(A...)>(name, call,
                    kFunction | (std::is_same_v<R, Tensor> ? uint32_t{kOut} : 0u) | (OP.flags & kComplex),
                    {(static_cast<void>(sizeof(Plain<A>)), Arg(""))...},
                    "What the op of this name without `_copy` shows, in new memory.") {
    this->args = OP.args;
  }
  static R call(A... args) { return fresh_copy(OP(args...)); }
};
template <const auto& OP>
auto copy_of(const char* name) {
  return ViewCopy<OP, std::remove_cvref_t<decltype(OP)>>(name);
}

}  // namespace warptape::ops
