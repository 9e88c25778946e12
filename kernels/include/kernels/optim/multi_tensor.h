// One call over a list of tensors: optimizer steps, norms, scaling. Lists are host arrays; every tensor in
// them is contiguous (or dense with the same strides throughout its item) and all tensors of one item have
// the item's dtype. An item may have a `master`, though: a float32 copy of its float16 or bfloat16 param. The
// step is then taken from and stored to that one, param becomes it rounded to the nearest, and the averages
// or the momentum buffer are float32.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

struct AdamItem {
  void* param;
  void* grad;  // written only when grad_scale is given
  void* exp_avg;
  void* exp_avg_sq;
  void* max_exp_avg_sq;  // null without amsgrad
  const float* step;     // one value on the device, already counted up: 1 at the first step
  int64_t numel;
  DType dtype;
  float* master;  // or null
};

struct AdamPlan {
  double lr;
  const float* lr_tensor;  // one value on the device that replaces lr, or null
  double beta1, beta2, weight_decay, eps;
  bool decoupled;  // AdamW's weight decay
  bool amsgrad, maximize;
  const float* grad_scale;  // gradients are divided by it, or null
  const float* found_inf;   // a value other than 0 skips the step, or null
};

// Slot "fused_adam".
using FusedAdamFn = void(const LaunchContext&, const AdamItem* items, int64_t count, const AdamPlan&);

struct SgdItem {
  void* param;
  void* grad;             // written only when grad_scale is given
  void* momentum_buffer;  // null without momentum
  int64_t numel;
  DType dtype;
  float* master;  // or null
};

struct SgdPlan {
  double lr;
  const float* lr_tensor;
  double momentum, dampening, weight_decay;
  bool nesterov, maximize;
  bool first_step;  // the momentum buffer starts as the gradient
  const float* grad_scale;
  const float* found_inf;
};

// Slot "fused_sgd".
using FusedSgdFn = void(const LaunchContext&, const SgdItem* items, int64_t count, const SgdPlan&);

struct ListItem {
  void* data;
  const void* other;  // second operand of list_add, else null
  int64_t numel;
  DType dtype;
};

// Slot "list_norm": out contiguous, floating [count], the norm of order 1, 2 or infinity of each
// tensor.
using ListNormFn = void(const LaunchContext&, const View& out, const ListItem* items, int64_t count,
                        double order);

// Slot "list_scale": every tensor times factor, or times the one value (float32 or float64) of factor_tensor
// where its data is not null.
using ListScaleFn = void(const LaunchContext&, const ListItem* items, int64_t count, double factor,
                         const View& factor_tensor);

// Slot "list_add": data += alpha * other, or += alpha where other is null.
using ListAddFn = void(const LaunchContext&, const ListItem* items, int64_t count, double alpha);

}  // namespace warptape::kernels
