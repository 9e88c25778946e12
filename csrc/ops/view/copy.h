// Copies: contiguous, clone, copy_, conversion, joining.
#pragma once

#include "op/pointwise.h"
#include "tensor/memory_format.h"

namespace warptape::ops {

extern WT_API const Op<Tensor(const Tensor&)> contiguous, clone, zero_;
extern WT_API const Op<Tensor(const Tensor&, const Scalar&)> fill_;
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, bool)> copy_;
extern WT_API const Op<Tensor(const Tensor&, std::optional<Device>, std::optional<DType>, bool, bool)> to;
extern WT_API const Op<Tensor(TensorList, int64_t)> cat, stack;
// Recorded copy; x itself when it is contiguous in the format.
WT_API Tensor contiguous_in(const Tensor& x, MemoryFormat format);
// Recorded conversion; x itself when it has that dtype.
WT_API Tensor cast(const Tensor& x, DType dtype);

// For in_place(): the result goes into `self`, which must have its shape and a dtype that it can be cast to.
WT_API Tensor write_in_place(const char* op, const Tensor& self, const Tensor& result);

template <const auto& OP, class Sig>
struct InPlace;
template <const auto& OP, class... A>
struct InPlace<OP, Op<Tensor(const Tensor&, A...)>> {
  static Tensor call(const Tensor& self, A... args) {
    const bool recorded = thread_state().grad_mode && (takes_part(self) || ... || takes_part(args));
    check_inplace(self, OP.name, recorded);
    // What the tape keeps of the input must not be overwritten.
    return write_in_place(OP.name, self, OP(recorded ? clone_with_history(self) : self, args...));
  }
  template <class T>
  static bool takes_part(const T& x) {
    if constexpr (std::is_same_v<T, Tensor> || std::is_same_v<T, OptTensor>)
      return requires_grad(x);
    else
      return false;
  }
};
// The in-place form of an op that has no kernel of its own for it:
//   const auto renorm_ = in_place<renorm>("renorm_");
template <const auto& OP>
auto in_place(OpName name) {
  using Type = std::remove_cvref_t<decltype(OP)>;
  return Type(name, InPlace<OP, Type>::call, OP);
}

}  // namespace warptape::ops
