// The handlers of a formula that is kSimple. The last thing that each does is a call with the arguments of
// its own, which the compiler makes a jump; where it does not (without optimisation), a program is a row of
// nested calls.
#pragma once

#include <type_traits>

#include "kernels/cpu/fused/chain.h"

namespace warptape::kernels::WARPTAPE_ISA {

#define WT_VECTORS                                                                                \
  ChainVector a0, ChainVector a1, ChainVector a2, ChainVector a3, ChainVector a4, ChainVector a5, \
      ChainVector a6, ChainVector a7
#define WT_EACH(f) f(a0, 0), f(a1, 1), f(a2, 2), f(a3, 3), f(a4, 4), f(a5, 5), f(a6, 6), f(a7, 7)

// Computes r here and now: the compiler would otherwise mix the eight vectors' instructions until there are
// too few registers.
#if defined(__AVX512F__)
WT_FN void in_order(VFloat& r) { asm volatile("" : "+v"(r.v)); }
#elif defined(__aarch64__)
WT_FN void in_order(VFloat& r) { asm volatile("" : "+w"(r.v)); }
#else
WT_FN void in_order(VFloat& r) { asm volatile("" : "+x"(r.v)); }
#endif

// Operand P is in registers. A predicate leaves them as they are.
template <class Op, int P>
void handle(const ChainInsn* insn, char* const* places, WT_VECTORS) {
  using L = Loop<Op, float>;
  constexpr int N = Op::kInputs, kLanes = VFloat::kLanes;
  const char* p[N];
  for (int k = 0; k < N; ++k) p[k] = k == P ? nullptr : places[insn->place[k]];
  const auto one = [&](ChainVector a, int i) __attribute__((always_inline)) {
    VFloat x[N];
    Mask<float> m{};
    for (int k = 0; k < N; ++k) {
      if (k == P)
        x[k] = VFloat(a);
      else if (Op::kMaskFirst && k == 0)
        m = load_mask<float>(p[k] + i * kLanes);
      else
        x[k] = VFloat::load(p[k] + i * kVecBytes);
    }
    return L::apply(x, m, Index<N>{});
  };
  const ChainInsn* next = insn + 1;
  if constexpr (L::kPredicate) {
    char* out = places[insn->out];
    const auto test = [&](ChainVector a, int i)
                          __attribute__((always_inline)) { store(out + i * kLanes, one(a, i)); };
    WT_EACH(test);
    return next->run(next, places, a0, a1, a2, a3, a4, a5, a6, a7);
  } else {
    const auto value = [&](ChainVector a, int i) __attribute__((always_inline)) {
      VFloat r = one(a, i);
      in_order(r);
      return r.v;
    };
    return next->run(next, places, WT_EACH(value));
  }
}

// ---- forms of at most one operand in memory, of which there are handlers for two at once ----
// Operand P is in registers, `m` comes from memory where the form reads.
template <class Op, int P>
struct Form {
  static constexpr bool kReads = Op::kInputs == 2, kStores = false;
  WT_FN static VFloat apply(ChainVector a, VFloat m) {
    VFloat x[Op::kInputs];
    for (int k = 0; k < Op::kInputs; ++k) x[k] = k == P ? VFloat(a) : m;
    return Loop<Op, float>::apply(x, Mask<float>{}, Index<Op::kInputs>{});
  }
};
struct LoadForm {
  static constexpr bool kReads = true, kStores = false;
  WT_FN static VFloat apply(ChainVector, VFloat m) { return m; }
};
struct StoreForm {
  static constexpr bool kReads = false, kStores = true;
};

template <class... F>
struct FormList {
  static constexpr bool kReads[] = {F::kReads...};
  template <class A>
  static constexpr uint8_t place() {
    int k = 0, found = kNoForm;
    ((found = std::is_same_v<A, F> ? k : found, ++k), ...);
    return uint8_t(found);
  }
};
using Forms = FormList<LoadForm, StoreForm, Form<Add, 0>, Form<Add, 1>, Form<Sub, 0>, Form<Sub, 1>,
                       Form<Mul, 0>, Form<Mul, 1>, Form<Relu, 0>>;
static_assert(Forms::place<LoadForm>() == kLoadForm && Forms::place<StoreForm>() == kStoreForm);

template <class Op>
constexpr ChainHandlers handlers_of() {
  constexpr int first = Op::kMaskFirst;
  constexpr uint8_t form = Forms::place<Form<Op, first>>();
  if constexpr (first + 1 < Op::kInputs)
    return {first, {&handle<Op, first>, &handle<Op, first + 1>}, {form, Forms::place<Form<Op, first + 1>>()}};
  else
    return {first, {&handle<Op, first>, nullptr}, {form, kNoForm}};
}

template <class Op> inline constexpr ChainHandlers kHandlersOf = handlers_of<Op>();
template <class Op>
constexpr StepFormulas step_formulas() {
  if constexpr ((Op::kTypes & kSimple) != 0)
    return step_formulas(kLoopsOf<Op>, &kHandlersOf<Op>);
  else
    return step_formulas(kLoopsOf<Op>, nullptr);
}
template <class Op> inline constexpr StepFormulas kStepFormulas = step_formulas<Op>();
#define WT_IF_SLOT(slot_name, Op) \
  if (!std::strcmp(slot, #slot_name)) return &kStepFormulas<Op>

}  // namespace warptape::kernels::WARPTAPE_ISA
