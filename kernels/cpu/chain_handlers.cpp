// The handlers of chains. The last thing that each does is a call with the arguments of its own, which the
// compiler makes a jump; where it does not (without optimisation), a program is a row of nested calls.

#include "kernels/cpu/chain.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

#define WT_VECTORS                                                                                \
  ChainVector a0, ChainVector a1, ChainVector a2, ChainVector a3, ChainVector a4, ChainVector a5, \
      ChainVector a6, ChainVector a7
#define WT_EACH(f) f(a0, 0), f(a1, 1), f(a2, 2), f(a3, 3), f(a4, 4), f(a5, 5), f(a6, 6), f(a7, 7)

// Computes r here and now: the compiler would otherwise mix the eight vectors' instructions until there are
// too few registers.
#if defined(__AVX512F__)
WT_FN void in_order(VFloat& r) { asm volatile("" : "+v"(r.v)); }
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

void load_block(const ChainInsn* insn, char* const* places, WT_VECTORS) {
  const char* p = places[insn->place[0]];
  const auto one = [&](ChainVector, int i)
                       __attribute__((always_inline)) { return VFloat::load(p + i * kVecBytes).v; };
  ++insn;
  return insn->run(insn, places, WT_EACH(one));
}

void store_block(const ChainInsn* insn, char* const* places, WT_VECTORS) {
  char* p = places[insn->place[0]];
  const auto one = [&](ChainVector a, int i)
                       __attribute__((always_inline)) { VFloat(a).store(p + i * kVecBytes); };
  WT_EACH(one);
  ++insn;
  return insn->run(insn, places, a0, a1, a2, a3, a4, a5, a6, a7);
}

template <class T>
void round_block(const ChainInsn* insn, char* const* places, WT_VECTORS) {
  const auto one = [](ChainVector a, int)
                       __attribute__((always_inline)) { return rounded_to<T>(VFloat(a)).v; };
  ++insn;
  return insn->run(insn, places, WT_EACH(one));
}

void end_block(const ChainInsn*, char* const*, ChainVector, ChainVector, ChainVector, ChainVector,
               ChainVector, ChainVector, ChainVector, ChainVector) {}

template <class Op>
constexpr ChainHandlers handlers() {
  constexpr int first = Op::kMaskFirst;
  if constexpr (first + 1 < Op::kInputs)
    return {first, {&handle<Op, first>, &handle<Op, first + 1>}};
  else
    return {first, {&handle<Op, first>, nullptr}};
}

}  // namespace

#define WT_DEFINE_HANDLERS(Op) constinit const ChainHandlers kHandlersOf##Op = handlers<Op>()
WT_CHAIN_FORMULAS(WT_DEFINE_HANDLERS)

constinit const ChainInsn kChainEnd{&end_block, {}, 0};
constinit ChainHandler* const kChainLoad = &load_block;
constinit ChainHandler* const kChainStore = &store_block;
constinit ChainHandler* const kRoundBFloat16 = &round_block<BFloat16>;
#if defined(__F16C__)
constinit ChainHandler* const kRoundHalf = &round_block<Half>;
#else
constinit ChainHandler* const kRoundHalf = nullptr;
#endif

}  // namespace warptape::kernels::WARPTAPE_ISA
