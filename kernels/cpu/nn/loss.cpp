// Cross entropy over rows of logits. Forward reads each row once: running maximum and sum of exponentials
// over pieces that stay in the first cache. Where the classes of a row lie apart, as in images, many rows
// advance together.
#include "kernels/nn/loss.h"

#include "kernels/cpu/index/fault.h"
#include "kernels/cpu/vector/rows.h"
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

// Row r's class, or -1 where the row does not count.
WT_FN int64_t class_of(const CrossEntropyPlan& p, int64_t r) {
  const int64_t target = p.target.as<int64_t>()[r];
  return target == p.ignore_index || target < 0 || target >= p.classes ? -1 : target;
}

template <class C>
struct RowResults {
  C *losses, *weights, *lse;

  // `all`: the weighted sum of the row's logits, for label smoothing.
  WT_FN void set(const Settings<C>& s, int64_t r, int64_t target, C chosen, C norm, C all) const {
    lse[r] = norm;
    weights[r] = s.weight ? s.weight[target] : C(1);
    losses[r] = (C(1) - s.smoothing) * weights[r] * (norm - chosen);
    if (s.smoothing != 0) losses[r] += s.share * (s.weight_sum * norm - all);
  }
  WT_FN void skip(const LaunchContext& ctx, const CrossEntropyPlan& p, int64_t r) const {
    losses[r] = weights[r] = lse[r] = 0;
    const int64_t target = p.target.as<int64_t>()[r];
    if (target != p.ignore_index) report_index(ctx, target, p.classes);
  }
};

inline constexpr int64_t kBand = 256;  // rows that advance together

// f(first row, rows, offset of the first one's first logit) for every band of rows side by side.
template <class F>
WT_FN void for_bands(const CrossEntropyPlan& p, F&& f) {
  const int64_t bands = (p.inner + kBand - 1) / kBand;
  parallel_for(p.rows / p.inner * bands, row_grain(p.classes * kBand), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t outer = b / bands, column = b % bands * kBand;
      f(outer * p.inner + column, p.inner - column < kBand ? p.inner - column : kBand,
        outer * p.classes * p.inner + column);
    }
  });
}

template <class T, class C = Compute<T>>
void loss_band(const LaunchContext& ctx, const RowResults<C>& to, const Settings<C>& s,
               const CrossEntropyPlan& p, int64_t first, int64_t n, const T* x) {
  C top[kBand], sum[kBand], all[kBand];
  for (int64_t i = 0; i < n; ++i) top[i] = -__builtin_inf(), sum[i] = all[i] = 0;
  for (int64_t c = 0; c < p.classes; ++c)
    for_vectors<C>(n, [&](int64_t i, auto l) {
      store(top + i, maximum(load(top + i, l), load(x + c * p.inner + i, l)), l);
    });
  for (int64_t c = 0; c < p.classes; ++c)
    for_vectors<C>(n, [&](int64_t i, auto l) {
      const Vec<C> v = load(x + c * p.inner + i, l);
      store(sum + i, load(sum + i, l) + exp_below(v - load(top + i, l)), l);
      if (s.smoothing != 0) store(all + i, load(all + i, l) + v * Vec<C>(s.weight ? s.weight[c] : C(1)), l);
    });
  for_vectors<C>(n, [&](int64_t i, auto l) { store(top + i, load(top + i, l) + log(load(sum + i, l)), l); });
  for (int64_t i = 0; i < n; ++i) {
    const int64_t target = class_of(p, first + i);
    if (target < 0)
      to.skip(ctx, p, first + i);
    else
      to.set(s, first + i, target, C(x[target * p.inner + i]), top[i], all[i]);
  }
}

// Of each row its loss, its weight and its lse.
template <class T, class C = Compute<T>>
void loss_rows(const LaunchContext& ctx, const RowResults<C>& to, const CrossEntropyPlan& p) {
  const Settings<C> s(ctx, p);
  if (p.inner > 1)
    return for_bands(p, [&](int64_t first, int64_t n, int64_t offset) {
      loss_band(ctx, to, s, p, first, n, p.logits.as<T>() + offset);
    });
  parallel_for(p.rows, row_grain(p.classes), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* x = p.logits.as<T>() + r * p.classes;
      const int64_t target = class_of(p, r);
      if (target < 0)
        to.skip(ctx, p, r);
      else
        to.set(s, r, target, C(x[target]), log_sum_exp<C>(x, p.classes),
               s.smoothing != 0 ? weighted_sum(x, s.weight, p.classes) : C(0));
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
    loss_rows<T>(ctx, RowResults<C>{losses.as<C>(), weights.as<C>(), lse.as<C>()}, p);
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
    loss_rows<T>(ctx, RowResults<C>{losses, weights, lse.as<C>()}, p);
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

// The same for rows side by side. g(row): what its loss's gradient is.
template <class T, class G, class C = Compute<T>>
void backward_band(T* dx, const T* x, const C* lse, const CrossEntropyPlan& p, const Settings<C>& s,
                   int64_t first, int64_t n, G&& g) {
  C factor[kBand], less[kBand], counts[kBand], chosen[kBand];
  for (int64_t i = 0; i < n; ++i) {
    const int64_t target = class_of(p, first + i);
    counts[i] = C(target >= 0);
    factor[i] = less[i] = chosen[i] = 0;
    if (target < 0) continue;
    const C up = g(first + i), hard = up * (C(1) - s.smoothing) * (s.weight ? s.weight[target] : C(1));
    factor[i] = hard + up * s.share * s.weight_sum;
    less[i] = up * s.share;
    chosen[i] = C(x[target * p.inner + i]);  // dx may be x
  }
  auto slope = [&](Vec<C> v, int64_t i, auto l) {
    return exp_below(v - load(lse + first + i, l)) * load(factor + i, l);
  };
  for (int64_t c = 0; c < p.classes; ++c) {
    const Vec<C> weight(s.weight ? s.weight[c] : C(1));
    for_vectors<C>(n, [&](int64_t i, auto l) {
      const Vec<C> d = slope(load(x + c * p.inner + i, l), i, l) - load(less + i, l) * weight;
      store(dx + c * p.inner + i, select(load(counts + i, l) != Vec<C>(0), d, Vec<C>(0)), l);
    });
  }
  // The targets again, from values that were not rounded to T.
  for_vectors<C>(n, [&](int64_t i, auto l) { store(chosen + i, slope(load(chosen + i, l), i, l), l); });
  for (int64_t i = 0; i < n; ++i) {
    const int64_t target = class_of(p, first + i);
    if (target < 0) continue;
    const C weight = s.weight ? s.weight[target] : C(1);
    dx[target * p.inner + i] = T(chosen[i] - g(first + i) * (C(1) - s.smoothing) * weight - less[i] * weight);
  }
}

void cross_entropy_backward(const LaunchContext& ctx, const View& dx, const View& dloss, const View& lse,
                            const View& total_weight, const CrossEntropyPlan& p) {
  dispatch(FloatTypes{}, p.logits.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const Settings<C> s(ctx, p);
    const T* x = p.logits.as<T>();
    auto g = [&](int64_t r) {
      const C up(dloss.as<T>()[p.reduction == Reduction::None ? r : 0]);
      return p.reduction == Reduction::Mean ? up / *total_weight.as<C>() : up;
    };
    if (p.inner > 1)
      return for_bands(p, [&](int64_t first, int64_t n, int64_t offset) {
        backward_band(dx.as<T>() + offset, x + offset, lse.as<C>(), p, s, first, n, g);
      });
    parallel_for(p.rows, row_grain(p.classes), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* to = dx.as<T>() + r * p.classes;
        const int64_t target = class_of(p, r);
        if (target < 0)
          std::memset(static_cast<void*>(to), 0, p.classes * sizeof(T));
        else
          backward_row(to, x + r * p.classes, lse.as<C>()[r], target, g(r), s, p.classes);
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
