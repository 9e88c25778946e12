// The emulator's sort of kernels/cuda/index/order.cuh: a kernel of one thread that calls the standard
// library.
#include <algorithm>
#include <vector>

#include "kernels/cuda/index/order.cuh"

namespace warptape::kernels::cuda {
namespace {

__global__ void sort_kernel(Sorted pairs, int64_t n, uint64_t mask) {
  std::vector<std::pair<uint64_t, uint32_t>> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = {pairs.keys[i], pairs.positions[i]};
  std::stable_sort(values.begin(), values.end(),
                   [&](const auto& a, const auto& b) { return (a.first & mask) < (b.first & mask); });
  for (int64_t i = 0; i < n; ++i) {
    pairs.keys[i] = values[static_cast<size_t>(i)].first;
    pairs.positions[i] = values[static_cast<size_t>(i)].second;
  }
}

}  // namespace

Sorted sort_pairs(const LaunchContext& ctx, const char* op, const Sorted& pairs, int64_t n, int bits) {
  const uint64_t mask = bits < 64 ? (uint64_t{1} << bits) - 1 : ~uint64_t{0};
  launch(ctx, op, sort_kernel, dim3(1), dim3(1), 0, pairs, n, mask);
  return pairs;
}

}  // namespace warptape::kernels::cuda
