// Activation functions and their fused gradients.

#include "kernels/cpu/fused/chain_handlers.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

#define WT_OP(slot, Formula, ...) WT_ELEMENTWISE(slot, Formula)
#include "kernels/elementwise/ops/activation.h"
#undef WT_OP

}  // namespace

const StepFormulas* find_activation(const char* slot) {
#define WT_OP(slot_name, F, ...) WT_IF_SLOT(slot_name, F)
#include "kernels/elementwise/ops/activation.h"
#undef WT_OP
  return nullptr;
}

}  // namespace warptape::kernels::WARPTAPE_ISA
