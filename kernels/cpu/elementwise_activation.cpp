// Activation functions and their fused gradients.

#include "kernels/cpu/elementwise.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

WT_ELEMENTWISE(relu, Relu);
WT_ELEMENTWISE(threshold, Threshold);
WT_ELEMENTWISE(threshold_backward, ThresholdBackward);
WT_ELEMENTWISE(hardtanh, Clamp);
WT_ELEMENTWISE(hardtanh_backward, HardtanhBackward);
WT_ELEMENTWISE(leaky_relu, LeakyRelu);
WT_ELEMENTWISE(leaky_relu_backward, LeakyReluBackward);
WT_ELEMENTWISE(sigmoid, Sigmoid);
WT_ELEMENTWISE(sigmoid_backward, SigmoidBackward);
WT_ELEMENTWISE(tanh_backward, TanhBackward);
WT_ELEMENTWISE(silu, Silu);
WT_ELEMENTWISE(silu_backward, SiluBackward);
WT_ELEMENTWISE(gelu, Gelu);
WT_ELEMENTWISE(gelu_backward, GeluBackward);
WT_ELEMENTWISE(gelu_tanh, GeluTanh);
WT_ELEMENTWISE(gelu_tanh_backward, GeluTanhBackward);
WT_ELEMENTWISE(mish, Mish);
WT_ELEMENTWISE(mish_backward, MishBackward);
WT_ELEMENTWISE(softplus, Softplus);
WT_ELEMENTWISE(softplus_backward, SoftplusBackward);
WT_ELEMENTWISE(log_sigmoid, LogSigmoid);
WT_ELEMENTWISE(log_sigmoid_backward, LogSigmoidBackward);
WT_ELEMENTWISE(elu, Elu);
WT_ELEMENTWISE(elu_backward, EluBackward);
WT_ELEMENTWISE(celu, Celu);
WT_ELEMENTWISE(celu_backward, CeluBackward);
WT_ELEMENTWISE(selu, Selu);
WT_ELEMENTWISE(selu_backward, SeluBackward);
WT_ELEMENTWISE(hardsigmoid, Hardsigmoid);
WT_ELEMENTWISE(hardsigmoid_backward, HardsigmoidBackward);
WT_ELEMENTWISE(hardswish, Hardswish);
WT_ELEMENTWISE(hardswish_backward, HardswishBackward);
WT_ELEMENTWISE(softsign, Softsign);
WT_ELEMENTWISE(softsign_backward, SoftsignBackward);

}  // namespace
}  // namespace warptape::kernels::WARPTAPE_ISA
