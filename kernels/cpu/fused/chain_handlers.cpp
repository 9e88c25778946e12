// The handlers of chains that belong to no formula alone: of pairs, runs, loads and stores.
#include "kernels/cpu/fused/chain_handlers.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

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

// ---- pairs ----
template <class F>
WT_FN VFloat apply_form(ChainVector a, char* p) {
  if constexpr (F::kStores) {
    VFloat(a).store(p);
    return VFloat(a);
  } else {
    return F::apply(a, F::kReads ? VFloat::load(p) : VFloat{});
  }
}

// in_order() also keeps the compiler from contracting the two into one operation with one rounding.
template <class A, class B>
void handle_pair(const ChainInsn* insn, char* const* places, WT_VECTORS) {
  char* p = A::kReads ? places[insn->place[0]] : nullptr;
  char* q = B::kReads || B::kStores ? places[insn->place[1]] : nullptr;
  const auto first = [&](ChainVector& a, int i) __attribute__((always_inline)) {
    VFloat r = apply_form<A>(a, p + i * kVecBytes);
    in_order(r);
    a = r.v;
  };
  const auto second = [&](ChainVector a, int i) __attribute__((always_inline)) {
    VFloat r = apply_form<B>(a, q + i * kVecBytes);
    in_order(r);
    return r.v;
  };
  WT_EACH(first);
  ++insn;
  return insn->run(insn, places, WT_EACH(second));
}

// Both read the same operand, once.
template <class A, class B>
void handle_pair_of_one(const ChainInsn* insn, char* const* places, WT_VECTORS) {
  const char* p = places[insn->place[0]];
  const auto both = [&](ChainVector a, int i) __attribute__((always_inline)) {
    const VFloat m = VFloat::load(p + i * kVecBytes);
    VFloat r = A::apply(a, m);
    in_order(r);
    r = B::apply(r.v, m);
    in_order(r);
    return r.v;
  };
  ++insn;
  return insn->run(insn, places, WT_EACH(both));
}

template <class>
struct Pairs;
template <class... F>
struct Pairs<FormList<F...>> {
  static constexpr int kCount = sizeof...(F);
  ChainHandler *pairs[kCount][kCount], *pairs_of_one[kCount][kCount];

  template <class A, class B>
  static constexpr ChainHandler* of_one() {
    if constexpr (A::kReads && B::kReads)
      return &handle_pair_of_one<A, B>;
    else
      return nullptr;
  }
  // By their places in the list; a load begins a row of handlers and a store ends one.
  template <class A>
  static constexpr void fill(ChainHandler** row, ChainHandler** row_of_one) {
    int k = 0;
    ((row[k] = std::is_same_v<F, LoadForm> ? nullptr : &handle_pair<A, F>,
      row_of_one[k++] = std::is_same_v<F, LoadForm> ? nullptr : of_one<A, F>()),
     ...);
  }
  constexpr Pairs() : pairs{}, pairs_of_one{} {
    int k = 0;
    ((std::is_same_v<F, StoreForm> ? void() : fill<F>(pairs[k], pairs_of_one[k]), ++k), ...);
  }
};
constinit const Pairs<Forms> kPairs;

#if defined(__AVX512F__)
// ---- runs ----
void handle_run(const ChainInsn* insn, char* const* places, WT_VECTORS) {
  const char *p = places[insn->place[0]], *q = places[insn->place[1]];
  VFloat a[] = {a0, a1, a2, a3, a4, a5, a6, a7}, b[kChainVectors], c[kChainVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kChainVectors; ++i) {
    b[i] = VFloat::load(p + i * kVecBytes);
    c[i] = VFloat::load(q + i * kVecBytes);
  }
#define WT_RUN_CASE(F, which, m)                                      \
  case run_operation(Forms::place<F>(), which):                       \
    _Pragma("GCC unroll 8") for (int i = 0; i < kChainVectors; ++i) { \
      a[i] = F::apply(a[i].v, m[i]);                                  \
      in_order(a[i]);                                                 \
    }                                                                 \
    break
#define WT_RUN_CASES(F) \
  WT_RUN_CASE(F, 0, b); \
  WT_RUN_CASE(F, 1, c)
  using Add0 = Form<Add, 0>;
  using Add1 = Form<Add, 1>;
  using Sub0 = Form<Sub, 0>;
  using Sub1 = Form<Sub, 1>;
  using Mul0 = Form<Mul, 0>;
  using Mul1 = Form<Mul, 1>;
  using Relu0 = Form<Relu, 0>;
  for (const auto* operation = reinterpret_cast<const uint8_t*>(insn + 1);; ++operation) {
    switch (*operation) {
      WT_RUN_CASES(LoadForm);
      WT_RUN_CASES(Add0);
      WT_RUN_CASES(Add1);
      WT_RUN_CASES(Sub0);
      WT_RUN_CASES(Sub1);
      WT_RUN_CASES(Mul0);
      WT_RUN_CASES(Mul1);
      WT_RUN_CASE(Relu0, 0, b);
      case kRunEnd:
        insn += insn->out;
        return insn->run(insn, places, a[0].v, a[1].v, a[2].v, a[3].v, a[4].v, a[5].v, a[6].v, a[7].v);
      default:
        __builtin_unreachable();
    }
  }
#undef WT_RUN_CASES
#undef WT_RUN_CASE
}
#endif

}  // namespace

ChainHandler* paired(uint8_t first, uint8_t second, bool of_one) {
  constexpr int kCount = Pairs<Forms>::kCount;
  if (first >= kCount || second >= kCount) return nullptr;
  return (of_one ? kPairs.pairs_of_one : kPairs.pairs)[first][second];
}

bool form_reads(uint8_t form) { return Forms::kReads[form]; }

#if defined(__AVX512F__)
constinit ChainHandler* const kChainRun = &handle_run;
#else
constinit ChainHandler* const kChainRun = nullptr;
#endif
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
