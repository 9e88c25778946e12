// Connectionist temporal classification ("Connectionist Temporal Classification: Labelling Unsegmented
// Sequence Data with Recurrent Neural Networks", section 4.1), one sample at a time.
// Legend: T steps, N batch, C classes, S labels; the states of a sample are blank, label, blank, .., blank.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

struct CtcPlan {
  DType dtype;  // float32 or float64, of what is computed from log_probs [T, N, C]
  int64_t steps, batch, classes, labels, blank;
  const int64_t* targets;                         // [N, S]
  const int64_t *input_lengths, *target_lengths;  // [N]
  double* scratch;                                // [N, T + 1, 2 S + 1]; null on the CPU
  bool zero_infinity;
};

// Slot "ctc_loss": the losses [N] and, where grad is not null, the gradients [T, N, C] of their sum. As in
// PyTorch these take log_probs to come from log_softmax.
using CtcFn = void(const LaunchContext&, const CtcPlan&, void* loss, void* grad, const void* log_probs);

}  // namespace warptape::kernels
