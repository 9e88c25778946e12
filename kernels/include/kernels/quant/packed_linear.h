// Linear layers whose weight is packed once, for any number of rows: an output element is the same sum in the
// same order, whatever rows are computed beside it.
//
// Shapes: M rows, K inputs, N outputs, P = ceil(N / 16) panels.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

inline constexpr int64_t kPanelOutputs = 16;

// Slot "pack_linear_weight": weight [N, K], contiguous, of Float32 or BFloat16, to packed
//   Float32   [P, K, 16]: for each k the weights of 16 outputs
//   BFloat16  [P, ceil(K / 2), 16, 2]: for each pair of k the pairs of 16 outputs
// with zeros where there is no weight.
using PackLinearWeightFn = void(const LaunchContext&, DType dtype, int64_t outputs, int64_t inputs,
                                const void* weight, void* packed);

// Slot "packed_linear": out [M, N] = x [M, K] weight^T + bias, all contiguous and of one dtype. Sums are kept
// in float: k after k, each product fused with its addition where the machine has that, the bias last. On
// machines with a dot product of bfloat16 it is pair after pair, for any M. On CUDA an output is the sum of
// several such chains, each over its own k, joined in an order that depends on nothing.
struct PackedLinearPlan {
  DType dtype;
  int64_t rows, inputs, outputs;
  const void* x;
  const void* packed;
  const void* bias;  // [N]; null for none
  void* out;
};
using PackedLinearFn = void(const LaunchContext&, const PackedLinearPlan&);

}  // namespace warptape::kernels
