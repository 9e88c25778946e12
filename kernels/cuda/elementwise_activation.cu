// The elementwise ops of kernels/elementwise_ops.h: activation.
#include "kernels/cuda/elementwise.cuh"
#include "kernels/elementwise_ops.h"

namespace warptape::kernels::cuda {
namespace {

WT_ACTIVATION_OPS(WT_ELEMENTWISE)

}  // namespace
}  // namespace warptape::kernels::cuda
