// Recurrent layers. A sequence depends on no other: the batch is cut into a few rows for each task, which
// runs them through all steps without waiting for anyone. The weight is packed once for all steps and tasks.
#include "kernels/nn/recurrent.h"

#include "kernels/cpu/gemm/gemm_plan.h"
#include "kernels/cpu/vector/rows.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int64_t kTaskRows = 12;  // as many as share a pass over the weight from registers

WT_INLINE int64_t gates_of(Recurrence kind) {
  return kind == Recurrence::Lstm ? 4 : kind == Recurrence::Gru ? 3 : 1;
}

// The product of some rows with the weight, or with its transpose: [rows, k] to [rows, n].
template <class Kind>
class Product {
 public:
  using T = typename Kind::Storage;

  Product(const LaunchContext& ctx, const RecurrentPlan& p, bool transposed, int64_t most_rows) {
    const int64_t wide = gates_of(p.kind) * p.hidden, h = p.hidden;
    plan_.dtype = p.dtype;
    plan_.batch[0] = plan_.batch[1] = 1;
    plan_.m = most_rows;
    plan_.n = transposed ? wide : h, plan_.k = transposed ? h : wide;
    plan_.b = {const_cast<void*>(p.weight), transposed ? 1 : h, transposed ? h : 1, {0, 0}};
    plan_.c = {nullptr, plan_.n, 1, {0, 0}};
    plan_.bias = transposed ? p.bias : nullptr;
    const Part<Kind> whole(plan_, matrices<T>(plan_, 0), 0, 0);
    packed_ = gemm_pack_shared<Kind>(ctx, whole, whole.blocking(most_rows, plan_.n, false));
  }
  size_t scratch_bytes() const { return GemmBlocking<Kind>::align(size(plan_).bytes()); }

  // c = a b, or c + a b.
  void run(const T* a, T* c, int64_t rows, bool add, char* scratch) const {
    MatmulPlan p = plan_;
    p.m = rows;
    p.a = {const_cast<T*>(a), p.k, 1, {0, 0}};
    p.c.data = c;
    p.beta = add;
    const Part<Kind> part(p, matrices<T>(p, 0), 0, 0);
    gemm_with_shared<Kind>(size(p), part.pack_a(), packed_, part.out, scratch);
  }

 private:
  static GemmSharedSize<Kind> size(const MatmulPlan& p) {
    return {p.m, p.n, Part<Kind>(p, matrices<T>(p, 0), 0, 0).blocking(p.m, p.n, false)};
  }
  MatmulPlan plan_{};
  const typename Kind::Elem* packed_;
};

// f(first sequence, sequences, number of the task) for all tasks.
template <class F>
WT_FN void for_tasks(int64_t batch, int64_t rows, F&& f) {
  cpu::parallel_for(gemm_ceil(batch, rows), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) f(t * rows, batch - t * rows < rows ? batch - t * rows : rows, t);
  });
}

// Sequences of a task: two tasks at least, where each has enough to do.
WT_INLINE int64_t rows_of_task(int64_t batch) {
  int64_t tasks = gemm_ceil(batch, kTaskRows);
  if (batch >= 8) tasks += tasks % 2;
  return gemm_ceil(batch, tasks > 0 ? tasks : 1);
}

// f(step, first row of the step, sequences of the task in it) in the order of time or against it.
template <class F>
WT_FN void for_steps(const RecurrentPlan& p, bool backwards, int64_t begin, int64_t count, F&& f) {
  for (int64_t i = 0; i < p.steps; ++i) {
    const int64_t t = backwards ? p.steps - 1 - i : i;
    const int64_t left = p.first[t + 1] - p.first[t] - begin;
    if (left <= 0) continue;
    f(t, p.first[t], left < count ? left : count);
    cpu::poll_interrupt();
  }
}

// ---- forward -------------------------------------------------------------------------------------------

// Row pointers of one sequence in one step; p: the projection of h.
template <class T>
struct Cell {
  T *gates, *cells, *out, *h, *c;
  const T* p;
};

template <class T>
void lstm_forward(const Cell<T>& x, int64_t n) {
  for_vectors<T>(n, [&](int64_t k, auto lanes) {
    auto both = [&](int64_t gate) {
      return load(x.gates + gate * n + k, lanes) + load(x.p + gate * n + k, lanes);
    };
    const Vec<T> i = sigmoid(both(0)), f = sigmoid(both(1)), g = tanh(both(2)), o = sigmoid(both(3));
    const Vec<T> c = fma(f, load(x.c + k, lanes), i * g), h = o * tanh(c);
    store(x.gates + k, i, lanes), store(x.gates + n + k, f, lanes);
    store(x.gates + 2 * n + k, g, lanes), store(x.gates + 3 * n + k, o, lanes);
    store(x.cells + k, c, lanes), store(x.c + k, c, lanes);
    store(x.out + k, h, lanes), store(x.h + k, h, lanes);
  });
}

template <class T>
void gru_forward(const Cell<T>& x, int64_t n) {
  for_vectors<T>(n, [&](int64_t k, auto lanes) {
    const Vec<T> hidden = load(x.p + 2 * n + k, lanes);
    const Vec<T> r = sigmoid(load(x.gates + k, lanes) + load(x.p + k, lanes));
    const Vec<T> z = sigmoid(load(x.gates + n + k, lanes) + load(x.p + n + k, lanes));
    const Vec<T> fresh = tanh(fma(r, hidden, load(x.gates + 2 * n + k, lanes)));
    const Vec<T> h = fma(z, load(x.h + k, lanes) - fresh, fresh);
    store(x.gates + k, r, lanes), store(x.gates + n + k, z, lanes), store(x.gates + 2 * n + k, fresh, lanes);
    store(x.cells + k, hidden, lanes);
    store(x.out + k, h, lanes), store(x.h + k, h, lanes);
  });
}

template <class T>
void plain_forward(const Cell<T>& x, int64_t n, bool relu) {
  for_vectors<T>(n, [&](int64_t k, auto lanes) {
    const Vec<T> z = load(x.gates + k, lanes) + load(x.p + k, lanes);
    const Vec<T> h = relu ? maximum(z, Vec<T>(0)) : tanh(z);
    store(x.out + k, h, lanes), store(x.h + k, h, lanes);
  });
}

template <class Kind>
void forward_of(const LaunchContext& ctx, const RecurrentPlan& p, const RecurrentTensors& all) {
  using T = typename Kind::Storage;
  const int64_t n = p.hidden, wide = gates_of(p.kind) * n, rows = rows_of_task(p.batch);
  const Product<Kind> product(ctx, p, true, rows);
  const size_t own = GemmBlocking<Kind>::align(sizeof(T) * rows * wide),
               bytes = own + product.scratch_bytes();
  char* scratch = static_cast<char*>(ctx.scratch(bytes * gemm_ceil(p.batch, rows)));
  auto at = [](void* base, int64_t i) { return base ? static_cast<T*>(base) + i : nullptr; };
  for_tasks(p.batch, rows, [&](int64_t begin, int64_t count, int64_t task) {
    T* projected = reinterpret_cast<T*>(scratch + bytes * task);
    for_steps(p, p.reverse, begin, count, [&](int64_t, int64_t first, int64_t active) {
      product.run(at(all.h, begin * n), projected, active, false, reinterpret_cast<char*>(projected) + own);
      for (int64_t b = begin; b < begin + active; ++b) {
        const int64_t row = first + b;
        const Cell<T> x{at(all.gates, row * wide), at(all.cells, row * n), at(all.out, row * n),
                        at(all.h, b * n),          at(all.c, b * n),       projected + (b - begin) * wide};
        if (p.kind == Recurrence::Lstm)
          lstm_forward(x, n);
        else if (p.kind == Recurrence::Gru)
          gru_forward(x, n);
        else
          plain_forward(x, n, p.kind == Recurrence::Relu);
      }
    });
  });
}

// ---- backward ------------------------------------------------------------------------------------------

// Row pointers of one sequence in one step; h0 and c0: the states before it; d_out may be null.
template <class T>
struct CellBack {
  const T *gates, *cells, *out, *h0, *c0, *d_out;
  T *d_h, *d_c, *d_input, *d_hidden;
};

template <class T, class L>
WT_FN Vec<T> d_state(const CellBack<T>& x, int64_t k, L lanes) {
  const Vec<T> d = load(x.d_h + k, lanes);
  return x.d_out ? d + load(x.d_out + k, lanes) : d;
}

// s (1 - s), the derivative of the sigmoid whose value is s.
template <class V>
WT_FN V slope(V s) {
  return s - s * s;
}

template <class T>
void lstm_backward(const CellBack<T>& x, int64_t n) {
  for_vectors<T>(n, [&](int64_t k, auto lanes) {
    auto gate = [&](int64_t i) { return load(x.gates + i * n + k, lanes); };
    const Vec<T> i = gate(0), f = gate(1), g = gate(2), o = gate(3), one(T(1));
    const Vec<T> d_h = d_state(x, k, lanes), c = tanh(load(x.cells + k, lanes));
    const Vec<T> d_c = fma(d_h * o, one - c * c, load(x.d_c + k, lanes));
    store(x.d_input + k, d_c * g * slope(i), lanes);
    store(x.d_input + n + k, d_c * load(x.c0 + k, lanes) * slope(f), lanes);
    store(x.d_input + 2 * n + k, d_c * i * (one - g * g), lanes);
    store(x.d_input + 3 * n + k, d_h * c * slope(o), lanes);
    store(x.d_c + k, d_c * f, lanes);
  });
}

// Leaves in d_h what reaches the state before without the weight.
template <class T>
void gru_backward(const CellBack<T>& x, int64_t n) {
  for_vectors<T>(n, [&](int64_t k, auto lanes) {
    const Vec<T> r = load(x.gates + k, lanes), z = load(x.gates + n + k, lanes), one(T(1));
    const Vec<T> fresh = load(x.gates + 2 * n + k, lanes), d_h = d_state(x, k, lanes);
    const Vec<T> d_fresh = d_h * (one - z) * (one - fresh * fresh);
    const Vec<T> d_r = d_fresh * load(x.cells + k, lanes) * slope(r);
    const Vec<T> d_z = d_h * (load(x.h0 + k, lanes) - fresh) * slope(z);
    store(x.d_input + k, d_r, lanes), store(x.d_hidden + k, d_r, lanes);
    store(x.d_input + n + k, d_z, lanes), store(x.d_hidden + n + k, d_z, lanes);
    store(x.d_input + 2 * n + k, d_fresh, lanes), store(x.d_hidden + 2 * n + k, d_fresh * r, lanes);
    store(x.d_h + k, d_h * z, lanes);
  });
}

template <class T>
void plain_backward(const CellBack<T>& x, int64_t n, bool relu) {
  for_vectors<T>(n, [&](int64_t k, auto lanes) {
    const Vec<T> h = load(x.out + k, lanes), d = d_state(x, k, lanes), zero(T(0));
    store(x.d_input + k, relu ? select(h > zero, d, zero) : d * (Vec<T>(T(1)) - h * h), lanes);
  });
}

template <class Kind>
void backward_of(const LaunchContext& ctx, const RecurrentPlan& p, const RecurrentGradients& all) {
  using T = typename Kind::Storage;
  const int64_t n = p.hidden, wide = gates_of(p.kind) * n, rows = rows_of_task(p.batch);
  const Product<Kind> product(ctx, p, false, rows);
  const size_t bytes = product.scratch_bytes();
  char* scratch = static_cast<char*>(ctx.scratch(bytes * gemm_ceil(p.batch, rows)));
  auto of = [](const void* base, int64_t i) { return base ? static_cast<const T*>(base) + i : nullptr; };
  auto at = [](void* base, int64_t i) { return base ? static_cast<T*>(base) + i : nullptr; };
  for_tasks(p.batch, rows, [&](int64_t begin, int64_t count, int64_t task) {
    for_steps(p, !p.reverse, begin, count, [&](int64_t t, int64_t first, int64_t active) {
      const int64_t before = p.reverse ? t + 1 : t - 1;
      const bool any = before >= 0 && before < p.steps;
      const int64_t old = any ? p.first[before] : 0, olds = any ? p.first[before + 1] - old : 0;
      for (int64_t b = begin; b < begin + active; ++b) {
        const int64_t row = first + b;
        const T* h0 = b < olds ? of(all.out, (old + b) * n) : of(all.h0, b * n);
        const T* c0 = b < olds ? of(all.cells, (old + b) * n) : of(all.c0, b * n);
        __builtin_memcpy(at(all.previous, row * n), h0, sizeof(T) * static_cast<size_t>(n));
        const CellBack<T> x{of(all.gates, row * wide),
                            of(all.cells, row * n),
                            of(all.out, row * n),
                            h0,
                            c0,
                            of(all.d_out, row * n),
                            at(all.d_h, b * n),
                            at(all.d_c, b * n),
                            at(all.d_input, row * wide),
                            at(all.d_hidden, row * wide)};
        if (p.kind == Recurrence::Lstm)
          lstm_backward(x, n);
        else if (p.kind == Recurrence::Gru)
          gru_backward(x, n);
        else
          plain_backward(x, n, p.kind == Recurrence::Relu);
      }
      product.run(of(all.d_hidden, (first + begin) * wide), at(all.d_h, begin * n), active,
                  p.kind == Recurrence::Gru, scratch + bytes * task);
    });
  });
}

void forward(const LaunchContext& ctx, const RecurrentPlan& p, const RecurrentTensors& t) {
  p.dtype == DType::Float64 ? forward_of<GemmF64>(ctx, p, t) : forward_of<GemmF32>(ctx, p, t);
}

void backward(const LaunchContext& ctx, const RecurrentPlan& p, const RecurrentGradients& g) {
  p.dtype == DType::Float64 ? backward_of<GemmF64>(ctx, p, g) : backward_of<GemmF32>(ctx, p, g);
}

}  // namespace

WT_KERNEL(recurrent, forward);
WT_KERNEL(recurrent_backward, backward);

}  // namespace warptape::kernels::WARPTAPE_ISA
