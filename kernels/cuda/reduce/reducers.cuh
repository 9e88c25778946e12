// Reducers that several families share; what a reducer has is said in reduce.cuh.
#pragma once

#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/memory.cuh"

namespace warptape::kernels::cuda {

template <class C>
WT_DEVICE C lowest() {
  if constexpr (kIsInteger<C>)
    return INT64_MIN;
  else
    return -C(__builtin_inf());
}
template <class C>
WT_DEVICE C highest() {
  if constexpr (kIsInteger<C>)
    return INT64_MAX;
  else
    return C(__builtin_inf());
}

// A packed tensor that values of any type are stored to; null data: not wanted.
struct Output {
  void* data;
  DType dtype;
  template <class C>
  WT_DEVICE void put(C value, int64_t to) const {
    if (data) store_as<C>(static_cast<char*>(data) + to * int64_t(itemsize(dtype)), dtype, value);
  }
};

struct NoCenter {};

// Fast types of most reducers: those of the large tensors.
template <class C> struct FastTypesOf {
  using type = Types<>;
};
template <> struct FastTypesOf<float> {
  using type = Types<float, BFloat16, Half>;
};
template <class C> using FastTypes = typename FastTypesOf<C>::type;

// The state is one value: Op has identity, map, join and finish.
template <class C, class Op>
struct Folded {
  using Fast = typename Op::template Fast<C>;
  using Value = C;
  using State = C;
  using Center = NoCenter;
  static constexpr int kInputs = 1;
  static constexpr bool kIndexed = false;
  Op op;
  Output out;

  WT_DEVICE Center center(int64_t) const { return {}; }
  WT_DEVICE State identity() const { return op.template identity<C>(); }
  WT_DEVICE State join(State a, State b) const { return op.join(a, b); }
  template <int N>
  WT_DEVICE void fold(State& s, const Value (&x)[1][N], Center) const {
    s = join(s, fold_tree<N>(x[0], [&](C v) { return op.map(v); }, [&](C a, C b) { return op.join(a, b); }));
  }
  WT_DEVICE void one(State& s, const Value (&x)[1], int64_t, Center) const { s = join(s, op.map(x[0])); }
  WT_DEVICE void store(const State& s, int64_t to) const { out.put(op.finish(s), to); }
};

// Sum, or mean of `count`.
struct Plus {
  // Of integers those that are counted and indices.
  template <class C>
  using Fast =
      std::conditional_t<std::is_same_v<C, double>, Types<double>,
                         std::conditional_t<kIsInteger<C>, Types<int64_t, int32_t, uint8_t>, FastTypes<C>>>;
  bool divide = false;
  double count = 1;
  template <class C> WT_DEVICE C identity() const { return C(0); }
  template <class C> WT_DEVICE C map(C x) const { return x; }
  template <class C> WT_DEVICE C join(C a, C b) const { return a + b; }
  template <class C> WT_DEVICE C finish(C a) const {
    if constexpr (kIsInteger<C>)
      return a;
    else
      return divide ? a / C(count) : a;
  }
};

// Mean and sum of squared deviations of `count` values; blocks of values are joined as Chan, Golub and
// LeVeque do ("Updating formulae and a pairwise algorithm for computing sample variances", 1979).
template <class C>
struct Moments {
  C count, mean, squares;

  WT_DEVICE static Moments none() { return {C(0), C(0), C(0)}; }
  template <int N>
  WT_DEVICE static Moments of(const C (&x)[N]) {
    auto plus = [](C a, C b) { return a + b; };
    const C mean = fold_tree<N>(x, [](C v) { return v; }, plus) * C(1.0 / N);
    return {C(N), mean, fold_tree<N>(x, [=](C v) { return (v - mean) * (v - mean); }, plus)};
  }
  WT_DEVICE static Moments join(const Moments& a, const Moments& b) {
    if (b.count == C(0)) return a;
    if (a.count == C(0)) return b;
    const C count = a.count + b.count, share = b.count / count, delta = b.mean - a.mean;
    return {count, fma(delta, share, a.mean), a.squares + b.squares + delta * delta * a.count * share};
  }
};

// What reducers over Moments have in common.
template <class C>
struct MomentsReducer {
  using Fast = FastTypes<C>;
  using Value = C;
  using State = Moments<C>;
  using Center = NoCenter;
  static constexpr int kInputs = 1;
  static constexpr bool kIndexed = false;

  WT_DEVICE Center center(int64_t) const { return {}; }
  WT_DEVICE State identity() const { return State::none(); }
  WT_DEVICE State join(const State& a, const State& b) const { return State::join(a, b); }
  template <int N>
  WT_DEVICE void fold(State& s, const Value (&x)[1][N], Center) const {
    s = State::join(s, State::of(x[0]));
  }
  WT_DEVICE void one(State& s, const Value (&x)[1], int64_t, Center) const {
    s = State::join(s, State::of(x));
  }
};

template <class C>
struct Variance : MomentsReducer<C> {
  Output out, mean;
  double divisor;
  bool take_root;
  WT_DEVICE void store(const Moments<C>& s, int64_t to) const {
    const C variance = s.squares / C(divisor);
    out.put(take_root ? sqrt(variance) : variance, to);
    mean.put(s.count == C(0) ? C(__builtin_nan("")) : s.mean, to);
  }
};

// kQuick: by the hardware's exponential, good enough for results of 16 bits.
template <class C, bool kQuick = false>
WT_DEVICE C exp_of(C x) {
  if constexpr (kQuick && std::is_same_v<C, float>)
    return __expf(x);
  else
    return exp(x);
}
// The larger one; a NaN loses. One instruction, where maximum takes three.
struct LargerOf {
  WT_DEVICE float operator()(float a, float b) const { return ::fmaxf(a, b); }
  WT_DEVICE double operator()(double a, double b) const { return ::fmax(a, b); }
};
// A sum of exponentials, of which the largest exponent is kept apart. A NaN shows in the sum, not in the top.
template <class C, bool kQuick = false>
struct TopSum {
  C top, sum;

  WT_DEVICE static TopSum none() { return {-C(__builtin_inf()), C(0)}; }
  // What is subtracted from exponents: an infinite top must not give infinity minus infinity.
  WT_DEVICE static C shift(C top) { return isinf(top) ? C(0) : top; }
  WT_DEVICE static C factor(C from, C to) { return from == to ? C(1) : exp_of<C, kQuick>(from - to); }
  WT_DEVICE static TopSum join(const TopSum& a, const TopSum& b) {
    const C top = LargerOf{}(a.top, b.top);
    return {top, a.sum * factor(a.top, top) + b.sum * factor(b.top, top)};
  }
  template <int N>
  WT_DEVICE void add(const C (&x)[N]) {
    const C found = fold_tree<N>(x, [](C v) { return v; }, LargerOf{});
    const C all = LargerOf{}(top, found), by = shift(all);
    const C more =
        fold_tree<N>(x, [=](C v) { return exp_of<C, kQuick>(v - by); }, [](C a, C b) { return a + b; });
    sum = sum * factor(top, all) + more;
    top = all;
  }
  WT_DEVICE C log_sum() const { return log(sum) + shift(top); }
};

template <class C>
struct LogSumExp {
  using Fast = FastTypes<C>;
  using Value = C;
  using State = TopSum<C>;
  using Center = NoCenter;
  static constexpr int kInputs = 1;
  static constexpr bool kIndexed = false;
  Output out;

  WT_DEVICE Center center(int64_t) const { return {}; }
  WT_DEVICE State identity() const { return State::none(); }
  WT_DEVICE State join(const State& a, const State& b) const { return State::join(a, b); }
  template <int N>
  WT_DEVICE void fold(State& s, const Value (&x)[1][N], Center) const {
    s.add(x[0]);
  }
  WT_DEVICE void one(State& s, const Value (&x)[1], int64_t, Center) const { s.add(x); }
  WT_DEVICE void store(const State& s, int64_t to) const { out.put(s.log_sum(), to); }
};

// Any (kAll false) and all: as integers, for a state is made of words.
template <bool kAll>
struct Truth {
  using Fast = Types<uint8_t>;
  using Value = bool;
  using State = int;
  using Center = NoCenter;
  static constexpr int kInputs = 1;
  static constexpr bool kIndexed = false;
  Output out;

  WT_DEVICE Center center(int64_t) const { return {}; }
  WT_DEVICE State identity() const { return kAll; }
  WT_DEVICE State join(State a, State b) const { return kAll ? a & b : a | b; }
  template <int N>
  WT_DEVICE void fold(State& s, const Value (&x)[1][N], Center) const {
#pragma unroll
    for (int i = 0; i < N; ++i) s = join(s, x[0][i]);
  }
  WT_DEVICE void one(State& s, const Value (&x)[1], int64_t, Center) const { s = join(s, x[0]); }
  WT_DEVICE void store(const State& s, int64_t to) const { out.put<int64_t>(s, to); }
};

}  // namespace warptape::kernels::cuda
