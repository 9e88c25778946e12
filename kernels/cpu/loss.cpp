// Cross entropy over rows of logits. Forward reads each row once: running maximum and sum of exponentials
// over pieces that stay in the first cache.
#include "kernels/loss.h"

#include "kernels/cpu/fault.h"
#include "kernels/cpu/rows.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

using cpu::parallel_for;
using cpu::report_index;

inline constexpr int64_t kPiece = 2048;  // elements

template <class C>
C log_sum_exp(const auto* x, int64_t n) {
  C top = -__builtin_inf(), sum = 0;
  for (int64_t first = 0; first < n; first += kPiece) {
    const auto* piece = x + first;
    const int64_t count = n - first < kPiece ? n - first : kPiece;
    const C found = max_of_row(piece, count);
    if (!(found <= top)) {  // larger, or NaN
      if (first) sum *= C(__builtin_exp(double(top - found)));
      top = found;
    }
    const Vec<C> shift(top);
    sum += sum_vectors<C>(count, [&](int64_t i, auto lanes) {
      return keep<C>(exp_below(load(piece + i, lanes) - shift), lanes);
    });
  }
  return top + C(__builtin_log(double(sum)));
}

// What label smoothing needs of a row: the weighted sum of its logits.
template <class T>
WT_FN Compute<T> weighted_sum(const T* x, const Compute<T>* weight, int64_t n) {
  return sum_vectors<Compute<T>>(n, [&](int64_t i, auto lanes) {
    return weight ? load(x + i, lanes) * load(weight + i, lanes) : load(x + i, lanes);
  });
}

// Constants of a call, in the compute type C.
template <class C>
struct Settings {
  const C* weight;
  C weight_sum;        // of all classes, for label smoothing
  C smoothing, share;  // share: smoothing per class

  Settings(const LaunchContext& ctx, const CrossEntropyPlan& p)
      : weight(in_compute<C>(ctx, p.weight, p.classes)),
        weight_sum(C(p.classes)),
        smoothing(C(p.label_smoothing)),
        share(C(p.label_smoothing / double(p.classes))) {
    if (!weight || smoothing == 0) return;
    weight_sum = 0;
    for (int64_t c = 0; c < p.classes; ++c) weight_sum += weight[c];
  }
};

// Fixed pieces of 256 rows, then the pieces: the same order for any number of threads, small error for many
// rows.
template <class C>
C sum_in_pieces(const C* values, int64_t n) {
  C total = 0;
  for (int64_t first = 0; first < n; first += 256) {
    C sum = 0;
    for (int64_t i = first; i < n && i < first + 256; ++i) sum += values[i];
    total += sum;
  }
  return total;
}

// Of each row its loss, its weight and its lse.
template <class T, class C = Compute<T>>
void loss_rows(const LaunchContext& ctx, C* losses, C* weights, C* lse, const CrossEntropyPlan& p) {
  const Settings<C> s(ctx, p);
  parallel_for(p.rows, row_grain(p.classes), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* x = p.logits.as<T>() + r * p.classes;
      const int64_t target = p.target.as<int64_t>()[r];
      losses[r] = weights[r] = lse[r] = 0;
      if (target == p.ignore_index) continue;
      if (target < 0 || target >= p.classes) {
        report_index(ctx, target, p.classes);
        continue;
      }
      const C norm = log_sum_exp<C>(x, p.classes);
      lse[r] = norm;
      weights[r] = s.weight ? s.weight[target] : C(1);
      losses[r] = (C(1) - s.smoothing) * weights[r] * (norm - C(x[target]));
      if (s.smoothing != 0)
        losses[r] += s.share * (s.weight_sum * norm - weighted_sum(x, s.weight, p.classes));
    }
  });
}

template <class T, class C = Compute<T>>
void sum_losses(T* loss, C* total_weight, const C* losses, const C* weights, int64_t rows,
                Reduction reduction) {
  const C total = sum_in_pieces(weights, rows);
  *total_weight = total;
  if (reduction == Reduction::None) {
    for (int64_t r = 0; r < rows; ++r) loss[r] = T(losses[r]);
  } else {
    const C sum = sum_in_pieces(losses, rows);
    *loss = T(reduction == Reduction::Mean ? sum / total : sum);
  }
}

void cross_entropy_rows(const LaunchContext& ctx, const View& losses, const View& weights, const View& lse,
                        const CrossEntropyPlan& p) {
  dispatch(FloatTypes{}, p.logits.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    loss_rows<T>(ctx, losses.as<C>(), weights.as<C>(), lse.as<C>(), p);
  });
}

void cross_entropy_sum(const LaunchContext&, const View& loss, const View& total_weight, const View& losses,
                       const View& weights, int64_t rows, Reduction reduction) {
  dispatch(FloatTypes{}, loss.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    sum_losses(loss.as<T>(), total_weight.as<C>(), losses.as<C>(), weights.as<C>(), rows, reduction);
  });
}

void cross_entropy(const LaunchContext& ctx, const View& loss, const View& lse, const View& total_weight,
                   const CrossEntropyPlan& p) {
  dispatch(FloatTypes{}, p.logits.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    C* losses = static_cast<C*>(ctx.scratch((2 * p.rows + 1) * sizeof(C)));
    C* weights = losses + p.rows;
    loss_rows<T>(ctx, losses, weights, lse.as<C>(), p);
    sum_losses(loss.as<T>(), total_weight.as<C>(), losses, weights, p.rows, p.reduction);
  });
}

// With p = softmax(x), w the target's weight, k = 1 - smoothing:
// dx = g * (k * w * (p - onehot) + share * (p * weight_sum - weight)).
template <class T>
void backward_row(T* dx, const T* x, Compute<T> norm, int64_t target, Compute<T> g,
                  const Settings<Compute<T>>& s, int64_t n) {
  using C = Compute<T>;
  const C chosen(x[target]);  // dx may be x
  const C hard = g * (C(1) - s.smoothing) * (s.weight ? s.weight[target] : C(1));
  const Vec<C> shift(norm), factor(hard + g * s.share * s.weight_sum), less(g * s.share);
  if (s.smoothing == 0)
    for_vectors<C>(n,
                   [&](int64_t i, auto l) { store(dx + i, exp_below(load(x + i, l) - shift) * factor, l); });
  else if (!s.weight)
    for_vectors<C>(
        n, [&](int64_t i, auto l) { store(dx + i, exp_below(load(x + i, l) - shift) * factor - less, l); });
  else
    for_vectors<C>(n, [&](int64_t i, auto l) {
      store(dx + i, exp_below(load(x + i, l) - shift) * factor - less * load(s.weight + i, l), l);
    });
  // The target again, from the value that was not rounded to T.
  C at = (Vec<C>(exp(Vec<C>(chosen - norm)) * factor)).v[0] - hard;
  if (s.smoothing != 0) at -= g * s.share * (s.weight ? s.weight[target] : C(1));
  dx[target] = T(at);
}

void cross_entropy_backward(const LaunchContext& ctx, const View& dx, const View& dloss, const View& lse,
                            const View& total_weight, const CrossEntropyPlan& p) {
  dispatch(FloatTypes{}, p.logits.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const Settings<C> s(ctx, p);
    parallel_for(p.rows, row_grain(p.classes), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* to = dx.as<T>() + r * p.classes;
        const int64_t target = p.target.as<int64_t>()[r];
        if (target == p.ignore_index || target < 0 || target >= p.classes) {
          std::memset(static_cast<void*>(to), 0, p.classes * sizeof(T));
          continue;
        }
        C g = C(dloss.as<T>()[p.reduction == Reduction::None ? r : 0]);
        if (p.reduction == Reduction::Mean) g /= *total_weight.as<C>();
        backward_row(to, p.logits.as<T>() + r * p.classes, lse.as<C>()[r], target, g, s, p.classes);
      }
    });
  });
}

}  // namespace

WT_KERNEL(cross_entropy, cross_entropy);
WT_KERNEL(cross_entropy_rows, cross_entropy_rows);
WT_KERNEL(cross_entropy_sum, cross_entropy_sum);
WT_KERNEL(cross_entropy_backward, cross_entropy_backward);

}  // namespace warptape::kernels::WARPTAPE_ISA
