#include "kernels/cuda/index/index_keys.cuh"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct KeyArgs {
  IndexMap<1, kManyDims> map;  // over the positions: offsets in the index
  const int64_t* index;
  int64_t size, step;  // of the indexed dim; what one adds to a key
  int64_t first, n;
  bool adds;  // to the keys of the dims before
  int64_t* keys;
  uint32_t* positions;
  FaultSink sink;
};

__global__ void __launch_bounds__(kThreads) keys_kernel(const __grid_constant__ KeyArgs a) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.n) return;
  const int64_t found = a.index[a.map(a.first + i).of[0]];
  const int64_t at = found < 0 ? found + a.size : found;
  const int64_t before = a.adds ? a.keys[i] : 0;
  const bool valid = at >= 0 && at < a.size;
  if (!valid) a.sink.report(found, a.size);
  a.keys[i] = valid && before >= 0 ? before + at * a.step : -1;
  if (a.positions) a.positions[i] = uint32_t(i);
}

}  // namespace

void IndexKeys::write(const LaunchContext& ctx, const char* op, int64_t* keys, uint32_t* positions,
                      int64_t first, int64_t n) const {
  for (int k = 0; k < count; ++k) {
    KeyArgs a{};
    make_index_map(a.map, {&indices[k]});
    a.map.wide = first + n > INT32_MAX;
    a.index = indices[k].as<const int64_t>();
    a.size = x.sizes[k];
    a.step = x.sizes[k] > 1 ? x.strides[k] / unit : 0;
    a.first = first;
    a.n = n;
    a.adds = k > 0;
    a.keys = keys;
    a.positions = k == 0 ? positions : nullptr;
    a.sink = fault_sink(ctx, op);
    launch(ctx, op, keys_kernel, dim3(unsigned(ceil_div(n, kThreads))), dim3(kThreads), 0, a);
  }
}

}  // namespace warptape::kernels::cuda
