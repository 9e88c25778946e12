// The elementwise ops of kernels/elementwise/ops/activation.h: activation.
#include "kernels/cuda/elementwise/elementwise.cuh"

namespace warptape::kernels::cuda {
namespace {

#define WT_OP(slot, Formula, ...) WT_ELEMENTWISE(slot, Formula)
#include "kernels/elementwise/ops/activation.h"
#undef WT_OP

}  // namespace
}  // namespace warptape::kernels::cuda
