// Optimizer steps and list operations: the tensors of a list are cut into chunks of fixed size, and all
// chunks of all tensors are one parallel loop.
#include "kernels/optim/multi_tensor.h"

#include "kernels/cpu/vector/rows.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

using cpu::parallel_for;

inline constexpr int64_t kChunk = 16384;  // elements; several arrays of this size fit the second cache

// Calls f(item, begin, end, chunk) for the chunks of all items; `chunk` counts over the whole list.
template <class Item, class F>
WT_FN void for_chunks(const LaunchContext& ctx, const Item* items, int64_t count, F&& f) {
  auto* first =
      static_cast<int64_t*>(ctx.scratch((count + 1) * sizeof(int64_t)));  // chunk at which an item starts
  first[0] = 0;
  for (int64_t i = 0; i < count; ++i) first[i + 1] = first[i] + (items[i].numel + kChunk - 1) / kChunk;
  int64_t elements = 0;
  for (int64_t i = 0; i < count; ++i) elements += items[i].numel;
  // Many small tensors are not worth a thread each.
  const int64_t grain = elements < 2 * kChunk ? first[count] : 1;
  parallel_for(first[count], grain, [&](int64_t begin, int64_t end) {
    int64_t low = 0, high = count;  // the last item with first[item] <= begin
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (first[middle] <= begin ? low : high) = middle;
    }
    for (int64_t chunk = begin, i = low; chunk < end; ++chunk) {
      while (first[i + 1] <= chunk) ++i;
      const int64_t at = (chunk - first[i]) * kChunk;
      f(i, at, items[i].numel < at + kChunk ? items[i].numel : at + kChunk, chunk);
    }
  });
}

// Calls f(parameter's type, state's type): float32 with a master.
template <class Item, class F>
void with_types(const Item& item, F&& f) {
  dispatch(FloatTypes{}, item.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if constexpr (sizeof(T) < sizeof(float))
      if (item.master) return f(t, Tag<float>{});
    f(t, t);
  });
}

// Where a step starts from.
template <class S, class T>
S* weights(T* param, float* master) {
  if constexpr (std::is_same_v<T, S>)
    return param;
  else
    return master;
}

// ---- Adam and AdamW ("Decoupled Weight Decay Regularization", algorithm 2) ----

template <class T, class S>
struct AdamStep {
  using C = Compute<T>;
  using V = Vec<C>;
  V beta1, rest1, beta2, rest2, decay, coupled, root2, eps, step_size, inverse_scale;
  bool scales, negates, couples, amsgrad;

  AdamStep(const AdamItem& item, const AdamPlan& p) {
    const double lr = p.lr_tensor ? double(*p.lr_tensor) : p.lr, step = *item.step;
    beta1 = V(p.beta1), rest1 = V(1 - p.beta1), beta2 = V(p.beta2), rest2 = V(1 - p.beta2);
    decay = V(p.decoupled ? 1 - lr * p.weight_decay : 1.0);
    coupled = V(p.weight_decay);
    couples = !p.decoupled && p.weight_decay != 0;
    root2 = V(1 / __builtin_sqrt(1 - __builtin_pow(p.beta2, step)));
    step_size = V(lr / (1 - __builtin_pow(p.beta1, step)));
    eps = V(p.eps);
    scales = p.grad_scale != nullptr;
    inverse_scale = V(scales ? 1 / double(*p.grad_scale) : 1.0);
    negates = p.maximize;
    amsgrad = item.max_exp_avg_sq != nullptr;
  }

  // kRare: unscaling, maximize, coupled decay and amsgrad, whose tests the common loop does without.
  template <bool kRare, class L>
  WT_FN void vector(const AdamItem& item, int64_t i, L lanes) const {
    T *param = static_cast<T*>(item.param) + i, *grad = static_cast<T*>(item.grad) + i;
    S *avg = static_cast<S*>(item.exp_avg) + i, *square = static_cast<S*>(item.exp_avg_sq) + i;
    S* from = weights<S>(param, item.master + i);
    V g = load(grad, lanes), w = load(from, lanes);
    if constexpr (kRare) {
      if (scales) {
        g = g * inverse_scale;
        store(grad, g, lanes);
      }
      if (negates) g = -g;
      if (couples) g = fma(w, coupled, g);
    }
    w = w * decay;
    const V m = fma(load(avg, lanes), beta1, g * rest1);
    V v = fma(load(square, lanes), beta2, g * g * rest2);
    store(avg, m, lanes);
    store(square, v, lanes);
    if constexpr (kRare) {
      if (amsgrad) {
        S* highest = static_cast<S*>(item.max_exp_avg_sq) + i;
        v = maximum(load(highest, lanes), v);
        store(highest, v, lanes);
      }
    }
    w = w - step_size * m / fma(sqrt(v), root2, eps);
    store(from, w, lanes);
    if constexpr (!std::is_same_v<T, S>) store(param, w, lanes);
  }

  void run(const AdamItem& item, int64_t begin, int64_t end) const {
    if (scales || negates || couples || amsgrad)
      for_vectors<C>(end - begin, [&](int64_t i, auto lanes) { vector<true>(item, begin + i, lanes); });
    else
      for_vectors<C>(end - begin, [&](int64_t i, auto lanes) { vector<false>(item, begin + i, lanes); });
  }
};

void fused_adam(const LaunchContext& ctx, const AdamItem* items, int64_t count, const AdamPlan& plan) {
  if (plan.found_inf && *plan.found_inf != 0) return;
  for_chunks(ctx, items, count, [&](int64_t i, int64_t begin, int64_t end, int64_t) {
    with_types(items[i], [&](auto t, auto s) {
      AdamStep<typename decltype(t)::type, typename decltype(s)::type>(items[i], plan)
          .run(items[i], begin, end);
    });
  });
}

// ---- SGD ----

template <class T, class S>
void sgd_chunk(const SgdItem& item, const SgdPlan& p, int64_t begin, int64_t end) {
  using C = Compute<T>;
  using V = Vec<C>;
  const double lr = p.lr_tensor ? double(*p.lr_tensor) : p.lr;
  const V rate(-lr), momentum(p.momentum), rest(1 - p.dampening), decay(p.weight_decay);
  const V inverse_scale(p.grad_scale ? 1 / double(*p.grad_scale) : 1.0);
  T *param = static_cast<T*>(item.param), *grad = static_cast<T*>(item.grad);
  S* buffer = static_cast<S*>(item.momentum_buffer);
  S* from = weights<S>(param, item.master);
  for_vectors<C>(end - begin, [&](int64_t offset, auto lanes) {
    const int64_t i = begin + offset;
    V g = load(grad + i, lanes);
    V w = load(from + i, lanes);
    if (p.grad_scale) {
      g = g * inverse_scale;
      store(grad + i, g, lanes);
    }
    if (p.maximize) g = -g;
    if (p.weight_decay != 0) g = fma(w, decay, g);
    if (buffer) {
      const V b = p.first_step ? g : fma(load(buffer + i, lanes), momentum, g * rest);
      store(buffer + i, b, lanes);
      g = p.nesterov ? fma(b, momentum, g) : b;
    }
    w = fma(g, rate, w);
    store(from + i, w, lanes);
    if constexpr (!std::is_same_v<T, S>) store(param + i, w, lanes);
  });
}

void fused_sgd(const LaunchContext& ctx, const SgdItem* items, int64_t count, const SgdPlan& plan) {
  if (plan.found_inf && *plan.found_inf != 0) return;
  for_chunks(ctx, items, count, [&](int64_t i, int64_t begin, int64_t end, int64_t) {
    with_types(items[i], [&](auto t, auto s) {
      sgd_chunk<typename decltype(t)::type, typename decltype(s)::type>(items[i], plan, begin, end);
    });
  });
}

// ---- lists ----

enum class Order { One, Two, Infinity };

// The part of one chunk: sum of absolutes or squares, or the largest absolute. float64 keeps squares from
// overflowing.
template <class T>
double norm_of_chunk(const T* x, int64_t n, Order order) {
  using C = Compute<T>;
  if (order == Order::Infinity) {
    auto larger = [](Vec<C> a, Vec<C> b) { return maximum(a, b); };
    return across_lanes(
        fold_vectors<C>(
            n, Vec<C>(0),
            [&](Vec<C>& acc, int64_t i, auto lanes) { acc = maximum(acc, abs(load(x + i, lanes))); }, larger),
        larger);
  }
  if (order == Order::One)
    return sum_vectors<C>(n, [&](int64_t i, auto lanes) { return abs(load(x + i, lanes)); });
  const double sum = sum_vectors<C>(n, [&](int64_t i, auto lanes) {
    const Vec<C> v = load(x + i, lanes);
    return v * v;
  });
  if (sum > 1e-30 && sum < 1e38) return sum;
  double exact = 0;
  for (int64_t i = 0; i < n; ++i) exact += double(C(x[i])) * double(C(x[i]));
  return exact;
}

void list_norm(const LaunchContext& ctx, const View& out, const ListItem* items, int64_t count,
               double order) {
  const Order kind = order == 1 ? Order::One : order == 2 ? Order::Two : Order::Infinity;
  int64_t chunks = 0;
  for (int64_t i = 0; i < count; ++i) chunks += (items[i].numel + kChunk - 1) / kChunk;
  auto* parts = static_cast<double*>(ctx.scratch((chunks + 1) * sizeof(double)));
  for_chunks(ctx, items, count, [&](int64_t i, int64_t begin, int64_t end, int64_t chunk) {
    dispatch(FloatTypes{}, items[i].dtype, [&](auto t) {
      using T = typename decltype(t)::type;
      parts[chunk] = norm_of_chunk(static_cast<const T*>(items[i].data) + begin, end - begin, kind);
    });
  });
  for (int64_t i = 0, chunk = 0; i < count; ++i) {
    double total = 0;
    for (const int64_t end = chunk + (items[i].numel + kChunk - 1) / kChunk; chunk < end; ++chunk)
      total = kind != Order::Infinity                  ? total + parts[chunk]
              : total != total || total > parts[chunk] ? total
                                                       : parts[chunk];
    store_as(out, i, kind == Order::Two ? __builtin_sqrt(total) : total);
  }
}

void list_scale(const LaunchContext& ctx, const ListItem* items, int64_t count, double factor,
                const View& factor_tensor) {
  if (factor_tensor.data)
    factor = factor_tensor.dtype == DType::Float64 ? *factor_tensor.as<double>() : *factor_tensor.as<float>();
  for_chunks(ctx, items, count, [&](int64_t i, int64_t begin, int64_t end, int64_t) {
    dispatch(FloatTypes{}, items[i].dtype, [&](auto t) {
      using T = typename decltype(t)::type;
      using C = Compute<T>;
      T* x = static_cast<T*>(items[i].data) + begin;
      for_vectors<C>(end - begin, [&](int64_t k, auto lanes) {
        store(x + k, load(x + k, lanes) * Vec<C>(factor), lanes);
      });
    });
  });
}

void list_add(const LaunchContext& ctx, const ListItem* items, int64_t count, double alpha) {
  for_chunks(ctx, items, count, [&](int64_t i, int64_t begin, int64_t end, int64_t) {
    dispatch(FloatTypes{}, items[i].dtype, [&](auto t) {
      using T = typename decltype(t)::type;
      using C = Compute<T>;
      T* x = static_cast<T*>(items[i].data) + begin;
      const T* y = static_cast<const T*>(items[i].other);
      const Vec<C> factor(alpha);
      if (!y)
        for_vectors<C>(end - begin, [&](int64_t k, auto l) { store(x + k, load(x + k, l) + factor, l); });
      else
        for_vectors<C>(end - begin, [&](int64_t k, auto l) {
          store(x + k, fma(load(y + begin + k, l), factor, load(x + k, l)), l);
        });
    });
  });
}

}  // namespace

WT_KERNEL(fused_adam, fused_adam);
WT_KERNEL(fused_sgd, fused_sgd);
WT_KERNEL(list_norm, list_norm);
WT_KERNEL(list_scale, list_scale);
WT_KERNEL(list_add, list_add);

}  // namespace warptape::kernels::WARPTAPE_ISA
