// Elements kept or moved by their position: tril, triu, flip.
#include "kernels/cuda/common/index.cuh"
#include "kernels/cuda/common/memory.cuh"
#include "kernels/index/index.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;
dim3 blocks_for(int64_t n) { return dim3(unsigned(ceil_div(n, int64_t(kThreads) * kEach))); }

struct ArrangeArgs {
  IndexMap<1, kManyDims> map;
  const void* x;
  void* out;
  int64_t n;
  // Of a triangle.
  FastDivide rows, cols;
  int64_t diagonal;
  bool wide;

  // Which triangle element i lies in: its column minus its row.
  template <bool Wide>
  WT_DEVICE int64_t across(int64_t i) const {
    const int64_t row = cols.quotient<Wide>(i), matrix = rows.quotient<Wide>(row);
    return (i - row * cols.divisor) - (row - matrix * rows.divisor);
  }
};

enum class Keep { All, Lower, Upper };

template <class U, Keep Kept>
__global__ void __launch_bounds__(kThreads) arrange_kernel(const __grid_constant__ ArrangeArgs a) {
  const int64_t first = int64_t(blockIdx.x) * (kThreads * kEach) + threadIdx.x;
  U values[kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const int64_t i = first + u * kThreads;
    values[u] = U(0);
    if (i >= a.n) continue;
    bool kept = true;
    if constexpr (Kept != Keep::All) {
      const int64_t across = a.wide ? a.across<true>(i) : a.across<false>(i);
      kept = Kept == Keep::Lower ? across <= a.diagonal : across >= a.diagonal;
    }
    if (kept) values[u] = static_cast<const U*>(a.x)[a.map(i).of[0]];
  }
#pragma unroll
  for (int u = 0; u < kEach; ++u)
    if (first + u * kThreads < a.n) static_cast<U*>(a.out)[first + u * kThreads] = values[u];
}

template <Keep Kept>
void run_arrange(const LaunchContext& ctx, const char* op, ArrangeArgs a, const View& out, const void* x) {
  a.x = x;
  a.out = out.data;
  a.n = out.numel();
  if (a.n == 0) return;
  a.wide = a.n > INT32_MAX;
  dispatch_size(MoveTypes{}, itemsize(out.dtype), [&](auto t) {
    launch(ctx, op, arrange_kernel<typename decltype(t)::type, Kept>, blocks_for(a.n), dim3(kThreads), 0, a);
  });
}

template <Keep Kept>
void triangle(const LaunchContext& ctx, const View& out, const View& x, int64_t diagonal) {
  ArrangeArgs a{};
  make_index_map(a.map, {&x});
  a.rows = FastDivide(x.sizes[x.ndim - 2]);
  a.cols = FastDivide(x.sizes[x.ndim - 1]);
  a.diagonal = diagonal;
  run_arrange<Kept>(ctx, Kept == Keep::Lower ? "tril" : "triu", a, out, x.data);
}

void flip(const LaunchContext& ctx, const View& out, const View& x, uint32_t dims) {
  ArrangeArgs a{};
  int64_t strides[kMaxDims], start = 0;
  for (int d = 0; d < x.ndim; ++d) {
    const bool mirrored = dims >> d & 1;
    strides[d] = mirrored ? -x.strides[d] : x.strides[d];
    if (mirrored && x.sizes[d] > 0) start += (x.sizes[d] - 1) * x.strides[d];
  }
  View mirror = x;
  mirror.strides = strides;
  make_index_map(a.map, {&mirror});
  run_arrange<Keep::All>(ctx, "flip", a, out, x.as<const char>() + start * int64_t(itemsize(x.dtype)));
}

}  // namespace

WT_KERNEL(tril, triangle<Keep::Lower>);
WT_KERNEL(triu, triangle<Keep::Upper>);
WT_KERNEL(flip, flip);

}  // namespace warptape::kernels::cuda
