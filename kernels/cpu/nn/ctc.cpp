// Connectionist temporal classification: samples on the pool, the states of a step in vectors of double.
#include "kernels/nn/ctc.h"

#include "kernels/cpu/vector/rows.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

// log(exp(a) + exp(b) + exp(c)); -inf where all three are.
WT_FN VDouble log_add(VDouble a, VDouble b, VDouble c) {
  const VDouble most = max_or_b(max_or_b(a, b), c);
  const VDouble base = select(most == VDouble(-kInf), VDouble(0), most);
  return base + log(exp(a - base) + exp(b - base) + exp(c - base));
}

// One sample in the thread's scratch memory. A row has a number for each state, and -inf on both sides of
// them: states that are not there.
template <class T>
struct Sample {
  static constexpr int64_t kBeside = 2;
  const CtcPlan& p;
  const int64_t n, steps = p.input_lengths[n], states = 2 * p.target_lengths[n] + 1;
  const int64_t width = states + 2 * kBeside;
  const T* x;  // [T, N, C]
  double* memory;
  double* skip;    // 0 for a state that can come right after the last but one, else -inf
  double* scores;  // at one step
  double* rows;
  int64_t* labels;

  Sample(const CtcPlan& plan, int64_t sample, const T* log_probs, bool backward)
      : p(plan), n(sample), x(log_probs) {
    const int64_t kept = backward ? steps + 3 : 2;
    memory = static_cast<double*>(cpu::thread_scratch(size_t((kept + 3) * width * 8)));
    skip = memory + kBeside, scores = skip + width, rows = scores + width;
    labels = reinterpret_cast<int64_t*>(rows + kept * width);
    for (int64_t i = 0; i < (kept + 2) * width; ++i) memory[i] = -kInf;
    for (int64_t s = 0; s < states; ++s) {
      labels[s] = s % 2 ? p.targets[n * p.labels + s / 2] : p.blank;
      if (s % 2 && s > 1 && labels[s] != labels[s - 2]) skip[s] = 0;
    }
  }

  const T* at(int64_t t) const { return x + (t * p.batch + n) * p.classes; }
  void take_scores(int64_t t) {
    const T* from = at(t);
    for (int64_t s = 0; s < states; ++s) scores[s] = double(from[labels[s]]);
  }

  // The logarithms of the chances to be in each state at each step, into the rows, `kept` of them in turn;
  // returns the loss.
  double forward(int64_t kept) {
    if (steps == 0) return states == 1 ? 0.0 : __builtin_inf();
    for (int64_t t = 0; t < steps; ++t) {
      take_scores(t);
      const double* before = rows + (t + kept - 1) % kept * width;
      double* now = rows + t % kept * width;
      if (t == 0)
        for (int64_t s = 0; s < states && s < 2; ++s) now[s] = scores[s];
      else
        for_vectors<double>(states, [&](int64_t s, auto lanes) {
          const VDouble all = log_add(load(before + s, lanes), load(before + s - 1, lanes),
                                      load(before + s - 2, lanes) + load(skip + s, lanes));
          store(now + s, all + load(scores + s, lanes), lanes);
        });
    }
    const double* last = rows + (steps - 1) % kept * width;
    return -log_add(VDouble(last[states - 1]), VDouble(last[states - 2]), VDouble(-kInf)).v[0];
  }

  // From the last step to the first. What remains from a state on, that state's own score included, is in two
  // rows in turn. Label by label the gradient is exp(score) less the chance of the states that have it.
  void backward(double loss, T* grad) {
    using C = Compute<T>;
    const bool none = p.zero_infinity && loss == __builtin_inf();
    double* chances = rows + (steps + 2) * width;
    for (int64_t t = p.steps; t-- > 0;) {
      T* to = grad + (t * p.batch + n) * p.classes;
      if (none || t >= steps) {
        std::memset(static_cast<void*>(to), 0, size_t(p.classes) * sizeof(T));
        continue;
      }
      take_scores(t);
      const double *forward = rows + t * width, *after = rows + (steps + (t + 1) % 2) * width;
      double* now = rows + (steps + t % 2) * width;
      for_vectors<double>(states, [&](int64_t s, auto lanes) {
        const VDouble score = load(scores + s, lanes);
        const VDouble rest = log_add(load(after + s, lanes), load(after + s + 1, lanes),
                                     load(after + s + 2, lanes) + load(skip + s + 2, lanes));
        store(now + s, rest + score, lanes);
      });
      if (t == steps - 1)
        for (int64_t s = states < 2 ? 0 : states - 2; s < states; ++s) now[s] = scores[s];
      for_vectors<double>(states, [&](int64_t s, auto lanes) {
        const VDouble both = load(forward + s, lanes) + load(now + s, lanes);
        store(chances + s, exp(both + VDouble(loss) - load(scores + s, lanes)), lanes);
      });
      // As in PyTorch, not a number where the loss or the score is infinite: so is 0 * inf.
      for_vectors<C>(p.classes, [&](int64_t c, auto lanes) {
        const Vec<C> score = load(at(t) + c, lanes);
        store(to + c, fma(Vec<C>(C(0)), Vec<C>(C(loss)) - score, exp(score)), lanes);
      });
      double blank = 0;
      for (int64_t s = 0; s < states; s += 2) blank += chances[s];
      to[p.blank] -= T(blank);
      for (int64_t s = 1; s < states; s += 2) to[labels[s]] -= T(chances[s]);
    }
  }
};

void ctc_loss(const LaunchContext&, const CtcPlan& p, void* losses, void* grad, const void* log_probs) {
  dispatch(Types<float, double>{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    cpu::parallel_for(p.batch, 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        Sample<T> sample(p, n, static_cast<const T*>(log_probs), grad);
        const double loss = sample.forward(grad ? sample.steps + 1 : 2);
        static_cast<T*>(losses)[n] = p.zero_infinity && loss == __builtin_inf() ? T(0) : T(loss);
        if (grad) sample.backward(loss, static_cast<T*>(grad));
      }
    });
  });
}

}  // namespace

WT_KERNEL(ctc_loss, ctc_loss);

}  // namespace warptape::kernels::WARPTAPE_ISA
