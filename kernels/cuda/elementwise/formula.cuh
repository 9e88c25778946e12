// One formula on one element's values.
#pragma once

#include "kernels/cuda/common/memory.cuh"
#include "kernels/elementwise/formulas.h"

namespace warptape::kernels::cuda {

// A formula on values x[0..N), the first of which is the truth value m where the formula says so.
template <class F, class C>
WT_DEVICE auto apply(const C* x, bool m) {
  constexpr int N = F::kInputs;
  if constexpr (F::kMaskFirst)
    return F::apply(m, x[1], x[2]);
  else if constexpr (N == 1)
    return F::apply(x[0]);
  else if constexpr (N == 2)
    return F::apply(x[0], x[1]);
  else if constexpr (N == 3)
    return F::apply(x[0], x[1], x[2]);
  else if constexpr (N == 4)
    return F::apply(x[0], x[1], x[2], x[3]);
  else if constexpr (N == 5)
    return F::apply(x[0], x[1], x[2], x[3], x[4]);
  else
    return F::apply(x[0], x[1], x[2], x[3], x[4], x[5]);
}

// A predicate gives bool, or the int that & and | make of bools; a value has the compute type.
template <class F, class C>
inline constexpr bool kPredicate =
    !std::is_same_v<decltype(apply<F, C>(static_cast<const C*>(nullptr), false)), C>;

}  // namespace warptape::kernels::cuda
