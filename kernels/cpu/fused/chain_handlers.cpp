// The handlers of chains. The last thing that each does is a call with the arguments of its own, which the
// compiler makes a jump; where it does not (without optimisation), a program is a row of nested calls.

#include "kernels/cpu/fused/chain.h"

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

template <class... F>
struct FormList {
  static constexpr int kCount = sizeof...(F);
  static constexpr bool kReads[] = {F::kReads...};
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
  constexpr FormList() : pairs{}, pairs_of_one{} {
    int k = 0;
    ((std::is_same_v<F, StoreForm> ? void() : fill<F>(pairs[k], pairs_of_one[k]), ++k), ...);
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

ChainHandler* paired(uint8_t first, uint8_t second, bool of_one) {
  if (first >= Forms::kCount || second >= Forms::kCount) return nullptr;
  return (of_one ? kForms.pairs_of_one : kForms.pairs)[first][second];
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
