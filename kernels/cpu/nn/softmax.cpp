// Softmax and log-softmax. Rows of the last dim are walked as vectors; for another dim the vectors lie across
// `inner`, so both are contiguous loads. 16-bit dtypes compute the exponentials twice rather than keep them
// in a buffer.
#include "kernels/nn/softmax.h"

#include "kernels/cpu/vector/rows.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

using cpu::parallel_for;

template <class T, bool Log>
void softmax_row(T* y, const T* x, int64_t n) {
  using C = Compute<T>;
  const C top = max_of_row(x, n);
  // A row of -inf alone gives NaN, as 0 / 0 does.
  const Vec<C> shift(top);
  const bool stores = !Log && sizeof(T) == sizeof(C);
  const C sum = sum_vectors<C>(n, [&](int64_t i, auto lanes) {
    const Vec<C> e = exp_below(load(x + i, lanes) - shift);
    if constexpr (stores) store(y + i, e, lanes);
    return keep<C>(e, lanes);
  });
  if constexpr (Log) {
    const Vec<C> log_sum(__builtin_log(double(sum)));
    for_vectors<C>(n,
                   [&](int64_t i, auto lanes) { store(y + i, load(x + i, lanes) - shift - log_sum, lanes); });
  } else {
    const Vec<C> scale_by(C(1) / sum);
    for_vectors<C>(n, [&](int64_t i, auto lanes) {
      if constexpr (stores)
        store(y + i, load(y + i, lanes) * scale_by, lanes);
      else
        store(y + i, exp_below(load(x + i, lanes) - shift) * scale_by, lanes);
    });
  }
}

// One vector of columns, `step` elements between the n entries of each.
template <class T, bool Log, class L>
WT_FN void softmax_columns(T* y, const T* x, int64_t n, int64_t step, L lanes) {
  using C = Compute<T>;
  Vec<C> top(-__builtin_inf());
  for (int64_t k = 0; k < n; ++k) top = maximum(top, load(x + k * step, lanes));
  Vec<C> sum(C(0));
  for (int64_t k = 0; k < n; ++k) sum += exp_below(load(x + k * step, lanes) - top);
  if constexpr (Log) {
    const Vec<C> log_sum = log(sum);
    for (int64_t k = 0; k < n; ++k) store(y + k * step, load(x + k * step, lanes) - top - log_sum, lanes);
  } else {
    const Vec<C> scale_by = Vec<C>(1) / sum;
    for (int64_t k = 0; k < n; ++k)
      store(y + k * step, exp_below(load(x + k * step, lanes) - top) * scale_by, lanes);
  }
}

template <class T, bool Log>
void backward_row(T* dx, const T* dy, const T* y, int64_t n) {
  using C = Compute<T>;
  const Vec<C> sum(sum_vectors<C>(n, [&](int64_t i, auto lanes) {
    if constexpr (Log)
      return load(dy + i, lanes);
    else
      return load(dy + i, lanes) * load(y + i, lanes);
  }));
  for_vectors<C>(n, [&](int64_t i, auto lanes) {
    const Vec<C> g = load(dy + i, lanes), v = load(y + i, lanes);
    if constexpr (Log)
      store(dx + i, g - exp_below(v) * sum, lanes);
    else
      store(dx + i, v * (g - sum), lanes);
  });
}

template <class T, bool Log, class L>
WT_FN void backward_columns(T* dx, const T* dy, const T* y, int64_t n, int64_t step, L lanes) {
  using C = Compute<T>;
  Vec<C> sum(C(0));
  for (int64_t k = 0; k < n; ++k) {
    if constexpr (Log)
      sum += load(dy + k * step, lanes);
    else
      sum += load(dy + k * step, lanes) * load(y + k * step, lanes);
  }
  for (int64_t k = 0; k < n; ++k) {
    const Vec<C> g = load(dy + k * step, lanes), v = load(y + k * step, lanes);
    if constexpr (Log)
      store(dx + k * step, g - exp_below(v) * sum, lanes);
    else
      store(dx + k * step, v * (g - sum), lanes);
  }
}

// row(offset) for each row, or columns(offset, lanes) for each vector of columns.
template <class C, class Row, class Columns>
WT_FN void for_slices(int64_t outer, int64_t n, int64_t inner, Row&& row, Columns&& columns) {
  if (n == 0) return;
  if (inner == 1) {
    parallel_for(outer, row_grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) row(r * n);
    });
    return;
  }
  constexpr int kLanes = Vec<C>::kLanes;
  const int64_t vectors = (inner + kLanes - 1) / kLanes;
  parallel_for(outer * vectors, row_grain(n * kLanes), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t column = p % vectors * kLanes, offset = p / vectors * n * inner + column;
      if (column + kLanes <= inner)
        columns(offset, AllLanes{});
      else
        columns(offset, FirstLanes{int(inner - column)});
    }
  });
}

template <bool Log>
void forward(const LaunchContext&, const View& y, const View& x, int64_t outer, int64_t n, int64_t inner) {
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    T* py = y.as<T>();
    const T* px = x.as<T>();
    for_slices<Compute<T>>(
        outer, n, inner, [&](int64_t at) { softmax_row<T, Log>(py + at, px + at, n); },
        [&](int64_t at, auto lanes) { softmax_columns<T, Log>(py + at, px + at, n, inner, lanes); });
  });
}

template <bool Log>
void backward(const LaunchContext&, const View& dx, const View& dy, const View& y, int64_t outer, int64_t n,
              int64_t inner) {
  dispatch(FloatTypes{}, y.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    T* to = dx.as<T>();
    const T* g = dy.as<T>();
    const T* v = y.as<T>();
    for_slices<Compute<T>>(
        outer, n, inner, [&](int64_t at) { backward_row<T, Log>(to + at, g + at, v + at, n); },
        [&](int64_t at, auto lanes) { backward_columns<T, Log>(to + at, g + at, v + at, n, inner, lanes); });
  });
}

}  // namespace

WT_KERNEL(softmax, forward<false>);
WT_KERNEL(log_softmax, forward<true>);
WT_KERNEL(softmax_backward, backward<false>);
WT_KERNEL(log_softmax_backward, backward<true>);

}  // namespace warptape::kernels::WARPTAPE_ISA
