// Cross entropy over rows of logits, each read once forward and once backward: a group of threads keeps a
// running maximum and a sum of exponentials. Backward may write over the logits, for every element is read
// and written by one thread.
#include "kernels/nn/loss.h"

#include "kernels/cuda/reduce/reduce.cuh"
#include "kernels/cuda/reduce/reducers.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

inline constexpr int kThreads = 256;
template <class T> inline constexpr bool kQuickExp = sizeof(T) == 2;

struct Add {
  template <class C> WT_DEVICE C operator()(C a, C b) const { return a + b; }
};

// What a call is about, in the compute type.
template <class T>
struct Problem {
  using C = Compute<T>;
  const T* logits;
  const int64_t* target;
  const T* weight;      // of classes, or null
  const C* weight_sum;  // of all classes, or null where it is their number
  int64_t rows, classes, ignore_index;
  C smoothing, share;  // share: smoothing per class
  int lanes;
  bool vectors;

  WT_DEVICE C weight_of(int64_t c) const { return weight ? widen<C>(weight[c]) : C(1); }
  WT_DEVICE C all_weights() const { return weight_sum ? *weight_sum : C(classes); }
};

// A block sums a vector.
template <class T>
__global__ void __launch_bounds__(1024) sum_weights_kernel(Compute<T>* sum, const T* weight, int64_t n) {
  using C = Compute<T>;
  __shared__ C shared[1024 / kWarp];
  C s = 0;
  for (int64_t i = threadIdx.x; i < n; i += 1024) s += widen<C>(weight[i]);
  s = group_join(s, 1024, C(0), Add{}, shared);
  if (threadIdx.x == 0) *sum = s;
}

template <class T>
Problem<T> problem(const LaunchContext& ctx, const char* name, const CrossEntropyPlan& p,
                   const void* second) {
  using C = Compute<T>;
  constexpr int64_t W = kPackedWidth<T>;
  C* sum = nullptr;
  if (p.weight.data && p.label_smoothing != 0) {
    sum = static_cast<C*>(ctx.scratch(sizeof(C)));
    launch(ctx, name, sum_weights_kernel<T>, dim3(1), dim3(1024), 0, sum, p.weight.as<T>(), p.classes);
  }
  const int lanes = ceil_power_of_2(ceil_div(ceil_div(p.classes, W), 2));
  return {p.logits.as<T>(),
          p.target.as<int64_t>(),
          p.weight.as<T>(),
          sum,
          p.rows,
          p.classes,
          p.ignore_index,
          C(p.label_smoothing),
          C(p.label_smoothing / double(p.classes)),
          lanes < kThreads ? lanes : kThreads,
          in_step<T>({p.logits.data, second})};
}

// ---- forward ----
template <class C, bool kQuick>
struct RowState {
  TopSum<C, kQuick> exponentials;
  C linear;  // what label smoothing needs: the weighted sum of the logits

  WT_DEVICE static RowState none() { return {TopSum<C, kQuick>::none(), C(0)}; }
  WT_DEVICE static RowState join(const RowState& a, const RowState& b) {
    return {TopSum<C, kQuick>::join(a.exponentials, b.exponentials), a.linear + b.linear};
  }
};

// losses and weights [rows]: what is left to sum.
template <class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(Problem<T> p, Compute<T>* lse, Compute<T>* losses,
                                                           Compute<T>* weights, T* loss, FaultSink fault) {
  using C = Compute<T>;
  using State = RowState<C, kQuickExp<T>>;
  constexpr int W = kPackedWidth<T>;
  __shared__ State shared[kThreads / kWarp];
  const int lane = threadIdx.x % p.lanes;
  const int64_t row = int64_t(blockIdx.x) * (kThreads / p.lanes) + threadIdx.x / p.lanes;
  const bool mine = row < p.rows;
  const int64_t target = mine ? p.target[row] : p.ignore_index;
  const bool bad = target < 0 || target >= p.classes, counts = target != p.ignore_index && !bad;
  const T* x = p.logits + (counts ? row * p.classes : 0);
  State s = State::none();
  for_row<2>(
      Pieces<T>(x, counts ? p.classes : 0, p.vectors), lane, p.lanes,
      [&](const auto& at) {
        constexpr int N = std::extent_v<std::remove_reference_t<decltype(at)>> * W;
        C v[N];
        load_runs(v, x, at);
        s.exponentials.add(v);
        if (p.smoothing == C(0)) return;
#pragma unroll
        for (int j = 0; j < N; ++j) s.linear = fma(v[j], p.weight_of(at[j / W] + j % W), s.linear);
      },
      [&](int64_t i) {
        const C v[1] = {widen<C>(x[i])};
        s.exponentials.add(v);
        s.linear = fma(v[0], p.weight_of(i), s.linear);
      });
  s = group_join(s, p.lanes, State::none(), State::join, shared);
  if (!mine || lane != 0) return;
  C norm = 0, w = 0, value = 0;
  if (counts) {
    norm = s.exponentials.log_sum();
    w = p.weight_of(target);
    value = (C(1) - p.smoothing) * w * (norm - widen<C>(x[target]));
    if (p.smoothing != C(0)) value += p.share * (p.all_weights() * norm - s.linear);
  } else if (target != p.ignore_index) {
    fault.report(target, p.classes);
  }
  lse[row] = norm;
  losses[row] = value;
  weights[row] = w;
  if (loss) loss[row] = narrow<T>(value);
}

// Sums of losses and weights.
template <class C>
struct Totals {
  using Value = C;
  struct State {
    C loss, weight;
  };
  using Center = NoCenter;
  using Fast = std::conditional_t<std::is_same_v<C, float>, Types<float>, Types<>>;
  static constexpr int kInputs = 2;
  static constexpr bool kIndexed = false;
  Output loss;  // null where every row's is wanted
  C* total_weight;
  bool mean;

  WT_DEVICE Center center(int64_t) const { return {}; }
  WT_DEVICE State identity() const { return {C(0), C(0)}; }
  WT_DEVICE State join(const State& a, const State& b) const {
    return {a.loss + b.loss, a.weight + b.weight};
  }
  template <int N>
  WT_DEVICE void fold(State& s, const Value (&x)[2][N], Center) const {
    auto same = [](C v) { return v; };
    s = join(s, {fold_tree<N>(x[0], same, Add{}), fold_tree<N>(x[1], same, Add{})});
  }
  WT_DEVICE void one(State& s, const Value (&x)[2], int64_t, Center) const { s = join(s, {x[0], x[1]}); }
  WT_DEVICE void store(const State& s, int64_t) const {
    *total_weight = s.weight;
    loss.put(mean ? s.loss / s.weight : s.loss, 0);
  }
};

void cross_entropy(const LaunchContext& ctx, const View& loss, const View& lse, const View& total_weight,
                   const CrossEntropyPlan& plan) {
  const char* name = "cross_entropy";
  dispatch(FloatTypes{}, plan.logits.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const Problem<T> p = problem<T>(ctx, name, plan, plan.logits.data);
    const bool none = plan.reduction == Reduction::None;
    // One more than there are rows, for there may be none.
    const bool wide = loss.dtype == dtype_of<C>;  // then the rows' losses are what the kernel keeps
    C* losses = none && wide ? loss.as<C>() : static_cast<C*>(ctx.scratch(size_t(p.rows + 1) * sizeof(C)));
    C* weights = static_cast<C*>(ctx.scratch(size_t(p.rows + 1) * sizeof(C)));
    launch(ctx, name, forward_kernel<T>, dim3(unsigned(ceil_div(p.rows, kThreads / p.lanes))), dim3(kThreads),
           0, p, lse.as<C>(), losses, weights, none && !wide ? loss.as<T>() : nullptr, fault_sink(ctx, name));
    const int64_t sizes[1] = {p.rows}, one[1] = {1};
    ReduceGeometry g =
        reduce_geometry(View{nullptr, one, one, 1, dtype_of<C>}, View{losses, sizes, one, 1, dtype_of<C>});
    g.data[1] = reinterpret_cast<const char*>(weights);
    reduce(ctx, name, g,
           Totals<C>{{none ? nullptr : loss.data, loss.dtype},
                     total_weight.as<C>(),
                     plan.reduction == Reduction::Mean});
  });
}

// ---- backward ----
// With p = softmax(x), w the target's weight, k = 1 - smoothing:
// dx = g * (k * w * (p - onehot) + share * (p * weight_sum - weight)).
template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(Problem<T> p, T* to, const void* dloss, bool wide, const Compute<T>* lse,
                    const Compute<T>* total_weight, Reduction reduction) {
  using C = Compute<T>;
  constexpr int W = kPackedWidth<T>;
  const int lane = threadIdx.x % p.lanes;
  const int64_t row = int64_t(blockIdx.x) * (kThreads / p.lanes) + threadIdx.x / p.lanes;
  if (row >= p.rows) return;
  const int64_t target = p.target[row];
  const bool counts = target != p.ignore_index && target >= 0 && target < p.classes;
  const T* x = p.logits + row * p.classes;
  T* dx = to + row * p.classes;
  const int64_t at = reduction == Reduction::None ? row : 0;
  C g = 0;
  if (counts) g = wide ? static_cast<const C*>(dloss)[at] : widen<C>(static_cast<const T*>(dloss)[at]);
  if (reduction == Reduction::Mean && counts) g /= *total_weight;
  const C norm = lse[row], less = g * p.share;
  const C hard = counts ? g * (C(1) - p.smoothing) * p.weight_of(target) : C(0);
  const C factor = hard + less * p.all_weights();
  auto result = [&](C v, int64_t i) {
    if (!counts) return C(0);  // whatever the logits are
    C r = exp_of<C, kQuickExp<T>>(v - norm) * factor;
    if (p.smoothing != C(0)) r -= less * p.weight_of(i);
    return i == target ? r - hard : r;
  };
  for_row<2>(
      Pieces<T>(x, p.classes, p.vectors), lane, p.lanes,
      [&](const auto& at) {
        constexpr int N = std::extent_v<std::remove_reference_t<decltype(at)>> * W;
        C v[N];
        load_runs(v, x, at);
#pragma unroll
        for (int j = 0; j < N; ++j) v[j] = result(v[j], at[j / W] + j % W);
        store_runs(dx, at, v);
      },
      [&](int64_t i) { dx[i] = narrow<T>(result(widen<C>(x[i]), i)); });
}

void cross_entropy_backward(const LaunchContext& ctx, const View& dx, const View& dloss, const View& lse,
                            const View& total_weight, const CrossEntropyPlan& plan) {
  const char* name = "cross_entropy_backward";
  dispatch(FloatTypes{}, plan.logits.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const Problem<T> p = problem<T>(ctx, name, plan, dx.data);
    launch(ctx, name, backward_kernel<T>, dim3(unsigned(ceil_div(p.rows, kThreads / p.lanes))),
           dim3(kThreads), 0, p, dx.as<T>(), dloss.data, dloss.dtype == dtype_of<C>, lse.as<C>(),
           total_weight.as<C>(), plan.reduction);
  });
}

WT_KERNEL(cross_entropy, cross_entropy);
WT_KERNEL(cross_entropy_backward, cross_entropy_backward);

}  // namespace
}  // namespace warptape::kernels::cuda
