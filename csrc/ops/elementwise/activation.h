// Activation functions.
#pragma once

#include "op/pointwise.h"

namespace warptape::ops {

extern WT_API const Op<Tensor(const Tensor&)> relu, relu_, logsigmoid, softsign;
extern WT_API const Op<Tensor(const Tensor&, std::string_view)> gelu;
extern WT_API const Op<Tensor(const Tensor&, double, double)> softplus;
// The last argument says whether to work in place.
extern WT_API const Op<Tensor(const Tensor&, bool)> nn_relu, silu, mish, selu, relu6, hardsigmoid, hardswish;
extern WT_API const Op<Tensor(const Tensor&, double, bool)> leaky_relu, elu, celu;
extern WT_API const Op<Tensor(const Tensor&, double, double, bool)> hardtanh, threshold;

// The derivative of gelu's tanh formula at x, of differentiable ops.
Tensor gelu_tanh_slope(const Tensor& x);

}  // namespace warptape::ops
