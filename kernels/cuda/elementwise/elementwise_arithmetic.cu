// The elementwise ops of kernels/elementwise/ops/arithmetic.h: arithmetic.
#include "kernels/cuda/elementwise/elementwise.cuh"

namespace warptape::kernels::cuda {
namespace {

#define WT_OP(slot, Formula, ...) WT_ELEMENTWISE(slot, Formula)
#include "kernels/elementwise/ops/arithmetic.h"
#undef WT_OP

}  // namespace
}  // namespace warptape::kernels::cuda
