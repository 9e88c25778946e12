// Arithmetic, comparison, selection, bits and rounding.

#include "kernels/cpu/elementwise.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

WT_ARITHMETIC_OPS(WT_ELEMENTWISE)

}  // namespace
}  // namespace warptape::kernels::WARPTAPE_ISA
