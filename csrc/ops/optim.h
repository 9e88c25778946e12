// Optimizer steps and operations over lists of tensors, each one launch.
#pragma once

#include "ops/op.h"

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
extern WT_API const Op<std::vector<Tensor>(TensorList, double)> _foreach_norm;
extern WT_API const Op<void(TensorList)> _foreach_zero_;
extern WT_API const Op<void(TensorList, const Scalar&)> _foreach_mul_, _foreach_add_;
extern WT_API const Op<void(TensorList, const Tensor&)> _foreach_mul_tensor_;
extern WT_API const Op<void(TensorList, TensorList, const Scalar&)> _foreach_add_list_;

}  // namespace warptape::ops
