// The elementwise ops of kernels/elementwise/elementwise_ops.h: math.
#include "kernels/cuda/elementwise/elementwise.cuh"
#include "kernels/elementwise/elementwise_ops.h"

namespace warptape::kernels::cuda {
namespace {

WT_MATH_OPS(WT_ELEMENTWISE)
WT_ELEMENTWISE(pow, Pow);

}  // namespace
}  // namespace warptape::kernels::cuda
