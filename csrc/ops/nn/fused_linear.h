// Linear layers whose products do more than multiply, where the device's library offers it.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// linear(gelu(linear(input, weight1, bias1), approximate), weight2, bias2), as one node on CUDA for "tanh".
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, const Tensor&, const OptTensor&,
                              std::string_view)>
    linear_gelu_linear;

// The gradients of a linear's weight [n, k] and bias [n] from those of its output [rows, n] and its input
// [rows, k], in one product: `weight` stays undefined where the device has none such, and for what is
// recorded.
struct LinearGradients {
  Tensor weight, bias;
};
LinearGradients linear_gradients(const Tensor& grad, const Tensor& input);

}  // namespace warptape::ops
