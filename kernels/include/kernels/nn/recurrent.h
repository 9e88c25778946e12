// One direction of a recurrent layer over all steps, with what the backward needs and fused backward. All
// tensors are contiguous and of one dtype, Float32 or Float64.
//
// Shapes: B batch, H hidden, G gates, N rows: those of a step lie together, step after step, and a sequence
// is the same row in every step that it takes part in; steps never grow.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Gates, in the order of the weight's rows: an LSTM's are input, forget, cell and output, a GRU's reset,
// update and new; tanh and relu have one.
enum class Recurrence : uint8_t { Tanh, Relu, Gru, Lstm };

struct RecurrentPlan {
  DType dtype;
  Recurrence kind;
  bool reverse;  // from the last step to the first
  int64_t steps, batch, hidden;
  const int64_t* first;  // [steps + 1]: the first row of each step, and N
  const void* weight;    // [G * H, H]
  const void* bias;      // [G * H]; null for none
};

// Slot "recurrent". gates [N, G * H] holds the input's projection and, for a GRU and an LSTM, is replaced by
// the gates; cells [N, H] becomes the states c of an LSTM, the hidden part of a GRU's new gate; out [N, H]. h
// [B, H] and an LSTM's c are the states before, and become those after.
struct RecurrentTensors {
  void *gates, *cells, *out, *h, *c;
};
using RecurrentFn = void(const LaunchContext&, const RecurrentPlan&, const RecurrentTensors&);

// Slot "recurrent_backward": from what the forward left, the states before (h0, c0) and the gradient d_out
// (null for zeros) to those of the projections of the input and of h, d_input and d_hidden [N, G * H], which
// are one but for a GRU. d_h and d_c are the gradients of the states after and become those of the states
// before. previous [N, H] becomes h before each step.
struct RecurrentGradients {
  const void *gates, *cells, *out, *h0, *c0, *d_out;
  void *d_h, *d_c, *d_input, *d_hidden, *previous;
};
using RecurrentBackwardFn = void(const LaunchContext&, const RecurrentPlan&, const RecurrentGradients&);

}  // namespace warptape::kernels
