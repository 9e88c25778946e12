// The elementwise ops of kernels/elementwise/elementwise_ops.h: activation.
#include "kernels/cuda/elementwise/elementwise.cuh"
#include "kernels/elementwise/elementwise_ops.h"

namespace warptape::kernels::cuda {
namespace {

WT_ACTIVATION_OPS(WT_ELEMENTWISE)

}  // namespace
}  // namespace warptape::kernels::cuda
