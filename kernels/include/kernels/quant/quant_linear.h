// Linear layers whose weight is stored in 8 or 4 bits. Activations are rounded to 8 bits, by row and group,
// as llama.cpp does for its Q8 blocks; sums over a group are exact integers, scaled and added in the order of
// the groups. So an output element is the same number on every machine, whatever rows are computed beside it.
//
// Shapes: M rows, K inputs, N outputs, P = ceil(N / 16) panels, Q inputs in a group of activations, G =
// ceil(K / Q) groups, S = G or, where a weight's scale is for a whole output, 1.
#pragma once

#include "kernels/quant/packed_linear.h"

namespace warptape::kernels {

// A weight is scale * code + minimum, and scale * (code - 2 ^ (bits - 1)) where there are no minima.
//   codes            [P, G * Q * bits / 32, 16, 4] of bytes: for each step the codes of 4 k, or of 8: those
//   of
//                    k and k + 4 in the low and high half of a byte. Zero where there is no weight
//   scales, minima   [P, S, 16], of Float16 where they belong to groups, else of Float32
struct QuantFormat {
  int64_t bits;   // 8 or 4
  int64_t group;  // 32, 64, 128, or 0 for one scale an output
  WT_INLINE int64_t activations() const { return group ? group : 128; }  // Q
  WT_INLINE int64_t groups(int64_t inputs) const { return (inputs + activations() - 1) / activations(); }
  WT_INLINE int64_t group_bytes() const { return activations() * bits / 8 * kPanelOutputs; }
  WT_INLINE int64_t panel_bytes(int64_t inputs) const { return groups(inputs) * group_bytes(); }
};

// Slot "quantize_linear_weight": weight [N, K] of Float32, contiguous, to the nearest codes; symmetric about
// zero where `minima` is null. False if a scale or minimum would not be finite. On the CPU alone.
struct QuantizePlan {
  QuantFormat format;
  int64_t outputs, inputs;
  const float* weight;
  void *codes, *scales, *minima;
};
using QuantizeLinearWeightFn = bool(const LaunchContext&, const QuantizePlan&);

// Slot "pack_linear_codes": codes [N, K] of `bits` into the zeroed `packed` of QuantFormat; K is a multiple
// of
// 8. A code is a byte where `half` is 0; else [N, K / 2] bytes have the codes of 4 bits by blocks of 2 *
// half, the first half of a block in the low halves of its bytes, the second in the high ones. On the CPU
// alone.
struct PackCodesPlan {
  int64_t bits, half, outputs, inputs;
  const uint8_t* codes;
  uint8_t* packed;
};
using PackLinearCodesFn = void(const LaunchContext&, const PackCodesPlan&);

// Slot "quant_linear": out [M, N] = x [M, K] weight^T + bias, contiguous and of one dtype, Float32 or
// BFloat16.
struct QuantLinearPlan {
  QuantFormat format;
  DType dtype;
  int64_t rows, inputs, outputs;
  const void *x, *codes, *scales;
  const void* minima;  // null for none
  const void* bias;    // [N]; null for none
  void* out;
};
using QuantLinearFn = void(const LaunchContext&, const QuantLinearPlan&);

// Slot "float8_linear": out [M, N] of Float32 = x [M, K] weight [N, K]^T, both of Float8E4M3FN; contiguous,
// at multiples of 16 bytes, N and K multiples of 16. On CUDA alone.
struct Float8LinearPlan {
  int64_t rows, inputs, outputs;
  const void *x, *weight;
  float* out;
};
using Float8LinearFn = void(const LaunchContext&, const Float8LinearPlan&);

}  // namespace warptape::kernels
