// The `*_copy` form of a view op: the same arguments, the result in contiguous memory of its own.
//   const auto permute_copy = copy_of<permute>("permute_copy");
// and its in-place form, which takes over the geometry and the history of the view:
//   const auto t_ = in_place_view<t>("t_");
// in the file that defines the view op, below it: the declaration is read when the library is loaded.
#pragma once

#include "op/forms.h"
#include "ops/view/copy.h"

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
  explicit ViewCopy(OpName name)
      : Op<R(A...)>({form_name(name.text, OP), name.line}, call,
                    kFunction | kOut | kOutExact | (OP.flags & (kComplex | kNonDifferentiable | kDetaches)),
                    {(static_cast<void>(sizeof(Plain<A>)), Arg(""))...},
                    "What the op of this name without `_copy` shows, in new memory.") {
    this->args = OP.args;
  }
  static R call(A... args) { return fresh_copy(OP(args...)); }
};
template <const auto& OP>
auto copy_of(OpName name) {
  return ViewCopy<OP, std::remove_cvref_t<decltype(OP)>>(name);
}

Tensor become_view(const char* op, const Tensor& self, const Tensor& view);

template <const auto& OP, class Sig>
struct InPlaceView;
template <const auto& OP, class... A>
struct InPlaceView<OP, Op<Tensor(const Tensor&, A...)>> {
  static Tensor call(const Tensor& self, A... args) { return become_view(OP.name, self, OP(self, args...)); }
};
template <const auto& OP>
auto in_place_view(OpName name) {
  using Type = std::remove_cvref_t<decltype(OP)>;
  return Type(name, InPlaceView<OP, Type>::call, OP);
}

}  // namespace warptape::ops
