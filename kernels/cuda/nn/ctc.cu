// Connectionist temporal classification: a thread a sample.
#include "kernels/nn/ctc.h"

#include <math.h>

#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/memory.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 32;

WT_INLINE double log_add(double a, double b) {
  const double most = a > b ? a : b, least = a > b ? b : a;
  return least == -__builtin_inf() ? most : most + ::log1p(::exp(least - most));
}

template <class T>
struct Sample {
  const CtcPlan& p;
  int64_t n, steps, states;
  const T* x;

  WT_INLINE Sample(const CtcPlan& plan, int64_t sample, const T* log_probs)
      : p(plan),
        n(sample),
        steps(plan.input_lengths[sample]),
        states(2 * plan.target_lengths[sample] + 1),
        x(log_probs) {}
  WT_INLINE int64_t label(int64_t s) const { return s % 2 ? p.targets[n * p.labels + s / 2] : p.blank; }
  WT_INLINE double at(int64_t t, int64_t c) const { return double(x[(t * p.batch + n) * p.classes + c]); }
  WT_INLINE bool skips(int64_t s) const { return s % 2 && s > 1 && label(s) != label(s - 2); }
  WT_INLINE double* row(int64_t t) const { return p.scratch + (n * (p.steps + 1) + t) * (2 * p.labels + 1); }

  // The logarithms of the chances to be in each state at each step, into the rows; returns the loss.
  WT_INLINE double forward() const {
    if (steps == 0) return states == 1 ? 0.0 : __builtin_inf();
    double* first = row(0);
    for (int64_t s = 0; s < states; ++s) first[s] = s < 2 ? at(0, label(s)) : -__builtin_inf();
    for (int64_t t = 1; t < steps; ++t) {
      const double* before = row(t - 1);
      double* now = row(t);
      for (int64_t s = 0; s < states; ++s) {
        double sum = before[s];
        if (s > 0) sum = log_add(sum, before[s - 1]);
        if (skips(s)) sum = log_add(sum, before[s - 2]);
        now[s] = sum + at(t, label(s));
      }
    }
    const double* last = row(steps - 1);
    return -(states > 1 ? log_add(last[states - 1], last[states - 2]) : last[0]);
  }

  // From the last step to the first: the row behind the others has the chances of what is to come.
  WT_INLINE void backward(double loss, T* grad) const {
    double* beta = row(p.steps);
    for (int64_t t = p.steps; t-- > 0;) {
      T* g = grad + (t * p.batch + n) * p.classes;
      const bool none = t >= steps || (p.zero_infinity && loss == __builtin_inf());
      for (int64_t c = 0; c < p.classes; ++c) g[c] = none ? T(0) : T(-__builtin_inf());
      if (none) continue;
      for (int64_t s = 0; s < states; ++s) {  // what comes after s is of the step after, still
        double sum = t == steps - 1 ? (s + 2 < states ? -__builtin_inf() : 0.0) : beta[s];
        if (t < steps - 1 && s + 1 < states) sum = log_add(sum, beta[s + 1]);
        if (t < steps - 1 && s + 2 < states && skips(s + 2)) sum = log_add(sum, beta[s + 2]);
        beta[s] = sum + at(t, label(s));
        T& to = g[label(s)];
        to = T(log_add(double(to), row(t)[s] + beta[s]));
      }
      for (int64_t c = 0; c < p.classes; ++c)
        g[c] = T(::exp(at(t, c)) - ::exp(double(g[c]) + loss - at(t, c)));
    }
  }

  WT_INLINE void run(T* losses, T* grad) const {
    const double loss = forward();
    losses[n] = p.zero_infinity && loss == __builtin_inf() ? T(0) : T(loss);
    if (grad) backward(loss, grad);
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    ctc_kernel(const __grid_constant__ CtcPlan p, void* loss, void* grad, const void* log_probs) {
  const int64_t n = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (n < p.batch)
    Sample<T>(p, n, static_cast<const T*>(log_probs)).run(static_cast<T*>(loss), static_cast<T*>(grad));
}

void ctc_loss(const LaunchContext& ctx, const CtcPlan& p, void* loss, void* grad, const void* log_probs) {
  dispatch(Types<float, double>{}, p.dtype, [&](auto t) {
    launch(ctx, "ctc_loss", ctc_kernel<typename decltype(t)::type>,
           dim3(unsigned(ceil_div(p.batch, int64_t(kThreads)))), dim3(kThreads), 0, p, loss, grad, log_probs);
  });
}

}  // namespace

WT_KERNEL(ctc_loss, ctc_loss);

}  // namespace warptape::kernels::cuda
