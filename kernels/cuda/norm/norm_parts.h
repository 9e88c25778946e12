// The second launch of the norms' backward.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels::cuda {

// The gradients of weight and bias [n], each where it is wanted, from what `count` blocks have of them: parts
// [count, 2, n], added up in order.
template <class C>
void sum_norm_parts(const LaunchContext& ctx, const char* op, const C* parts, int64_t count, int64_t n,
                    const View& dweight, const View& dbias);

}  // namespace warptape::kernels::cuda
