// What only complex numbers have.

#include "kernels/cpu/elementwise.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

WT_FORMULA(Conj, Unary<kComplexLanes>, WT_V1, return V(x.re, -x.im););
WT_ELEMENTWISE(conj, Conj);

}  // namespace
}  // namespace warptape::kernels::WARPTAPE_ISA
