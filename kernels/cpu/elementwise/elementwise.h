// How an elementwise op becomes a kernel on the CPU: per op and compute type one small loop over contiguous
// memory; the driver, compiled once, brings every layout and dtype to that form, block by block.
#pragma once

#include <utility>

#include "kernels/cpu/vector/complex_math.h"
#include "kernels/cpu/vector/narrow_math.h"
#include "kernels/dispatch.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/elementwise/formulas.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {

// n values of the compute type at each input, 1 where its bit in scalar_mask is set. `out` may be one of the
// inputs.
using LoopFn = void(int64_t n, void* out, const void* const* in, unsigned scalar_mask);

struct Loops {
  LoopFn* f32;
  LoopFn* f64;
  LoopFn* i64;
  uint8_t inputs;
  bool predicate;         // the loop writes bytes 0 and 1
  bool mask_first;        // the loop reads its first input as bytes
  bool divides_integers;  // a zero in the second input of an integer op is reported as a fault
  LoopFn* c64 = nullptr;
  LoopFn* c128 = nullptr;
  // Instead of i64's where all operands are of that dtype, but for a predicate's result and a mask.
  LoopFn* u8 = nullptr;
  LoopFn* b8 = nullptr;
  LoopFn* i32 = nullptr;
};

void run_elementwise(const LaunchContext& ctx, const ElementwisePlan& plan, const Loops& loops);

// Moves elements of that size, or fills with a scalar.
LoopFn* copy_loop(size_t itemsize);

// The same with one given loop, whose type plan.compute may then be any dtype.
void run_with_loop(const LaunchContext& ctx, const ElementwisePlan& plan, const Loops& loops, LoopFn* loop);

// Reports an integer division by zero where one of the n divisors, or the only one, is 0.
void check_divisor(const LaunchContext& ctx, const int64_t* divisor, int64_t n, bool scalar);

// A loop here adds the sum of its n results, which are computed in the plan's type, to the double at `out`.
// Returns the sum over the whole plan, whose operand 0 gives the geometry and is not touched: the same for
// any number of threads.
double sum_elementwise(const LaunchContext& ctx, const ElementwisePlan& plan, const Loops& loops);

template <class T> inline constexpr bool is_mask = false;
template <class T> inline constexpr bool is_mask<Mask<T>> = true;

template <int N> struct Index {};

template <class Op, class T>
struct Loop {
  using V = Vec<T>;
  static constexpr int kLanes = V::kLanes;

  WT_FN static auto apply(const V (&x)[1], Mask<T>, Index<1>) { return Op::apply(x[0]); }
  WT_FN static auto apply(const V (&x)[2], Mask<T>, Index<2>) { return Op::apply(x[0], x[1]); }
  WT_FN static auto apply(const V (&x)[3], Mask<T> m, Index<3>) {
    if constexpr (Op::kMaskFirst)
      return Op::apply(m, x[1], x[2]);
    else
      return Op::apply(x[0], x[1], x[2]);
  }
  WT_FN static auto apply(const V (&x)[4], Mask<T>, Index<4>) { return Op::apply(x[0], x[1], x[2], x[3]); }

  WT_FN static auto apply(const V (&x)[5], Mask<T>, Index<5>) {
    return Op::apply(x[0], x[1], x[2], x[3], x[4]);
  }
  WT_FN static auto apply(const V (&x)[6], Mask<T>, Index<6>) {
    return Op::apply(x[0], x[1], x[2], x[3], x[4], x[5]);
  }

  using Inputs = V[Op::kInputs];
  static constexpr bool kPredicate =
      is_mask<decltype(apply(std::declval<const Inputs&>(), Mask<T>{}, Index<Op::kInputs>{}))>;

  static void run(int64_t n, void* out, const void* const* in, unsigned scalar_mask) {
    constexpr int N = Op::kInputs;
    // A scalar is spread over a vector once and then read again and again: one loop serves every combination.
    alignas(64) char spread[N][kVecBytes];
    const char* p[N];
    int64_t step[N];
    for (int k = 0; k < N; ++k) {
      const bool bytes = Op::kMaskFirst && k == 0;
      p[k] = static_cast<const char*>(in[k]);
      step[k] = bytes ? kLanes : kVecBytes;
      if (!(scalar_mask >> k & 1)) continue;
      if (bytes)
        for (int i = 0; i < kLanes; ++i) spread[k][i] = *p[k];
      else
        V(*reinterpret_cast<const T*>(p[k])).store(spread[k]);
      p[k] = spread[k];
      step[k] = 0;
    }
    constexpr int64_t kOutStep = kPredicate ? kLanes : kVecBytes;
    char* o = static_cast<char*>(out);
    for (; n >= kLanes; n -= kLanes, o += kOutStep) {
      V x[N];
      Mask<T> m{};
      for (int k = 0; k < N; ++k) {
        if (Op::kMaskFirst && k == 0)
          m = load_mask<T>(p[k]);
        else
          x[k] = V::load(p[k]);
        p[k] += step[k];
      }
      auto r = apply(x, m, Index<N>{});
      if constexpr (kPredicate)
        store(o, r);
      else
        r.store(o);
    }
    if (n == 0) return;
    V x[N];
    Mask<T> m{};
    for (int k = 0; k < N; ++k) {
      if (Op::kMaskFirst && k == 0)
        m = load_mask_partial<T>(p[k], int(n));
      else
        x[k] = load_partial<T>(p[k], int(n));
    }
    store_partial(o, apply(x, m, Index<N>{}), int(n));
  }
};

// Complex numbers are taken one at a time, unless the formula is fit for real and imaginary parts in lanes.
template <class Op, class T>
struct Loop<Op, Complex<T>> {
  using V = Complex<T>;
  static constexpr bool kFirst = Op::kMaskFirst;

  template <size_t K>
  WT_FN static auto load(const void* const* in, int64_t i) {
    if constexpr (kFirst && K == 0)
      return bool(static_cast<const Bool*>(in[0])[i]);
    else
      return static_cast<const V*>(in[K])[i];
  }
  template <size_t... K>
  WT_FN static auto apply(const void* const* in, int64_t i, const int64_t* step, std::index_sequence<K...>) {
    return Op::apply(load<K>(in, step ? i * step[K] : i)...);
  }
  using Inputs = std::make_index_sequence<Op::kInputs>;
  using Result = decltype(apply(nullptr, 0, nullptr, Inputs{}));
  static constexpr bool kPredicate = !std::is_same_v<Result, V>;

  WT_FN static void run_as(int64_t n, void* out, const void* const* in, const int64_t* step) {
    for (int64_t i = 0; i < n; ++i) {
      const Result r = apply(in, i, step, Inputs{});
      if constexpr (kPredicate)
        static_cast<bool*>(out)[i] = r != 0;
      else
        static_cast<V*>(out)[i] = r;
    }
  }
  template <size_t... K>
  WT_FN static void run_lanes(int64_t n, T* out, const void* const* in, unsigned scalar_mask,
                              std::index_sequence<K...>) {
    using Lanes = Complex<Vec<T>>;
    constexpr int L = Vec<T>::kLanes;
    Lanes x[] = {
        Lanes(Vec<T>(static_cast<const V*>(in[K])->re), Vec<T>(static_cast<const V*>(in[K])->im))...};
    const auto some = [&](int64_t i, int count) __attribute__((always_inline)) {
      ((scalar_mask >> K & 1 ? void()
                             : load_pairs(static_cast<const T*>(in[K]) + 2 * i, x[K].re, x[K].im, count)),
       ...);
      const Lanes r = Op::apply(x[K]...);
      store_pairs(out + 2 * i, r.re, r.im, count);
    };
    int64_t i = 0;
    for (; i + L <= n; i += L) some(i, L);
    if (i < n) some(i, int(n - i));
  }
  static void run(int64_t n, void* out, const void* const* in, unsigned scalar_mask) {
    if constexpr ((Op::kTypes & kComplexLanes) == kComplexLanes)
      return run_lanes(n, static_cast<T*>(out), in, scalar_mask, Inputs{});
    int64_t step[Op::kInputs];
    for (int k = 0; k < Op::kInputs; ++k) step[k] = scalar_mask >> k & 1 ? 0 : 1;
    run_as(n, out, in, scalar_mask ? step : nullptr);
  }
};

// Loops that the compiler lays out in lanes: elements at the same place alone depend on each other.
template <class Op, class T>
struct NarrowLoop {
  static constexpr int64_t kBlock = 1024;
  static constexpr bool kPredicate = Loop<Op, int64_t>::kPredicate;
  using Out = std::conditional_t<kPredicate, Bool, T>;

  template <size_t K>
  WT_FN static auto load(const void* const* in, int64_t i) {
    if constexpr (Op::kMaskFirst && K == 0)
      return static_cast<const uint8_t*>(in[0])[i] != 0;
    else
      return int32_t(static_cast<const T*>(in[K])[i]);
  }
  template <size_t... K>
  [[gnu::noinline]] static void block(int64_t n, Out* out, const void* const* in, std::index_sequence<K...>) {
    const void* const p[] = {in[K]...};
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const auto r = Op::apply(load<K>(p, i)...);
      if constexpr (std::is_same_v<Out, Bool>)
        out[i] = Bool(r != 0);
      else
        out[i] = T(r);
    }
  }
  static void run(int64_t n, void* out, const void* const* in, unsigned scalar_mask) {
    constexpr int N = Op::kInputs;
    alignas(64) T spread[N][kBlock];
    const void* p[N];
    for (int k = 0; k < N; ++k) {
      p[k] = in[k];
      if (!(scalar_mask >> k & 1)) continue;
      for (int64_t i = 0; i < (n < kBlock ? n : kBlock); ++i) spread[k][i] = *static_cast<const T*>(in[k]);
      p[k] = spread[k];
    }
    for (int64_t at = 0; at < n; at += kBlock) {
      block(n - at < kBlock ? n - at : kBlock, static_cast<Out*>(out) + at, p, std::make_index_sequence<N>{});
      for (int k = 0; k < N; ++k)
        if (!(scalar_mask >> k & 1)) {
          const bool bytes = Op::kMaskFirst && k == 0;
          p[k] = static_cast<const char*>(p[k]) + kBlock * (bytes ? 1 : int64_t(sizeof(T)));
        }
    }
  }
};

template <class Op>
constexpr Loops loops_of() {
  Loops l{nullptr, nullptr, nullptr, Op::kInputs, false, Op::kMaskFirst, Op::kDividesIntegers};
  if constexpr ((Op::kTypes & kFloats) != 0) {
    l.f32 = &Loop<Op, float>::run;
    l.f64 = &Loop<Op, double>::run;
    l.predicate = Loop<Op, float>::kPredicate;
  }
  if constexpr ((Op::kTypes & kIntegers) != 0) {
    l.i64 = &Loop<Op, int64_t>::run;
    l.predicate = Loop<Op, int64_t>::kPredicate;
  }
  if constexpr ((Op::kTypes & kComplex) != 0) {
    l.c64 = &Loop<Op, Complex<float>>::run;
    l.c128 = &Loop<Op, Complex<double>>::run;
  }
  if constexpr ((Op::kTypes & kNarrow) != 0) {
    l.u8 = &NarrowLoop<Op, uint8_t>::run;
    l.b8 = &NarrowLoop<Op, Bool>::run;
    l.i32 = &NarrowLoop<Op, int32_t>::run;
  }
  return l;
}

template <class Op> inline constexpr Loops kLoopsOf = loops_of<Op>();

template <class Op>
void run_op(const LaunchContext& ctx, const ElementwisePlan& plan) {
  run_elementwise(ctx, plan, kLoopsOf<Op>);
}

}  // namespace warptape::kernels::WARPTAPE_ISA

#define WT_ELEMENTWISE(slot, Op) WT_KERNEL(slot, run_op<Op>)
