// What several ranks hold, combined in the order of the ranks. Ranks are processes side by side, so the work
// stays in the calling thread.
#include "kernels/distributed/collective.h"

#include "kernels/cpu/vector/rows.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

template <class V>
WT_FN V combine_one(Combine op, V a, V b) {
  switch (op) {
    case Combine::Product:
      return a * b;
    case Combine::Min:
      return minimum(a, b);
    case Combine::Max:
      return maximum(a, b);
    default:
      return a + b;
  }
}

template <Combine op, class T>
void combine_floats(T* out, const void* const* inputs, int count, int64_t numel) {
  using C = Compute<T>;
  for_vectors<C>(numel, [&](int64_t i, auto lanes) {
    Vec<C> sum = load(static_cast<const T*>(inputs[0]) + i, lanes);
    for (int r = 1; r < count; ++r)
      sum = combine_one(op, sum, Vec<C>(load(static_cast<const T*>(inputs[r]) + i, lanes)));
    if constexpr (op == Combine::Avg) sum = sum / Vec<C>(C(count));
    store(out + i, sum, lanes);
  });
}

// Integers wrap around, so they are combined as unsigned where that is the same.
template <Combine op, class T>
WT_FN T combine_integers(T a, T b) {
  if constexpr (op == Combine::Product) return T(uint64_t(a) * uint64_t(b));
  if constexpr (op == Combine::Min) return b < a ? b : a;
  if constexpr (op == Combine::Max) return a < b ? b : a;
  if constexpr (op == Combine::BitAnd) return T(a & b);
  if constexpr (op == Combine::BitOr) return T(a | b);
  if constexpr (op == Combine::BitXor) return T(a ^ b);
  return T(uint64_t(a) + uint64_t(b));
}

template <Combine op, class T>
void combine_whole(T* out, const void* const* inputs, int count, int64_t numel) {
  constexpr int64_t kPiece = 256;
  T sums[kPiece];  // out may be one of the inputs, so a sum is kept apart until it is done
  for (int64_t from = 0; from < numel; from += kPiece) {
    const int64_t n = numel - from < kPiece ? numel - from : kPiece;
    __builtin_memcpy(sums, static_cast<const T*>(inputs[0]) + from, n * sizeof(T));
    for (int r = 1; r < count; ++r) {
      const T* next = static_cast<const T*>(inputs[r]) + from;
      for (int64_t i = 0; i < n; ++i) sums[i] = combine_integers<op>(sums[i], next[i]);
    }
    if constexpr (op == Combine::Avg)
      for (int64_t i = 0; i < n; ++i) sums[i] = T(sums[i] / T(count));
    __builtin_memcpy(out + from, sums, n * sizeof(T));
  }
}

// Calls f with the operation as a compile-time value.
template <class F>
WT_FN bool with_operation(Combine op, bool bits, F&& f) {
  switch (op) {
    case Combine::Sum:
      return f.template operator()<Combine::Sum>(), true;
    case Combine::Avg:
      return f.template operator()<Combine::Avg>(), true;
    case Combine::Product:
      return f.template operator()<Combine::Product>(), true;
    case Combine::Min:
      return f.template operator()<Combine::Min>(), true;
    case Combine::Max:
      return f.template operator()<Combine::Max>(), true;
    default:
      break;
  }
  if (!bits) return false;
  if (op == Combine::BitAnd) f.template operator()<Combine::BitAnd>();
  if (op == Combine::BitOr) f.template operator()<Combine::BitOr>();
  if (op == Combine::BitXor) f.template operator()<Combine::BitXor>();
  return true;
}

// A truth value is any byte, 0 for false: a sum is "or", a product "and".
Combine for_bool(Combine op) {
  if (op == Combine::Sum || op == Combine::BitOr) return Combine::Max;
  if (op == Combine::Product || op == Combine::BitAnd) return Combine::Min;
  return op;
}

bool combine(const LaunchContext&, void* out, const void* const* inputs, int count, int64_t numel,
             DType dtype, Combine op) {
  if (dtype == DType::Bool) {
    op = for_bool(op), dtype = DType::UInt8;
    if (op == Combine::Avg) return false;
  }
  bool done = false;
  const bool floats = try_dispatch(FloatTypes{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    done = with_operation(op, false, [&]<Combine o>() {
      if constexpr (o < Combine::BitAnd) combine_floats<o>(static_cast<T*>(out), inputs, count, numel);
    });
  });
  const bool whole = try_dispatch(IntTypes{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    done = with_operation(op, true,
                          [&]<Combine o>() { combine_whole<o>(static_cast<T*>(out), inputs, count, numel); });
  });
  return (floats || whole) && done;
}

}  // namespace

WT_KERNEL(combine, combine);

}  // namespace warptape::kernels::WARPTAPE_ISA
