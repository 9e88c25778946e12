// Activation functions and their fused gradients.

#include "kernels/cpu/elementwise.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

WT_ACTIVATION_OPS(WT_ELEMENTWISE)

}  // namespace
}  // namespace warptape::kernels::WARPTAPE_ISA
