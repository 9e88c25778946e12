// Reductions within a warp and a block. The order of the sums depends on the sizes alone.
#pragma once

#include "kernels/cuda/math.cuh"

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
