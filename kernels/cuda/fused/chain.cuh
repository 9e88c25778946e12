// A chain's kernel, but for its steps, which chain_source.cpp writes as a struct:
//   struct Chain {
//     template <int W> struct Values { Packed<T, W> v0; .. };     // one for each input in memory
//     template <int W> static void read(args, offsets, values&);   // of a group of W elements
//     template <int W> static void write(args, offsets, values&);  // runs the steps, stores the outputs
//   };
// NVRTC compiles it for the device, with this file's text and that of what it includes from the library.
#pragma once

#include "kernels/cuda/common/index.cuh"
#include "kernels/cuda/elementwise/formula.cuh"

namespace warptape::kernels::cuda {

inline constexpr int kChainThreads = 256;
inline constexpr int kFewChainOperands = 8, kMostChainOperands = 36;

// Of N operands (inputs, then outputs) over D dims, whose sizes count groups of elements. Groups lie along
// the last dim, their elements next to each other or the same.
template <int N, int D>
struct ChainArgs {
  FastDivide sizes[D];
  int64_t strides[D][N];  // in bytes
  uint64_t at[N];         // an address, or the bytes of a number
  int64_t groups;
  bool wide;  // groups need 64-bit division
};

// Where each operand has group i.
template <int N, int D>
WT_DEVICE Offsets<N> locate(const ChainArgs<N, D>& a, int64_t i) {
  Offsets<N> r{};
#pragma unroll
  for (int d = D - 1; d >= 0; --d) {
    const auto& size = a.sizes[d];
    const int64_t q = d == 0   ? 0
                      : a.wide ? size.template quotient<true>(i)
                               : size.template quotient<false>(i);
    const int64_t at = i - q * size.divisor;
    i = q;
#pragma unroll
    for (int k = 0; k < N; ++k) r.of[k] += at * a.strides[d][k];
  }
  return r;
}

template <class T, int N, int D>
WT_DEVICE T number(const ChainArgs<N, D>& a, int k) {
  T value;
  memcpy(&value, &a.at[k], sizeof value);
  return value;
}

template <bool kPacked, int W, class T, int N, int D>
WT_DEVICE void read_group(const ChainArgs<N, D>& a, const Offsets<N>& offsets, int k, Packed<T, W>& to) {
  const T* from = reinterpret_cast<const T*>(a.at[k] + uint64_t(offsets.of[k]));
  if constexpr (kPacked && W > 1) {
    to = load_packed<W>(from);
  } else {
    const T one = *from;
#pragma unroll
    for (int j = 0; j < W; ++j) to[j] = one;
  }
}
template <int W, class T, int N, int D>
WT_DEVICE void write_group(const ChainArgs<N, D>& a, const Offsets<N>& offsets, int k,
                           const Packed<T, W>& values) {
  store_packed(reinterpret_cast<T*>(a.at[k] + uint64_t(offsets.of[k])), values);
}

// What the op's own kernel computes, rounded as it is stored.
template <class F, class C, class R, class... A>
WT_DEVICE R step(A... a) {
  const C x[] = {widen<C>(a)...};
  const auto result = apply<F, C>(x, F::kMaskFirst && x[0] != C(0));
  if constexpr (kPredicate<F, C>)
    return narrow<R>(int64_t(result));
  else
    return narrow<R>(result);
}

// As slot "copy": by a type that holds every value of T.
template <class R, class T>
WT_DEVICE R cast(T x) {
  if constexpr (std::is_same_v<R, T>)
    return x;
  else if constexpr (std::is_same_v<T, double>)
    return narrow<R>(x);
  else if constexpr (is_floating(dtype_of<T>))
    return narrow<R>(widen<float>(x));
  else
    return narrow<R>(widen<int64_t>(x));
}

// A thread has `Loads` groups in flight. An output may be an input's memory: a group is read before it is
// written.
template <class Chain, int Loads, int W, int N, int D>
WT_DEVICE void run_chain(const ChainArgs<N, D>& a) {
  const int64_t first = int64_t(blockIdx.x) * (kChainThreads * Loads) + threadIdx.x;
  typename Chain::template Values<W> values[Loads];
  Offsets<N> offsets[Loads];
#pragma unroll
  for (int u = 0; u < Loads; ++u) {
    if (first + u * kChainThreads >= a.groups) break;
    offsets[u] = locate(a, first + u * kChainThreads);
    Chain::template read<W>(a, offsets[u], values[u]);
  }
#pragma unroll
  for (int u = 0; u < Loads; ++u) {
    if (first + u * kChainThreads >= a.groups) break;
    Chain::template write<W>(a, offsets[u], values[u]);
  }
}

}  // namespace warptape::kernels::cuda
