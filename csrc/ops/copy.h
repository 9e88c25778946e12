// Copies: contiguous, clone, copy_, conversion, joining.
#pragma once

#include "ops/op.h"

namespace warptape::ops {

extern WT_API const Op<Tensor(const Tensor&)> contiguous, clone, zero_;
extern WT_API const Op<Tensor(const Tensor&, const Scalar&)> fill_;
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, bool)> copy_;
extern WT_API const Op<Tensor(const Tensor&, std::optional<Device>, std::optional<DType>, bool, bool)> to;
extern WT_API const Op<Tensor(TensorList, int64_t)> cat, stack;
// Recorded conversion; x itself when it has that dtype.
WT_API Tensor cast(const Tensor& x, DType dtype);

}  // namespace warptape::ops
