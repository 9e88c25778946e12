// The handlers of chains. The last thing that each does is a call with the arguments of its own, which the
// compiler makes a jump; where it does not (without optimisation), a program is a row of nested calls.

#include "kernels/cpu/chain.h"

#include <type_traits>

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

// ---- pairs: forms of at most one operand in memory ----
// Operand P is in registers.
template <class Op, int P>
struct Form {
  static constexpr bool kReads = Op::kInputs == 2;
  WT_FN static VFloat apply(ChainVector a, char* p) {
    VFloat x[Op::kInputs];
    for (int k = 0; k < Op::kInputs; ++k) x[k] = k == P ? VFloat(a) : VFloat::load(p);
    return Loop<Op, float>::apply(x, Mask<float>{}, Index<Op::kInputs>{});
  }
};
struct LoadForm {
  static constexpr bool kReads = true;
  WT_FN static VFloat apply(ChainVector, char* p) { return VFloat::load(p); }
};
struct StoreForm {
  static constexpr bool kReads = true;
  WT_FN static VFloat apply(ChainVector a, char* p) {
    VFloat(a).store(p);
    return VFloat(a);
  }
};

// in_order() also keeps the compiler from contracting the two into one operation with one rounding.
template <class A, class B>
void handle_pair(const ChainInsn* insn, char* const* places, WT_VECTORS) {
  char* p = A::kReads ? places[insn->place[0]] : nullptr;
  char* q = B::kReads ? places[insn->place[1]] : nullptr;
  const auto first = [&](ChainVector& a, int i) __attribute__((always_inline)) {
    VFloat r = A::apply(a, p + i * kVecBytes);
    in_order(r);
    a = r.v;
  };
  const auto second = [&](ChainVector a, int i) __attribute__((always_inline)) {
    VFloat r = B::apply(a, q + i * kVecBytes);
    in_order(r);
    return r.v;
  };
  WT_EACH(first);
  ++insn;
  return insn->run(insn, places, WT_EACH(second));
}

template <class... F>
struct FormList {
  static constexpr int kCount = sizeof...(F);
  ChainHandler* pairs[kCount][kCount];

  // By their places in the list; a load begins a row of handlers and a store ends one.
  template <class A>
  static constexpr void fill(ChainHandler** row) {
    int k = 0;
    ((row[k++] = std::is_same_v<F, LoadForm> ? nullptr : &handle_pair<A, F>), ...);
  }
  constexpr FormList() : pairs{} {
    int k = 0;
    ((std::is_same_v<F, StoreForm> ? void() : fill<F>(pairs[k]), ++k), ...);
  }
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
constinit const Forms kForms;

template <class Op>
constexpr ChainHandlers handlers() {
  constexpr int first = Op::kMaskFirst;
  constexpr uint8_t form = Forms::place<Form<Op, first>>();
  if constexpr (first + 1 < Op::kInputs)
    return {first, {&handle<Op, first>, &handle<Op, first + 1>}, {form, Forms::place<Form<Op, first + 1>>()}};
  else
    return {first, {&handle<Op, first>, nullptr}, {form, kNoForm}};
}

}  // namespace

#define WT_DEFINE_HANDLERS(Op) constinit const ChainHandlers kHandlersOf##Op = handlers<Op>()
WT_CHAIN_FORMULAS(WT_DEFINE_HANDLERS)

ChainHandler* paired(uint8_t first, uint8_t second) {
  return first < Forms::kCount && second < Forms::kCount ? kForms.pairs[first][second] : nullptr;
}

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
