// The elementwise ops of kernels/elementwise/ops/math.h: math.
#include "kernels/cuda/elementwise/elementwise.cuh"

namespace warptape::kernels::cuda {
namespace {

#define WT_OP(slot, Formula, ...) WT_ELEMENTWISE(slot, Formula)
#include "kernels/elementwise/ops/math.h"
#undef WT_OP
WT_ELEMENTWISE(pow, Pow);

}  // namespace
}  // namespace warptape::kernels::cuda
