// Activation functions and their fused gradients.

#include "kernels/cpu/fused/chain.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

WT_ACTIVATION_OPS(WT_ELEMENTWISE)

}  // namespace

const StepFormulas* find_activation(const char* slot) {
  WT_ACTIVATION_OPS(WT_IF_SLOT)
  return nullptr;
}

}  // namespace warptape::kernels::WARPTAPE_ISA
