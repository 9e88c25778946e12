// Reductions within a warp and a block. The order of the sums depends on the sizes alone.
#pragma once

#include "kernels/cuda/common/math.cuh"

namespace warptape::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

struct SumOf {
  template <class V>
  WT_DEVICE V operator()(V a, V b) const {
    return a + b;
  }
};
struct MaximumOf {
  template <class V>
  WT_DEVICE V operator()(V a, V b) const {
    return maximum(a, b);
  }
};
struct MinimumOf {
  template <class V>
  WT_DEVICE V operator()(V a, V b) const {
    return minimum(a, b);
  }
};

// f of x[0], ..., x[N - 1] joined as a tree.
template <int N, class V, class F, class Join>
WT_DEVICE auto fold_tree(const V* x, F f, Join join) {
  if constexpr (N == 1)
    return f(x[0]);
  else
    return join(fold_tree<N / 2>(x, f, join), fold_tree<N - N / 2>(x + N / 2, f, join));
}

// Every lane gets the result. All 32 lanes must call.
template <class V, class Op>
WT_DEVICE V warp_reduce(V value, Op op) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value = op(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

// Every thread gets the result. blockDim.x is a multiple of 32 (y and z are 1) and all threads call; `shared`
// has room for one value a warp. May be called again at once.
template <class V, class Op>
WT_DEVICE V block_reduce(V value, V identity, Op op, V* shared) {
  value = warp_reduce(value, op);
  const int warps = blockDim.x / kWarp;
  if (warps == 1) return value;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  __syncthreads();  // the last call's reads are over
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  return warp_reduce(lane < warps ? shared[lane] : identity, op);
}

}  // namespace warptape::kernels::cuda
