// Optimizer steps, norms and arithmetic over lists of tensors. A launch carries a table of tensors in its
// arguments; every block takes one chunk of one of them.
#include "kernels/optim/multi_tensor.h"

#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/memory.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kChunk = 8192;  // elements: two accesses of 16 bytes a thread at least, of each operand

// Up to kMost tensors of one launch; arguments have 4 KB in all.
template <class Entry, int kMost>
struct Table {
  static constexpr int kCapacity = kMost;
  int32_t count = 0;
  int32_t first[kMost + 1] = {};  // chunk at which an entry starts
  Entry entries[kMost] = {};
};

// What block blockIdx.x works on.
struct Span {
  int entry;
  int64_t chunk, begin, end;  // chunk and elements within the entry
};
template <class Entry, int kMost>
WT_DEVICE Span find_span(const Table<Entry, kMost>& table) {
  const int32_t block = int32_t(blockIdx.x);
  int low = 0, high = table.count;  // the last entry with first[entry] <= block
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.first[middle] <= block ? low : high) = middle;
  }
  const int64_t chunk = block - table.first[low];
  return {low, chunk, chunk * kChunk, min(table.entries[low].numel, (chunk + 1) * kChunk)};
}

template <int N>
using Count = std::integral_constant<int, N>;

// Calls f(i, Count<W>, Count<Loads>) for accesses of W elements at i, i + kThreads * W, ..., Loads of them,
// whose loads may all be in flight; then with one access, and with single elements, for what is left over.
template <class T, int Loads = 1, class F>
WT_DEVICE void for_elements(const Span& s, bool aligned, F&& f) {
  constexpr int W = kPackedWidth<T>, kStep = kThreads * W;
  const int64_t whole = aligned ? s.end - (s.end - s.begin) % W : s.begin;
  int64_t i = s.begin + threadIdx.x * W;
  if constexpr (Loads > 1)
    for (; i + (Loads - 1) * kStep < whole; i += Loads * kStep) f(i, Count<W>{}, Count<Loads>{});
  for (; i < whole; i += kStep) f(i, Count<W>{}, Count<1>{});
#pragma unroll 1  // few are left
  for (i = whole + threadIdx.x; i < s.end; i += kThreads) f(i, Count<1>{}, Count<1>{});
}
template <int W, int Loads, class T>
WT_DEVICE void load_all(Packed<T, W> (&x)[Loads], const T* from) {
#pragma unroll
  for (int u = 0; u < Loads; ++u) x[u] = load_packed<W>(from + u * (kThreads * W));
}

// Cuts the items of dtype T into tables and calls run(table, blocks) for each. make(item, index) gives the
// entry.
template <class T, class TableType, class Item, class Make, class Run>
void for_tables(const Item* items, int64_t count, Make&& make, Run&& run) {
  TableType table;
  auto flush = [&] {
    if (table.count) run(static_cast<const TableType&>(table), unsigned(table.first[table.count]));
    table.count = 0;
  };
  for (int64_t i = 0; i < count; ++i) {
    if (items[i].dtype != dtype_of<T> || items[i].numel == 0) continue;
    const int64_t chunks = ceil_div(items[i].numel, kChunk);
    if (table.count == TableType::kCapacity || table.first[table.count] + chunks > INT32_MAX) flush();
    table.entries[table.count] = make(items[i], i);
    table.first[table.count + 1] = int32_t(table.first[table.count] + chunks);
    ++table.count;
  }
  flush();
}

template <class... P>
bool all_aligned(const P*... pointers) {
  return (is_aligned(pointers, 16) && ...);  // null is aligned
}

// Runs f(i, Count<W>, Tag<S>) over a span of an entry: S is the type of its states, float with a master.
template <class T, class Entry, class F>
WT_DEVICE void for_steps(const Span& span, const Entry& e, F&& f) {
  if constexpr (sizeof(T) < sizeof(float))
    if (e.master)
      return for_elements<float>(span, e.aligned,
                                 [&](int64_t i, auto width, auto) { f(i, width, Tag<float>{}); });
  for_elements<T>(span, e.aligned, [&](int64_t i, auto width, auto) { f(i, width, Tag<T>{}); });
}
// The values that a step starts from.
template <class S, int W, class T>
WT_DEVICE Packed<S, W> load_weights(const T* param, const float* master) {
  if constexpr (std::is_same_v<T, S>)
    return load_packed<W>(param);
  else
    return load_packed<W>(master);
}
// Where they go: w, and what it is rounded to.
template <class S, int W, class T>
WT_DEVICE void store_weights(T* param, float* master, const Packed<S, W>& w) {
  if constexpr (std::is_same_v<T, S>) {
    store_packed(param, w);
  } else {
    Packed<T, W> rounded;
#pragma unroll
    for (int k = 0; k < W; ++k) rounded[k] = narrow<T>(w[k]);
    store_packed(master, w);
    store_packed(param, rounded);
  }
}

// ---- Adam and AdamW ("Decoupled Weight Decay Regularization", algorithm 2) ----

struct AdamEntry {
  void *param, *grad, *exp_avg, *exp_avg_sq, *max_exp_avg_sq;
  const float* step;
  float* master;
  int64_t numel;
  bool aligned;
};
using AdamTable = Table<AdamEntry, 44>;

// The numbers of one tensor's step, the same for all of its elements: worked out in double, then as elements
// are computed in, once and not for each of them.
template <class C>
struct AdamNumbers {
  C decay, root2, step_size, inverse_scale, beta1, rest1, beta2, rest2, weight_decay, eps;
};
template <class C>
WT_DEVICE AdamNumbers<C> adam_numbers(const AdamEntry& e, const AdamPlan& p) {
  const double lr = p.lr_tensor ? double(*p.lr_tensor) : p.lr, step = *e.step;
  return {C(p.decoupled ? 1 - lr * p.weight_decay : 1.0),
          C(1 / sqrt(1 - pow(p.beta2, step))),
          C(lr / (1 - pow(p.beta1, step))),
          C(p.grad_scale ? 1 / double(*p.grad_scale) : 1.0),
          C(p.beta1),
          C(1 - p.beta1),
          C(p.beta2),
          C(1 - p.beta2),
          C(p.weight_decay),
          C(p.eps)};
}

template <class T, class S, int W>
WT_DEVICE void adam_elements(const AdamEntry& e, const AdamPlan& p, const AdamNumbers<Compute<T>>& n,
                             int64_t i) {
  using C = Compute<T>;
  T *param = static_cast<T*>(e.param) + i, *grad = static_cast<T*>(e.grad) + i;
  S *avg = static_cast<S*>(e.exp_avg) + i, *square = static_cast<S*>(e.exp_avg_sq) + i;
  S* highest = static_cast<S*>(e.max_exp_avg_sq) + i;
  auto g = load_packed<W>(grad);
  auto w = load_weights<S, W>(param, e.master + i), m = load_packed<W>(avg), v = load_packed<W>(square);
  Packed<S, W> top;
  if (e.max_exp_avg_sq) top = load_packed<W>(highest);
  const bool couples = !p.decoupled && p.weight_decay != 0;
#pragma unroll
  for (int k = 0; k < W; ++k) {
    C gk = widen<C>(g[k]), wk = widen<C>(w[k]);
    if (p.grad_scale) {
      gk *= n.inverse_scale;
      g[k] = narrow<T>(gk);
    }
    if (p.maximize) gk = -gk;
    if (couples) gk = fma(wk, n.weight_decay, gk);
    wk *= n.decay;
    const C mk = fma(widen<C>(m[k]), n.beta1, gk * n.rest1);
    C vk = fma(widen<C>(v[k]), n.beta2, gk * gk * n.rest2);
    m[k] = narrow<S>(mk);
    v[k] = narrow<S>(vk);
    if (e.max_exp_avg_sq) {
      vk = maximum(widen<C>(top[k]), vk);
      top[k] = narrow<S>(vk);
    }
    w[k] = narrow<S>(wk - n.step_size * mk / fma(sqrt(vk), n.root2, n.eps));
  }
  if (p.grad_scale) store_packed(grad, g);
  store_packed(avg, m);
  store_packed(square, v);
  if (e.max_exp_avg_sq) store_packed(highest, top);
  store_weights<S, W>(param, e.master + i, w);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    adam_kernel(const __grid_constant__ AdamTable table, const __grid_constant__ AdamPlan p) {
  if (p.found_inf && *p.found_inf != 0) return;
  const Span span = find_span(table);
  const AdamEntry& e = table.entries[span.entry];
  using C = Compute<T>;
  __shared__ AdamNumbers<C> shared[1];  // two powers in double are too dear for every thread
  if (threadIdx.x == 0) shared[0] = adam_numbers<C>(e, p);
  __syncthreads();
  const AdamNumbers<C> numbers = shared[0];
  for_steps<T>(span, e, [&](int64_t i, auto width, auto state) {
    adam_elements<T, typename decltype(state)::type, decltype(width)::value>(e, p, numbers, i);
  });
}

void fused_adam(const LaunchContext& ctx, const AdamItem* items, int64_t count, const AdamPlan& plan) {
  auto run = [&](auto t) {
    using T = typename decltype(t)::type;
    for_tables<T, AdamTable>(
        items, count,
        [](const AdamItem& x, int64_t) {
          const bool aligned =
              all_aligned(x.param, x.grad, x.exp_avg, x.exp_avg_sq, x.max_exp_avg_sq, x.master);
          return AdamEntry{x.param, x.grad,   x.exp_avg, x.exp_avg_sq, x.max_exp_avg_sq,
                           x.step,  x.master, x.numel,   aligned};
        },
        [&](const AdamTable& table, unsigned blocks) {
          launch(ctx, "fused_adam", adam_kernel<T>, dim3(blocks), dim3(kThreads), 0, table, plan);
        });
  };
  run(Tag<float>{}), run(Tag<double>{}), run(Tag<BFloat16>{}), run(Tag<Half>{});
}

// ---- SGD ----

struct SgdEntry {
  void *param, *grad, *buffer;
  float* master;
  int64_t numel;
  bool aligned;
};
using SgdTable = Table<SgdEntry, 64>;

template <class T, class S, int W>
WT_DEVICE void sgd_elements(const SgdEntry& e, const SgdPlan& p, double lr, double inverse_scale, int64_t i) {
  using C = Compute<T>;
  T *param = static_cast<T*>(e.param) + i, *grad = static_cast<T*>(e.grad) + i;
  S* buffer = static_cast<S*>(e.buffer) + i;
  auto g = load_packed<W>(grad);
  auto w = load_weights<S, W>(param, e.master + i);
  Packed<S, W> b;
  const bool reads = e.buffer && !p.first_step;
  if (reads) b = load_packed<W>(buffer);
  const C momentum = C(p.momentum), rest = C(1 - p.dampening), decay = C(p.weight_decay), rate = C(-lr);
#pragma unroll
  for (int k = 0; k < W; ++k) {
    C gk = widen<C>(g[k]);
    const C wk = widen<C>(w[k]);
    if (p.grad_scale) {
      gk *= C(inverse_scale);
      g[k] = narrow<T>(gk);
    }
    if (p.maximize) gk = -gk;
    if (p.weight_decay != 0) gk = fma(wk, decay, gk);
    if (e.buffer) {
      const C bk = reads ? fma(widen<C>(b[k]), momentum, gk * rest) : gk;
      b[k] = narrow<S>(bk);
      gk = p.nesterov ? fma(bk, momentum, gk) : bk;
    }
    w[k] = narrow<S>(fma(gk, rate, wk));
  }
  if (p.grad_scale) store_packed(grad, g);
  if (e.buffer) store_packed(buffer, b);
  store_weights<S, W>(param, e.master + i, w);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(const __grid_constant__ SgdTable table, const __grid_constant__ SgdPlan p) {
  if (p.found_inf && *p.found_inf != 0) return;
  const Span span = find_span(table);
  const SgdEntry& e = table.entries[span.entry];
  const double lr = p.lr_tensor ? double(*p.lr_tensor) : p.lr;
  const double inverse_scale = p.grad_scale ? 1 / double(*p.grad_scale) : 1.0;
  for_steps<T>(span, e, [&](int64_t i, auto width, auto state) {
    sgd_elements<T, typename decltype(state)::type, decltype(width)::value>(e, p, lr, inverse_scale, i);
  });
}

void fused_sgd(const LaunchContext& ctx, const SgdItem* items, int64_t count, const SgdPlan& plan) {
  auto run = [&](auto t) {
    using T = typename decltype(t)::type;
    for_tables<T, SgdTable>(
        items, count,
        [](const SgdItem& x, int64_t) {
          return SgdEntry{x.param,  x.grad,  x.momentum_buffer,
                          x.master, x.numel, all_aligned(x.param, x.grad, x.momentum_buffer, x.master)};
        },
        [&](const SgdTable& table, unsigned blocks) {
          launch(ctx, "fused_sgd", sgd_kernel<T>, dim3(blocks), dim3(kThreads), 0, table, plan);
        });
  };
  run(Tag<float>{}), run(Tag<double>{}), run(Tag<BFloat16>{}), run(Tag<Half>{});
}

// ---- lists ----

struct ListEntry {
  void* data;
  const void* other;
  int64_t numel;
  int64_t part;  // of a norm: where the parts of this tensor begin
  bool aligned;
};
using ListTable = Table<ListEntry, 72>;

// Runs kernel_of(Tag<T>) over the items of each dtype; part_of(index) is where an item's parts begin.
template <class PartOf, class KernelOf, class... A>
void run_list(const LaunchContext& ctx, const char* op, const ListItem* items, int64_t count,
              PartOf&& part_of, KernelOf&& kernel_of, const A&... args) {
  auto run = [&](auto t) {
    using T = typename decltype(t)::type;
    for_tables<T, ListTable>(
        items, count,
        [&](const ListItem& x, int64_t i) {
          return ListEntry{x.data, x.other, x.numel, part_of(i), all_aligned(x.data, x.other)};
        },
        [&](const ListTable& table, unsigned blocks) {
          launch(ctx, op, kernel_of(t), dim3(blocks), dim3(kThreads), 0, table, args...);
        });
  };
  run(Tag<float>{}), run(Tag<double>{}), run(Tag<BFloat16>{}), run(Tag<Half>{});
}
int64_t no_part(int64_t) { return 0; }

enum class Order { One, Two, Infinity };

struct NormOf {
  Order order;
  WT_DEVICE double operator()(double a, double b) const {
    return order == Order::Infinity ? maximum(a, b) : a + b;
  }
};

// Of a few values: the sum of absolutes or squares, or the largest absolute. Squares that float cannot hold
// are summed in double.
template <class C, class T, int W>
WT_DEVICE double norm_part(const Packed<T, W>& x, Order order) {
  C sum = 0;
#pragma unroll
  for (int k = 0; k < W; ++k) {
    const C v = abs(widen<C>(x[k]));
    sum = order == Order::Infinity ? maximum(sum, v) : order == Order::One ? sum + v : fma(v, v, sum);
  }
  if (std::is_same_v<C, double> || order != Order::Two || (sum > C(1e-30) && sum < C(1e38))) return sum;
  double exact = 0;
#pragma unroll
  for (int k = 0; k < W; ++k) exact = fma(double(widen<C>(x[k])), double(widen<C>(x[k])), exact);
  return exact;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    norm_kernel(const __grid_constant__ ListTable table, Order order, double* parts) {
  __shared__ double shared[kThreads / kWarp];
  const Span span = find_span(table);
  const ListEntry& e = table.entries[span.entry];
  const NormOf combine{order};
  double total = 0;
  for_elements<T, 4>(span, e.aligned, [&](int64_t i, auto width, auto loads) {
    Packed<T, decltype(width)::value> x[decltype(loads)::value];
    load_all(x, static_cast<const T*>(e.data) + i);
#pragma unroll
    for (const auto& part : x) total = combine(total, norm_part<Compute<T>>(part, order));
  });
  total = block_reduce(total, 0.0, combine, shared);
  if (threadIdx.x == 0) parts[e.part + span.chunk] = total;
}

struct PartRange {
  int64_t first, count;
};
struct PartRanges {
  PartRange ranges[128];
};

// One block a tensor: its parts become its norm.
__global__ void __launch_bounds__(kThreads)
    finish_norm_kernel(const __grid_constant__ PartRanges table, Order order, const double* parts, char* out,
                       DType dtype) {
  __shared__ double shared[kThreads / kWarp];
  const PartRange r = table.ranges[blockIdx.x];
  const NormOf combine{order};
  double total = 0;
  for (int64_t i = threadIdx.x; i < r.count; i += kThreads) total = combine(total, parts[r.first + i]);
  total = block_reduce(total, 0.0, combine, shared);
  if (threadIdx.x == 0)
    store_as<double>(out + blockIdx.x * itemsize(dtype), dtype, order == Order::Two ? sqrt(total) : total);
}

void list_norm(const LaunchContext& ctx, const View& out, const ListItem* items, int64_t count,
               double order) {
  const Order kind = order == 1 ? Order::One : order == 2 ? Order::Two : Order::Infinity;
  int64_t parts = 0;
  for (int64_t i = 0; i < count; ++i) parts += ceil_div(items[i].numel, kChunk);
  auto* values = static_cast<double*>(ctx.scratch(size_t(parts + 1) * sizeof(double)));
  // Dtypes come one after the other, so where an item's parts begin is counted beforehand.
  int64_t at = 0, seen = 0;
  auto part_of = [&](int64_t i) {
    if (i < seen) at = seen = 0;
    for (; seen < i; ++seen) at += ceil_div(items[seen].numel, kChunk);
    return at;
  };
  run_list(
      ctx, "list_norm", items, count, part_of, [](auto t) { return norm_kernel<typename decltype(t)::type>; },
      kind, values);
  int64_t first_part = 0;
  for (int64_t first = 0; first < count; first += 128) {
    const int64_t some = count - first < 128 ? count - first : 128;
    PartRanges table{};
    for (int64_t i = 0; i < some; ++i) {
      const int64_t chunks = ceil_div(items[first + i].numel, kChunk);
      table.ranges[i] = {first_part, chunks};
      first_part += chunks;
    }
    launch(ctx, "list_norm", finish_norm_kernel, dim3(unsigned(some)), dim3(kThreads), 0, table, kind, values,
           out.as<char>() + size_t(first) * itemsize(out.dtype), out.dtype);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_kernel(const __grid_constant__ ListTable table, double factor, const void* factor_at,
                 DType factor_dtype) {
  using C = Compute<T>;
  const Span span = find_span(table);
  const ListEntry& e = table.entries[span.entry];
  if (factor_at)
    factor = factor_dtype == DType::Float64 ? *static_cast<const double*>(factor_at)
                                            : double(*static_cast<const float*>(factor_at));
  T* data = static_cast<T*>(e.data);
  for_elements<T, 2>(span, e.aligned, [&](int64_t i, auto width, auto loads) {
    constexpr int W = decltype(width)::value, Loads = decltype(loads)::value;
    Packed<T, W> x[Loads];
    load_all(x, static_cast<const T*>(data) + i);
#pragma unroll
    for (int u = 0; u < Loads; ++u) {
#pragma unroll
      for (int k = 0; k < W; ++k) x[u][k] = narrow<T>(widen<C>(x[u][k]) * C(factor));
      store_packed(data + i + u * (kThreads * W), x[u]);
    }
  });
}

void list_scale(const LaunchContext& ctx, const ListItem* items, int64_t count, double factor,
                const View& factor_tensor) {
  run_list(
      ctx, "list_scale", items, count, no_part,
      [](auto t) { return scale_kernel<typename decltype(t)::type>; }, factor, factor_tensor.data,
      factor_tensor.dtype);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_kernel(const __grid_constant__ ListTable table, double alpha) {
  using C = Compute<T>;
  const Span span = find_span(table);
  const ListEntry& e = table.entries[span.entry];
  T* data = static_cast<T*>(e.data);
  const T* other = static_cast<const T*>(e.other);
  for_elements<T, 2>(span, e.aligned, [&](int64_t i, auto width, auto loads) {
    constexpr int W = decltype(width)::value, Loads = decltype(loads)::value;
    Packed<T, W> x[Loads], y[Loads];
    load_all(x, static_cast<const T*>(data) + i);
    if (other) load_all(y, other + i);
#pragma unroll
    for (int u = 0; u < Loads; ++u) {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        const C old = widen<C>(x[u][k]);
        x[u][k] = narrow<T>(other ? fma(widen<C>(y[u][k]), C(alpha), old) : old + C(alpha));
      }
      store_packed(data + i + u * (kThreads * W), x[u]);
    }
  });
}

void list_add(const LaunchContext& ctx, const ListItem* items, int64_t count, double alpha) {
  run_list(
      ctx, "list_add", items, count, no_part, [](auto t) { return add_kernel<typename decltype(t)::type>; },
      alpha);
}

}  // namespace

WT_KERNEL(fused_adam, fused_adam);
WT_KERNEL(fused_sgd, fused_sgd);
WT_KERNEL(list_norm, list_norm);
WT_KERNEL(list_scale, list_scale);
WT_KERNEL(list_add, list_add);

}  // namespace warptape::kernels::cuda
