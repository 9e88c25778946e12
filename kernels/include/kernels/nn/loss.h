// Cross entropy with class indices, fused: log-softmax and negative log-likelihood in one pass over the
// logits, and a backward that recomputes the probabilities from the saved log-sum-exp.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

enum class Reduction : uint8_t { None, Mean, Sum };

struct CrossEntropyPlan {
  View logits;  // contiguous [rows / inner, classes, inner], floating
  View target;  // contiguous [rows], int64
  View weight;  // [classes], dtype of the logits, or null data
  int64_t rows;
  int64_t classes;
  int64_t inner;  // 1 but on the CPU
  int64_t ignore_index;
  double label_smoothing;
  Reduction reduction;
};

// Slot "cross_entropy": loss [rows] (None) or one value, dtype of the logits or, on CUDA, the compute dtype;
// lse [rows] and total_weight (one value: what Mean divides by), of the compute dtype (float64 for float64,
// else float32). A target outside [0, classes) that is not ignore_index is reported as a fault.
using CrossEntropyFn = void(const LaunchContext&, const View& loss, const View& lse, const View& total_weight,
                            const CrossEntropyPlan&);

// On the CPU the same in two parts. Slot "cross_entropy_rows": of each row its loss, its weight and its lse,
// all [rows] of the compute dtype; reports faults. Slot "cross_entropy_sum": loss and total_weight from
// these.
using CrossEntropyRowsFn = void(const LaunchContext&, const View& losses, const View& weights,
                                const View& lse, const CrossEntropyPlan&);
using CrossEntropySumFn = void(const LaunchContext&, const View& loss, const View& total_weight,
                               const View& losses, const View& weights, int64_t rows, Reduction);

// Slot "cross_entropy_backward": dx, laid out as the logits, from dloss, of the loss's shape and dtype. dx
// may be the logits themselves, of which nothing is left then.
using CrossEntropyBackwardFn = void(const LaunchContext&, const View& dx, const View& dloss, const View& lse,
                                    const View& total_weight, const CrossEntropyPlan&);

}  // namespace warptape::kernels
