// Arithmetic, comparison, selection, bits and rounding.

#include "kernels/cpu/fused/chain.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

WT_ARITHMETIC_OPS(WT_ELEMENTWISE)

}  // namespace

const StepFormulas* find_arithmetic(const char* slot) {
  WT_ARITHMETIC_OPS(WT_IF_SLOT)
  return nullptr;
}

}  // namespace warptape::kernels::WARPTAPE_ISA
