// Object detection: suppression of boxes, and regions pooled into bins. The tables of bins come from host
// memory and are copied to the device; results do not depend on the order of threads.
#include "kernels/extra/vision.h"

#include "kernels/cuda/common/memory.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlock = 64;  // boxes that are settled one after the other
using Reals = Types<float, double>;

dim3 blocks_for(int64_t n) { return dim3(unsigned(ceil_div(n, kThreads))); }

// ---- nms ----

template <class T>
struct Boxes {
  const T* at;  // [4, n]
  int64_t n;
  double threshold;

  // The quotient of an empty union is NaN, above nothing.
  WT_DEVICE bool overlap(int64_t i, int64_t j) const {
    const T *x1 = at, *y1 = at + n, *x2 = at + 2 * n, *y2 = at + 3 * n;
    const T w = min(x2[i], x2[j]) - max(x1[i], x1[j]), h = min(y2[i], y2[j]) - max(y1[i], y1[j]);
    const T shared = (w > T(0) ? w : T(0)) * (h > T(0) ? h : T(0));
    const T own = (x2[i] - x1[i]) * (y2[i] - y1[i]), other = (x2[j] - x1[j]) * (y2[j] - y1[j]);
    return double(shared / (own + other - shared)) > threshold;
  }
};

// Every block finds which of the boxes [begin, begin + kBlock) stay, and marks those of its part behind them
// that they suppress; the first block notes the ones that stay.
template <class T>
__global__ void __launch_bounds__(kThreads)
    nms_kernel(Boxes<T> b, int64_t begin, int64_t* kept, int64_t* count, uint8_t* dead) {
  __shared__ int gone[kBlock];
  const int thread = threadIdx.x, size = int(min(int64_t(kBlock), b.n - begin));
  if (thread < size) gone[thread] = dead[begin + thread];
  __syncthreads();
  for (int i = 0; i < size; ++i) {
    if (!gone[i] && thread > i && thread < size && b.overlap(begin + i, begin + thread)) gone[thread] = 1;
    __syncthreads();
  }
  const int64_t j = begin + kBlock + int64_t(blockIdx.x) * kThreads + thread;
  if (j < b.n && !dead[j])
    for (int i = 0; i < size; ++i)
      if (!gone[i] && b.overlap(begin + i, j)) {
        dead[j] = 1;
        break;
      }
  if (blockIdx.x || thread) return;
  int64_t c = *count;
  for (int i = 0; i < size; ++i)
    if (!gone[i]) kept[c++] = begin + i;
  *count = c;
}

int64_t nms(const LaunchContext& ctx, DType dtype, int64_t n, const void* boxes, double threshold,
            int64_t* kept, void*, uint8_t* dead) {
  const auto stream = static_cast<cudaStream_t>(ctx.stream);
  auto* count = static_cast<int64_t*>(ctx.scratch(sizeof(int64_t)));
  use_device(ctx.device_index);
  check(cudaMemsetAsync(count, 0, sizeof(int64_t), stream), "nms");
  check(cudaMemsetAsync(dead, 0, size_t(n), stream), "nms");
  dispatch(Reals{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Boxes<T> b{static_cast<const T*>(boxes), n, threshold};
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t behind = n - begin - kBlock;
      launch(ctx, "nms", nms_kernel<T>, blocks_for(behind > 0 ? behind : 1), dim3(kThreads), 0, b, begin,
             kept, count, dead);
    }
  });
  int64_t found = 0;
  check(cudaMemcpyAsync(&found, count, sizeof found, cudaMemcpyDeviceToHost, stream), "nms");
  check(cudaStreamSynchronize(stream), "nms");
  return found;
}

// ---- tables ----

// From pageable memory: the driver has taken what it needs when the call returns.
template <class T>
const T* uploaded(const LaunchContext& ctx, const T* host, int64_t n) {
  if (n == 0) return nullptr;
  auto* to = static_cast<T*>(ctx.scratch(size_t(n) * sizeof(T)));
  use_device(ctx.device_index);
  check(cudaMemcpyAsync(to, host, size_t(n) * sizeof(T), cudaMemcpyHostToDevice,
                        static_cast<cudaStream_t>(ctx.stream)),
        "roi_pool");
  return to;
}
BinTaps uploaded(const LaunchContext& ctx, const BinTaps& t, int64_t bins) {
  const int64_t n = t.first[bins];
  return {uploaded(ctx, t.first, bins + 1), uploaded(ctx, t.place, n), uploaded(ctx, t.weight, n)};
}
RoiBins uploaded(const LaunchContext& ctx, RoiBins p) {
  p.y = uploaded(ctx, p.y, p.regions * p.rows);
  p.x = uploaded(ctx, p.x, p.regions * p.columns);
  p.image = uploaded(ctx, p.image, p.regions);
  return p;
}

// ---- bins that are weighted sums ----

// The taps of bin (i, j) of region k.
struct Bin {
  int64_t y, y_end, x, x_end;
  WT_DEVICE Bin(const RoiBins& p, int64_t k, int64_t i, int64_t j)
      : y(p.y.first[k * p.rows + i]),
        y_end(p.y.first[k * p.rows + i + 1]),
        x(p.x.first[k * p.columns + j]),
        x_end(p.x.first[k * p.columns + j + 1]) {}
};

// A thread a value: the rows of a column are summed first, as on the CPU.
template <class T>
__global__ void __launch_bounds__(kThreads) roi_bins_kernel(RoiBins p, T* out, const T* maps, int64_t n) {
  const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= n) return;
  const int64_t bins = p.rows * p.columns, bin = at % bins;
  const int64_t channels = p.by_position ? p.channels / bins : p.channels;
  const int64_t k = at / bins / channels, c = at / bins % channels;
  const T* map = maps + (p.image[k] * p.channels + (p.by_position ? c * bins + bin : c)) * p.height * p.width;
  const Bin b(p, k, bin / p.columns, bin % p.columns);
  T sum = 0;
  for (int64_t x = b.x; x < b.x_end; ++x) {
    T column = 0;
    for (int64_t y = b.y; y < b.y_end; ++y)
      column += T(p.y.weight[y]) * map[p.y.place[y] * p.width + p.x.place[x]];
    sum += T(p.x.weight[x]) * column;
  }
  out[at] = sum;
}

// A block a map, which all regions of its image add to in order; the pixels of one bin are apart.
constexpr int kSpread = 64;
template <class T>
__global__ void __launch_bounds__(kSpread) roi_spread_kernel(RoiBins p, T* maps, const T* g) {
  const int64_t image = blockIdx.x / p.channels, c = blockIdx.x % p.channels;
  const int64_t area = p.height * p.width, bins = p.rows * p.columns;
  T* map = maps + int64_t(blockIdx.x) * area;
  for (int64_t i = threadIdx.x; i < area; i += kSpread) map[i] = 0;
  for (int64_t k = 0; k < p.regions; ++k) {
    if (p.image[k] != image) continue;
    const int64_t first = p.by_position ? c % bins : 0, last = p.by_position ? first + 1 : bins;
    for (int64_t bin = first; bin < last; ++bin) {
      __syncthreads();
      const T up = g[p.by_position ? k * p.channels + c : (k * p.channels + c) * bins + bin];
      const Bin b(p, k, bin / p.columns, bin % p.columns);
      const int64_t width = b.x_end - b.x, taps = width * (b.y_end - b.y);
      for (int64_t e = threadIdx.x; e < taps; e += kSpread) {
        const int64_t y = b.y + e / width, x = b.x + e % width;
        map[p.y.place[y] * p.width + p.x.place[x]] += T(p.y.weight[y]) * (T(p.x.weight[x]) * up);
      }
    }
  }
}

void roi_bins(const LaunchContext& ctx, const RoiBins& p, void* out, const void* in) {
  const int64_t n =
      p.regions * p.rows * p.columns * (p.by_position ? p.channels / (p.rows * p.columns) : p.channels);
  dispatch(Reals{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    launch(ctx, "roi_pool", roi_bins_kernel<T>, blocks_for(n), dim3(kThreads), 0, uploaded(ctx, p),
           static_cast<T*>(out), static_cast<const T*>(in), n);
  });
}
void roi_bins_backward(const LaunchContext& ctx, const RoiBins& p, void* out, const void* in) {
  dispatch(Reals{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    launch(ctx, "roi_pool_backward", roi_spread_kernel<T>, dim3(unsigned(p.images * p.channels)),
           dim3(kSpread), 0, uploaded(ctx, p), static_cast<T*>(out), static_cast<const T*>(in));
  });
}

// ---- bins that are maxima ----

template <class T>
__global__ void __launch_bounds__(kThreads)
    roi_max_kernel(RoiWindows p, T* out, int32_t* place, const T* maps, int64_t n) {
  const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= n) return;
  const int64_t bins = p.rows * p.columns, bin = at % bins, k = at / bins / p.channels;
  const T* map = maps + (p.image[k] * p.channels + at / bins % p.channels) * p.height * p.width;
  const int64_t* ys = p.y + (k * p.rows + bin / p.columns) * 2;
  const int64_t* xs = p.x + (k * p.columns + bin % p.columns) * 2;
  const bool none = ys[1] <= ys[0] || xs[1] <= xs[0];
  // The lowest finite number: what is not above it, as a NaN, is not found.
  T best = none ? T(0) : sizeof(T) == 4 ? T(-__FLT_MAX__) : T(-__DBL_MAX__);
  int64_t found = -1;
  for (int64_t y = ys[0]; y < ys[1]; ++y)
    for (int64_t x = xs[0]; x < xs[1]; ++x)
      if (map[y * p.width + x] > best) best = map[y * p.width + x], found = y * p.width + x;
  out[at] = best;
  place[at] = int32_t(found);
}

void roi_max(const LaunchContext& ctx, const RoiWindows& given, void* out, int32_t* place, const void* maps) {
  RoiWindows p = given;
  p.y = uploaded(ctx, p.y, p.regions * p.rows * 2);
  p.x = uploaded(ctx, p.x, p.regions * p.columns * 2);
  p.image = uploaded(ctx, p.image, p.regions);
  const int64_t n = p.regions * p.channels * p.rows * p.columns;
  dispatch(Reals{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    launch(ctx, "roi_pool", roi_max_kernel<T>, blocks_for(n), dim3(kThreads), 0, p, static_cast<T*>(out),
           place, static_cast<const T*>(maps), n);
  });
}

}  // namespace

WT_KERNEL(nms, nms);
WT_KERNEL(roi_bins, roi_bins);
WT_KERNEL(roi_bins_backward, roi_bins_backward);
WT_KERNEL(roi_max, roi_max);

}  // namespace warptape::kernels::cuda
