// Pooling. Forward: a thread an output (a warp where an average's windows are large). Backward: a thread an
// input, which adds up the outputs whose windows it lies in, in their order, so nothing is added from two
// sides.
#include "kernels/conv/pool.h"

#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/index.cuh"
#include "kernels/cuda/common/memory.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kLargeWindow = 128;  // elements from which a warp shares a window

struct Range {
  int64_t begin, end;
};

struct PoolArgs {
  PoolPlan p;
  FastDivide depth, rows, cols;  // of what the threads go over: outputs, or inputs of a backward
  int64_t n;
  bool wide;

  WT_DEVICE int64_t cut(const FastDivide& by, int64_t& i) const {  // the quotient; i keeps the remainder
    const int64_t q = wide ? by.quotient<true>(i) : by.quotient<false>(i);
    i -= q * by.divisor;
    return q;
  }
  // Element i as (plane, z, y, x).
  WT_DEVICE void split(int64_t i, int64_t& plane, int64_t& z, int64_t& y, int64_t& x) const {
    x = i;
    y = cut(cols, x);
    z = cut(rows, y);
    plane = cut(depth, z);
  }
};

WT_DEVICE int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }  // a >= 0

// What window i of dim d covers of the input, `step` apart.
WT_DEVICE Range window(const PoolPlan& p, int d, int64_t i, int64_t dilation) {
  if (p.adaptive) return {i * p.in[d] / p.out[d], ceil_of((i + 1) * p.in[d], p.out[d])};
  int64_t begin = i * p.stride[d] - p.padding[d];
  const int64_t end = min(begin + (p.kernel[d] - 1) * dilation + 1, p.in[d]);
  if (begin < 0) begin += ceil_of(-begin, dilation) * dilation;
  return {begin, end};
}

// Windows of dim d that position `at` of the input may lie in (with dilation: some of them).
WT_DEVICE Range windows_of(const PoolPlan& p, int d, int64_t at, int64_t dilation) {
  if (p.adaptive) return {at * p.out[d] / p.in[d], ceil_of((at + 1) * p.out[d], p.in[d])};
  const int64_t last = (at + p.padding[d]) / p.stride[d];
  const int64_t reach = at + p.padding[d] - (p.kernel[d] - 1) * dilation;
  return {reach <= 0 ? 0 : ceil_of(reach, p.stride[d]), min(last + 1, p.out[d])};
}

// The size of window i as an average counts it.
WT_DEVICE int64_t counted(const PoolPlan& p, int d, int64_t i) {
  if (p.adaptive || !p.count_include_pad) {
    const Range r = window(p, d, i, 1);
    return max(r.end - r.begin, int64_t(0));
  }
  const int64_t begin = i * p.stride[d] - p.padding[d];
  return min(begin + p.kernel[d], p.in[d] + p.padding[d]) - begin;
}
template <class C>
WT_DEVICE C divisor(const PoolPlan& p, int64_t z, int64_t y, int64_t x) {
  return C(p.divisor ? p.divisor : counted(p, 0, z) * counted(p, 1, y) * counted(p, 2, x));
}
WT_DEVICE int64_t plane_size(const int64_t (&sizes)[3]) { return sizes[0] * sizes[1] * sizes[2]; }
WT_DEVICE int64_t spread(const PoolPlan& p, int d) { return p.adaptive ? 1 : p.dilation[d]; }

// ---- maximum ----

template <class T>
__global__ void __launch_bounds__(kThreads)
    max_pool_kernel(const __grid_constant__ PoolArgs a, void* to, int64_t* indices, const void* in) {
  using C = Compute<T>;
  const PoolPlan& p = a.p;
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.n) return;
  int64_t plane, z, y, x;
  a.split(i, plane, z, y, x);
  const int64_t dz = spread(p, 0), dy = spread(p, 1), dx = spread(p, 2);
  const Range layers = window(p, 0, z, dz), rows = window(p, 1, y, dy), cols = window(p, 2, x, dx);
  const T* from = static_cast<const T*>(in) + plane * plane_size(p.in);
  C best = std::is_integral_v<C> ? C(0) : C(-__builtin_inf());
  int64_t place = -1;
  for (int64_t layer = layers.begin; layer < layers.end; layer += dz)
    for (int64_t row = rows.begin; row < rows.end; row += dy)
      for (int64_t col = cols.begin; col < cols.end; col += dx) {
        const int64_t at = (layer * p.in[1] + row) * p.in[2] + col;
        const C v = widen<C>(from[at]);
        if (v > best || v != v || place < 0) {
          best = v;
          place = at;
        }
      }
  static_cast<T*>(to)[i] = narrow<T>(best);
  indices[i] = place;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    max_pool_backward_kernel(const __grid_constant__ PoolArgs a, void* grad_in, const void* grad_out,
                             const int64_t* indices) {
  using C = Compute<T>;
  const PoolPlan& p = a.p;
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.n) return;
  int64_t plane, z, y, x;
  a.split(i, plane, z, y, x);
  const Range layers = windows_of(p, 0, z, spread(p, 0)), rows = windows_of(p, 1, y, spread(p, 1)),
              cols = windows_of(p, 2, x, spread(p, 2));
  const int64_t place = (z * p.in[1] + y) * p.in[2] + x, first = plane * plane_size(p.out);
  C sum = 0;
  for (int64_t layer = layers.begin; layer < layers.end; ++layer)
    for (int64_t row = rows.begin; row < rows.end; ++row)
      for (int64_t col = cols.begin; col < cols.end; ++col) {
        const int64_t at = first + (layer * p.out[1] + row) * p.out[2] + col;
        if (indices[at] == place) sum += widen<C>(static_cast<const T*>(grad_out)[at]);
      }
  static_cast<T*>(grad_in)[i] = narrow<T>(sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    max_pool_gather_kernel(const __grid_constant__ PoolArgs a, void* to, const void* in,
                           const int64_t* indices) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.n) return;
  int64_t plane, z, y, x;
  a.split(i, plane, z, y, x);
  const int64_t at = indices[i];
  static_cast<T*>(to)[i] =
      at >= 0 ? static_cast<const T*>(in)[plane * plane_size(a.p.in) + at] : narrow<T>(Compute<T>(0));
}

// ---- average ----

template <class T>
__global__ void __launch_bounds__(kThreads)
    avg_pool_kernel(const __grid_constant__ PoolArgs a, void* to, const void* in) {
  using C = Compute<T>;
  const PoolPlan& p = a.p;
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.n) return;
  int64_t plane, z, y, x;
  a.split(i, plane, z, y, x);
  const Range layers = window(p, 0, z, 1), rows = window(p, 1, y, 1), cols = window(p, 2, x, 1);
  const T* from = static_cast<const T*>(in) + plane * plane_size(p.in);
  C sum = 0;
  for (int64_t layer = layers.begin; layer < layers.end; ++layer)
    for (int64_t row = rows.begin; row < rows.end; ++row)
      for (int64_t col = cols.begin; col < cols.end; ++col)
        sum += widen<C>(from[(layer * p.in[1] + row) * p.in[2] + col]);
  static_cast<T*>(to)[i] = narrow<T>(sum / divisor<C>(p, z, y, x));
}

// A warp an output: lanes go along the columns of the window's rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    avg_pool_warp_kernel(const __grid_constant__ PoolArgs a, void* to, const void* in) {
  using C = Compute<T>;
  const PoolPlan& p = a.p;
  const int64_t i = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  if (i >= a.n) return;  // the whole warp
  int64_t plane, z, y, x;
  a.split(i, plane, z, y, x);
  const Range layers = window(p, 0, z, 1), rows = window(p, 1, y, 1), cols = window(p, 2, x, 1);
  const T* from = static_cast<const T*>(in) + plane * plane_size(p.in);
  const int64_t width = max(cols.end - cols.begin, int64_t(0)), height = rows.end - rows.begin;
  C sum = 0;
  for (int64_t layer = layers.begin; layer < layers.end; ++layer)
    for (int64_t k = lane; k < height * width; k += kWarp)
      sum += widen<C>(from[(layer * p.in[1] + rows.begin + k / width) * p.in[2] + cols.begin + k % width]);
  sum = warp_reduce(sum, SumOf{});
  if (lane == 0) static_cast<T*>(to)[i] = narrow<T>(sum / divisor<C>(p, z, y, x));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    avg_pool_backward_kernel(const __grid_constant__ PoolArgs a, void* grad_in, const void* grad_out) {
  using C = Compute<T>;
  const PoolPlan& p = a.p;
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.n) return;
  int64_t plane, z, y, x;
  a.split(i, plane, z, y, x);
  const Range layers = windows_of(p, 0, z, 1), rows = windows_of(p, 1, y, 1), cols = windows_of(p, 2, x, 1);
  const T* from = static_cast<const T*>(grad_out) + plane * plane_size(p.out);
  C sum = 0;
  for (int64_t layer = layers.begin; layer < layers.end; ++layer)
    for (int64_t row = rows.begin; row < rows.end; ++row)
      for (int64_t col = cols.begin; col < cols.end; ++col)
        sum += widen<C>(from[(layer * p.out[1] + row) * p.out[2] + col]) / divisor<C>(p, layer, row, col);
  static_cast<T*>(grad_in)[i] = narrow<T>(sum);
}

// ---- launching ----

PoolArgs over(const PoolPlan& p, const int64_t (&sizes)[3]) {
  const int64_t n = p.planes * sizes[0] * sizes[1] * sizes[2];
  return {p, FastDivide(sizes[0]), FastDivide(sizes[1]), FastDivide(sizes[2]), n, n > INT32_MAX};
}

using MaxTypes = Types<float, double, BFloat16, Half, int64_t, int32_t, int16_t, int8_t, uint8_t>;
using AvgTypes = Types<float, double, BFloat16, Half, int64_t>;

template <class Supported = FloatTypes, class KernelOf, class... P>
void run_pool(const LaunchContext& ctx, const char* op, const PoolArgs& a, int64_t threads,
              KernelOf&& kernel_of, P... pointers) {
  dispatch(Supported{}, a.p.dtype, [&](auto t) {
    launch(ctx, op, kernel_of(t), dim3(unsigned(ceil_div(threads, kThreads))), dim3(kThreads), 0, a,
           pointers...);
  });
}

void max_pool(const LaunchContext& ctx, const PoolPlan& p, void* out, int64_t* indices, const void* in) {
  const PoolArgs a = over(p, p.out);
  run_pool<MaxTypes>(
      ctx, "max_pool", a, a.n, [](auto t) { return max_pool_kernel<typename decltype(t)::type>; }, out,
      indices, in);
}

void max_pool_backward(const LaunchContext& ctx, const PoolPlan& p, void* grad_in, const void* grad_out,
                       const int64_t* indices) {
  const PoolArgs a = over(p, p.in);
  run_pool(
      ctx, "max_pool_backward", a, a.n,
      [](auto t) { return max_pool_backward_kernel<typename decltype(t)::type>; }, grad_in, grad_out,
      indices);
}

void max_pool_gather(const LaunchContext& ctx, const PoolPlan& p, void* out, const void* in,
                     const int64_t* indices) {
  const PoolArgs a = over(p, p.out);
  run_pool(
      ctx, "max_pool_gather", a, a.n,
      [](auto t) { return max_pool_gather_kernel<typename decltype(t)::type>; }, out, in, indices);
}

void avg_pool(const LaunchContext& ctx, const PoolPlan& p, void* out, const void* in) {
  const PoolArgs a = over(p, p.out);
  const int64_t window =
      p.adaptive ? p.in[1] * p.in[2] / (p.out[1] * p.out[2] + 1) : p.kernel[1] * p.kernel[2];
  if (window >= kLargeWindow)
    run_pool<AvgTypes>(
        ctx, "avg_pool", a, a.n * kWarp,
        [](auto t) { return avg_pool_warp_kernel<typename decltype(t)::type>; }, out, in);
  else
    run_pool<AvgTypes>(
        ctx, "avg_pool", a, a.n, [](auto t) { return avg_pool_kernel<typename decltype(t)::type>; }, out, in);
}

void avg_pool_backward(const LaunchContext& ctx, const PoolPlan& p, void* grad_in, const void* grad_out) {
  const PoolArgs a = over(p, p.in);
  run_pool(
      ctx, "avg_pool_backward", a, a.n,
      [](auto t) { return avg_pool_backward_kernel<typename decltype(t)::type>; }, grad_in, grad_out);
}

}  // namespace

WT_KERNEL(max_pool, max_pool);
WT_KERNEL(max_pool_backward, max_pool_backward);
WT_KERNEL(max_pool_gather, max_pool_gather);
WT_KERNEL(avg_pool, avg_pool);
WT_KERNEL(avg_pool_backward, avg_pool_backward);

}  // namespace warptape::kernels::cuda
