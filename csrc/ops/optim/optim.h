// Optimizer steps and operations over lists of tensors, each one launch.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs (empty without amsgrad), state_steps (float32,
// already counted up), lr, beta1, beta2, weight_decay, eps, amsgrad, maximize, grad_scale, found_inf,
// lr_tensor (one number on the parameters' device, read in place of lr when the step runs), master_params
// (float32 copies of narrower parameters, from which the step is taken; states are float32 then, too)
extern WT_API const Op<void(TensorList, TensorList, TensorList, TensorList, TensorList, TensorList, double,
                            double, double, double, double, bool, bool, const OptTensor&, const OptTensor&,
                            const OptTensor&, const std::optional<TensorList>&)>
    _fused_adam_, _fused_adamw_;
// params, grads, momentum_buffers (empty without momentum), weight_decay, momentum, lr, dampening, nesterov,
// maximize, is_first_step, grad_scale, found_inf, lr_tensor, master_params
extern WT_API const
    Op<void(TensorList, TensorList, TensorList, double, double, double, double, bool, bool, bool,
            const OptTensor&, const OptTensor&, const OptTensor&, const std::optional<TensorList>&)>
        _fused_sgd_;
// self[i] *= factor (by the tensor, where there is one), self[i] += alpha * others[i] (alpha, where there are
// no others) and norms of order 1, 2 or inf, in one launch. They do nothing and say so (false, none) unless
// all tensors are floating, of one device and not recorded, and others[i] has self[i]'s shape and dtype.
bool scale_at_once(TensorList self, double factor, const Tensor& factor_tensor);
bool add_at_once(TensorList self, TensorList others, double alpha);
std::optional<std::vector<Tensor>> norms_at_once(TensorList self, double order);

}  // namespace warptape::ops
