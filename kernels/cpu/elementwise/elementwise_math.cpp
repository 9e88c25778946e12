// Transcendental functions.

#include "kernels/cpu/fused/chain_handlers.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

#define WT_OP(slot, Formula, ...) WT_ELEMENTWISE(slot, Formula)
#include "kernels/elementwise/ops/math.h"
#undef WT_OP

// Powers with one exponent for all: the usual ones need no logarithm.
template <int kTwiceExponent>
struct FixedPow : Binary<kFloats | kComplex> {
  template <class V>
  WT_FN static V apply(V x, V) {
    switch (kTwiceExponent) {
      case 1:
        return select(x == V(-kInf), V(kInf), sqrt(x + V(0)));  // pow(-0, 0.5) is 0
      case -1:
        return select(x == V(-kInf), V(0), V(1) / sqrt(x + V(0)));
      case 2:
        return x;
      case 4:
        return x * x;
      case 6:
        return x * x * x;
      case -2:
        return V(1) / x;
      default:
        return V(1) / (x * x);
    }
  }
};

template <class T>
void pow_loop(int64_t n, void* out, const void* const* in, unsigned scalar_mask) {
  if (scalar_mask & 2) {
    const T e = *static_cast<const T*>(in[1]);
    if (e == T(2)) return Loop<FixedPow<4>, T>::run(n, out, in, scalar_mask);
    if (e == T(3)) return Loop<FixedPow<6>, T>::run(n, out, in, scalar_mask);
    if (e == T(0.5)) return Loop<FixedPow<1>, T>::run(n, out, in, scalar_mask);
    if (e == T(-0.5)) return Loop<FixedPow<-1>, T>::run(n, out, in, scalar_mask);
    if (e == T(1)) return Loop<FixedPow<2>, T>::run(n, out, in, scalar_mask);
    if (e == T(-1)) return Loop<FixedPow<-2>, T>::run(n, out, in, scalar_mask);
    if (e == T(-2)) return Loop<FixedPow<-4>, T>::run(n, out, in, scalar_mask);
  }
  Loop<Pow, T>::run(n, out, in, scalar_mask);
}

constexpr Loops kPowLoops{
    &pow_loop<float>,          &pow_loop<double>,         &Loop<Pow, int64_t>::run, 2, false, false, false,
    &pow_loop<Complex<float>>, &pow_loop<Complex<double>>};
constexpr StepFormulas kPowFormulas = [] {
  StepFormulas formulas = step_formulas(kPowLoops, nullptr);
  formulas.needs_number = true;
  return formulas;
}();

void pow_op(const LaunchContext& ctx, const ElementwisePlan& plan) { run_elementwise(ctx, plan, kPowLoops); }
WT_KERNEL(pow, pow_op);

}  // namespace

const StepFormulas* find_math(const char* slot) {
#define WT_OP(slot_name, F, ...) WT_IF_SLOT(slot_name, F)
#include "kernels/elementwise/ops/math.h"
#undef WT_OP
  return std::strcmp(slot, "pow") ? nullptr : &kPowFormulas;
}

}  // namespace warptape::kernels::WARPTAPE_ISA
