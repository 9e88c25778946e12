// How an elementwise op becomes kernels on the device. `flat`: operands of one narrow floating dtype that lie
// packed, 16 bytes an access. `general`: any layout and dtype, a few elements a thread, converted as loaded.
#pragma once

#include "kernels/cuda/common/complex.cuh"
#include "kernels/cuda/common/index.cuh"
#include "kernels/cuda/elementwise/formula.cuh"
#include "kernels/elementwise/elementwise.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {

inline constexpr int kThreads = 256;
inline constexpr int kFlatLoads = 2;  // accesses of 16 bytes that a thread has in flight for each operand
// Elements of a thread in the general way: 16 bytes of what they are computed in, and four integers, which
// are mostly narrower in memory.
template <class C>
inline constexpr int kGeneralLoads = std::is_same_v<C, int64_t> ? 4
                                     : sizeof(C) < 16           ? 16 / sizeof(C)
                                                                : 1;

// One value for the whole launch: given as a number, or read from device memory.
template <class C>
struct Uniform {
  C value;
  const char* at = nullptr;
  DType dtype = DType::Float32;
  WT_DEVICE C get() const { return at ? load_as<C>(at, dtype) : value; }
};

// ---- flat ----
template <class C, int N>
struct FlatArgs {
  void* out;
  const void* in[N];
  Uniform<C> uniform[N];
  unsigned uniform_mask;
  int64_t n;
};

template <class F, class T>
__global__ void __launch_bounds__(kThreads) flat_kernel(FlatArgs<Compute<T>, F::kInputs> a) {
  using C = Compute<T>;
  constexpr int N = F::kInputs, W = kPackedWidth<T>;
  using Out = std::conditional_t<kPredicate<F, C>, bool, T>;
  constexpr bool kMask = F::kMaskFirst;
  Out* out = static_cast<Out*>(a.out);
  const int64_t block = int64_t(blockIdx.x) * (kThreads * W * kFlatLoads);
  // Of one element in place the output is what all would read.
  if (block + threadIdx.x >= a.n) return;
  C uniform[N];
#pragma unroll
  for (int k = 0; k < N; ++k) uniform[k] = a.uniform_mask >> k & 1 ? a.uniform[k].get() : C(0);
  const int64_t first = block + threadIdx.x * W;

  if (block + kThreads * W * kFlatLoads <= a.n) {
    Packed<T, W> v[N][kFlatLoads];
    Packed<Bool, W> m[kFlatLoads];
#pragma unroll
    for (int u = 0; u < kFlatLoads; ++u)
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (a.uniform_mask >> k & 1) continue;
        const int64_t i = first + u * (kThreads * W);
        if (kMask && k == 0)
          m[u] = load_packed<W>(static_cast<const Bool*>(a.in[k]) + i);
        else
          v[k][u] = load_packed<W>(static_cast<const T*>(a.in[k]) + i);
      }
#pragma unroll
    for (int u = 0; u < kFlatLoads; ++u) {
      Packed<Out, W> result;
#pragma unroll
      for (int j = 0; j < W; ++j) {
        C x[N];
#pragma unroll
        for (int k = 0; k < N; ++k)
          x[k] = a.uniform_mask >> k & 1 || (kMask && k == 0) ? uniform[k] : widen<C>(v[k][u][j]);
        const bool mask = kMask && (a.uniform_mask & 1 ? uniform[0] != C(0) : bool(m[u][j]));
        result[j] = narrow<Out>(apply<F, C>(x, mask));
      }
      store_packed(out + first + u * (kThreads * W), result);
    }
    return;
  }
  for (int64_t i = block + threadIdx.x; i < a.n; i += kThreads) {
    C x[N];
    bool mask = false;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const bool one = a.uniform_mask >> k & 1;
      if (kMask && k == 0)
        mask = one ? uniform[k] != C(0) : bool(static_cast<const Bool*>(a.in[k])[i]);
      else
        x[k] = one ? uniform[k] : widen<C>(static_cast<const T*>(a.in[k])[i]);
    }
    out[i] = narrow<Out>(apply<F, C>(x, mask));
  }
}

// ---- general ----
template <class C, int N>
struct GeneralArgs {
  IndexMap<N + 1> map;  // strides in bytes
  char* data[N + 1];
  DType dtypes[N + 1];
  C host[N];
  unsigned host_mask;
  int64_t n;
};

// `count` values of a dtype known only at run time; all loads are issued before the first is used.
template <int U, class C, int N>
WT_DEVICE void load_some(const GeneralArgs<C, N>& a, int k, int count, const Offsets<N + 1> (&places)[U],
                         C (&x)[U]) {
  dispatch(Stored<C>{}, a.dtypes[k], [&](auto t) {
    using T = typename decltype(t)::type;
    T raw[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (u < count) raw[u] = *reinterpret_cast<const T*>(a.data[k] + places[u].of[k]);
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (u < count) x[u] = widen<C>(raw[u]);
  });
}

// The inputs of `count` elements from `first` on, as many apart as a block has threads; and where all
// operands have these elements.
template <int U, class C, int N>
WT_DEVICE void load_elements(const GeneralArgs<C, N>& a, int64_t first, int count,
                             Offsets<N + 1> (&places)[U], C (&x)[N][U]) {
  int64_t linear[U];
#pragma unroll
  for (int u = 0; u < U; ++u) linear[u] = u < count ? first + u * kThreads : 0;
  a.map.locate(linear, places);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (a.host_mask >> k & 1) {
#pragma unroll
      for (int u = 0; u < U; ++u) x[k][u] = a.host[k];
    } else {
      load_some(a, k + 1, count, places, x[k]);
    }
  }
}

template <class F, class C>
__global__ void __launch_bounds__(kThreads)
    general_kernel(const __grid_constant__ GeneralArgs<C, F::kInputs> a) {
  constexpr int N = F::kInputs, U = kGeneralLoads<C>;
  using Out = std::conditional_t<kPredicate<F, C>, int64_t, C>;
  const int64_t first = int64_t(blockIdx.x) * (kThreads * U) + threadIdx.x;
  const int64_t left = a.n - first;
  const int count = left <= 0 ? 0 : int(min(int64_t(U), (left + kThreads - 1) / kThreads));
  Offsets<N + 1> places[U];
  C x[N][U];
  load_elements(a, first, count, places, x);
  Out results[U];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (u >= count) break;
    C values[N];
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = x[k][u];
    results[u] = apply<F, C>(values, F::kMaskFirst && values[0] != C(0));
  }
  dispatch(Stored<Out>{}, a.dtypes[0], [&](auto t) {
    using T = typename decltype(t)::type;
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (u < count) *reinterpret_cast<T*>(a.data[0] + places[u].of[0]) = narrow<T>(results[u]);
  });
}

// ---- launching ----
// Where `op` holds one value for all of the plan.
inline bool is_uniform(const ElementwisePlan& plan, const Operand& op) {
  if (op.host_scalar || plan.numel == 1) return true;
  for (int d = 0; d < plan.ndim; ++d)
    if (op.strides[d] != 0 && plan.sizes[d] != 1) return false;
  return true;
}

// The operands, if all that are not uniform are `dtype` and lie packed. `truth` says of which ones truth
// values are wanted, as bits.
template <class C, int N>
bool flat_args(FlatArgs<C, N>& a, const ElementwisePlan& plan, DType dtype, unsigned truth) {
  if (plan.ndim > 1) return false;
  a.n = plan.numel;
  for (int k = 0; k <= N; ++k) {
    const Operand& op = plan.operands[k];
    if (k > 0 && is_uniform(plan, op)) {
      a.uniform_mask |= 1u << (k - 1);
      if (op.host_scalar)
        a.uniform[k - 1].value = host_value<C>(op.data, op.dtype);
      else
        a.uniform[k - 1] = {C(0), op.data, op.dtype};
      continue;
    }
    const DType wanted = truth >> k & 1 ? DType::Bool : dtype;
    const auto item = static_cast<int64_t>(itemsize(wanted));
    if (op.dtype != wanted || (plan.numel > 1 && op.strides[0] != item)) return false;
    if (!is_aligned(op.data, itemsize(wanted) * 16 / itemsize(dtype))) return false;
    if (k == 0)
      a.out = op.data;
    else
      a.in[k - 1] = op.data;
  }
  return true;
}
template <class F, class T>
bool try_flat(const LaunchContext& ctx, const char* name, const ElementwisePlan& plan) {
  using C = Compute<T>;
  FlatArgs<C, F::kInputs> a{};
  if (!flat_args(a, plan, dtype_of<T>, unsigned(kPredicate<F, C>) | unsigned(F::kMaskFirst) << 1))
    return false;
  const int64_t per_block = kThreads * kPackedWidth<T> * kFlatLoads;
  launch(ctx, name, flat_kernel<F, T>, dim3(unsigned(ceil_div(a.n, per_block))), dim3(kThreads), 0, a);
  return true;
}

// Calls run(sub-plan) for parts of the plan with at most `most` dims: the outer ones are walked here.
template <class Run>
void for_inner_dims(const ElementwisePlan& plan, int most, Run&& run) {
  if (plan.ndim <= most) return run(plan);
  ElementwisePlan inner = plan;
  inner.ndim = plan.ndim - 1;
  inner.numel = plan.numel / plan.sizes[0];
  for (int d = 0; d < inner.ndim; ++d) {
    inner.sizes[d] = plan.sizes[d + 1];
    for (int k = 0; k < plan.count; ++k) inner.operands[k].strides[d] = plan.operands[k].strides[d + 1];
  }
  for (int64_t i = 0; i < plan.sizes[0]; ++i) {
    for (int k = 0; k < plan.count; ++k)
      if (!plan.operands[k].host_scalar)
        inner.operands[k].data = plan.operands[k].data + i * plan.operands[k].strides[0];
    for_inner_dims(inner, most, run);
  }
}

// Of a plan with at most kIndexDims dims.
template <class C, int N>
GeneralArgs<C, N> general_args(const ElementwisePlan& plan) {
  GeneralArgs<C, N> a{};
  a.n = plan.numel;
  a.map.set_dims(plan.ndim, plan.sizes, plan.numel);
  for (int k = 0; k <= N; ++k) {
    const Operand& op = plan.operands[k];
    a.data[k] = op.host_scalar ? nullptr : op.data;
    a.dtypes[k] = op.dtype;
    const bool fixed = k > 0 && is_uniform(plan, op);
    for (int d = 0; d < plan.ndim; ++d) a.map.strides[k][d] = fixed ? 0 : op.strides[d];
    if (!op.host_scalar) continue;
    a.host_mask |= 1u << (k - 1);
    a.host[k - 1] = host_value<C>(op.data, op.dtype);
  }
  return a;
}

template <class C, int N>
void launch_general(const LaunchContext& ctx, const char* name, void (*kernel)(GeneralArgs<C, N>),
                    const ElementwisePlan& given) {
  for_inner_dims(given, kIndexDims, [&](const ElementwisePlan& plan) {
    const auto a = general_args<C, N>(plan);
    launch(ctx, name, kernel, dim3(unsigned(ceil_div(a.n, kThreads * kGeneralLoads<C>))), dim3(kThreads), 0,
           a);
  });
}
template <class F, class C>
void run_general(const LaunchContext& ctx, const char* name, const ElementwisePlan& plan) {
  launch_general<C, F::kInputs>(ctx, name, general_kernel<F, C>, plan);
}

template <class F>
void run_formula(const LaunchContext& ctx, const char* name, const ElementwisePlan& plan) {
  if (plan.numel == 0) return;
  if constexpr ((F::kTypes & kFloats) != 0) {
    if (plan.compute == DType::Float32) {
      if (try_flat<F, float>(ctx, name, plan) || try_flat<F, BFloat16>(ctx, name, plan) ||
          try_flat<F, Half>(ctx, name, plan))
        return;
      return run_general<F, float>(ctx, name, plan);
    }
    if (plan.compute == DType::Float64) return run_general<F, double>(ctx, name, plan);
  }
  if constexpr ((F::kTypes & kComplex) != 0) {
    if (plan.compute == DType::Complex64) return run_general<F, Complex<float>>(ctx, name, plan);
    if (plan.compute == DType::Complex128) return run_general<F, Complex<double>>(ctx, name, plan);
  }
  if constexpr ((F::kTypes & kIntegers) != 0) run_general<F, int64_t>(ctx, name, plan);
}

}  // namespace warptape::kernels::cuda

#define WT_ELEMENTWISE(slot, Formula)                                     \
  void slot##_op(const LaunchContext& ctx, const ElementwisePlan& plan) { \
    run_formula<Formula>(ctx, #slot, plan);                               \
  }                                                                       \
  WT_KERNEL(slot, slot##_op)
