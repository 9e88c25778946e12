// The sort of kernels/cuda/index/order.cuh, by CUB's radix sort.
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/index/order.cuh"

namespace warptape::kernels::cuda {

Sorted sort_pairs(const LaunchContext& ctx, const char* op, const Sorted& pairs, int64_t n, int bits) {
  if (n < 2) return pairs;
  const Sorted other = make_pairs(ctx, n);
  cub::DoubleBuffer<uint64_t> keys(pairs.keys, other.keys);
  cub::DoubleBuffer<uint32_t> positions(pairs.positions, other.positions);
  const auto stream = static_cast<cudaStream_t>(ctx.stream);
  use_device(ctx.device_index);
  size_t bytes = 0;
  check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, positions, n, 0, bits, stream), op);
  void* scratch = ctx.scratch(bytes + 1);  // a null pointer would ask for the size again
  check(cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, positions, n, 0, bits, stream), op);
  if (launch_blocking) finish_blocking(ctx, op);
  return {keys.Current(), positions.Current()};
}

}  // namespace warptape::kernels::cuda
