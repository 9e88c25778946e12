// Padding: a thread an element of the output, or of the input in the backward, which adds up its copies.
#include "kernels/nn/pad.h"

#include "kernels/cuda/common/index.cuh"
#include "kernels/cuda/common/memory.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct PadArgs {
  PadPlan p;
  FastDivide sizes[kPaddedDims];  // of what the threads go over
  int64_t n;
  bool wide;
  const void* from;
  void* to;
  unsigned char value[16];  // of constant padding

  template <bool Wide>
  WT_DEVICE int64_t split(int64_t i, int64_t (&at)[kPaddedDims]) const {
#pragma unroll
    for (int d = kPaddedDims - 1; d >= 0; --d) {
      const int64_t q = sizes[d].quotient<Wide>(i);
      at[d] = i - q * sizes[d].divisor;
      i = q;
    }
    return i;
  }
  // The plane, and where in it.
  WT_DEVICE int64_t operator()(int64_t i, int64_t (&at)[kPaddedDims]) const {
    return wide ? split<true>(i, at) : split<false>(i, at);
  }
};

// What negative padding of circular mode leaves of a dim: this range goes round.
struct Turn {
  int64_t first, last;
  WT_DEVICE Turn(const PadPlan& p, int d)
      : first(p.before[d] < 0 ? -p.before[d] : 0), last(p.after[d] < 0 ? p.in[d] + p.after[d] : p.in[d]) {}
};

// Where output index i of dim d comes from; -1 for constant padding.
WT_DEVICE int64_t source(const PadPlan& p, int d, int64_t i) {
  const int64_t n = p.in[d], j = i - p.before[d];
  switch (p.mode) {
    case PadMode::Constant:
      return j >= 0 && j < n ? j : -1;
    case PadMode::Reflect:
      return j < 0 ? -j : j < n ? j : 2 * (n - 1) - j;
    case PadMode::Replicate:
      return j < 0 ? 0 : j < n ? j : n - 1;
    case PadMode::Circular:
      break;
  }
  const Turn t(p, d);
  const int64_t turn = (j - t.first) % (t.last - t.first);
  return turn < 0 ? turn + t.last : turn + t.first;
}

template <class U>
__global__ void __launch_bounds__(kThreads) pad_kernel(const __grid_constant__ PadArgs a) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.n) return;
  int64_t at[kPaddedDims], from = a(i, at);
  bool inside = true;
#pragma unroll
  for (int d = 0; d < kPaddedDims; ++d) {
    const int64_t s = source(a.p, d, at[d]);
    inside = inside && s >= 0;
    from = from * a.p.in[d] + s;
  }
  U value;
  memcpy(&value, a.value, sizeof value);
  static_cast<U*>(a.to)[i] = inside ? static_cast<const U*>(a.from)[from] : value;
}

// The output indices of dim d that come from j: first, first + step, ... below last, and of a reflection at
// most three, in order.
struct Copies {
  int64_t first, last, step;
  int64_t reflected[2];  // the second and third of a reflection, -1 for none

  WT_DEVICE Copies(const PadPlan& p, int d, int64_t j) : first(0), last(0), step(1), reflected{-1, -1} {
    const int64_t n = p.in[d], before = p.before[d], out = p.out[d];
    if (p.mode == PadMode::Replicate) {
      first = j == 0 ? 0 : j + before;
      last = j == n - 1 ? out : j + before + 1;
      first = max(first, int64_t(0));
      last = min(last, out);
    } else if (p.mode == PadMode::Circular) {
      const Turn t(p, d);
      if (j < t.first || j >= t.last) return;
      step = t.last - t.first;
      first = (j + before) % step;
      if (first < 0) first += step;
      last = out;
    } else {  // reflection: from the left, itself, from the right
      const int64_t all[3] = {before - j, before + j, before + 2 * (n - 1) - j};
      const bool valid[3] = {j > 0 && all[0] >= 0 && all[0] < out, all[1] >= 0 && all[1] < out,
                             j < n - 1 && all[2] >= 0 && all[2] < out};
      first = valid[0] ? all[0] : valid[1] ? all[1] : valid[2] ? all[2] : 0;
      last = valid[0] || valid[1] || valid[2] ? first + 1 : 0;
      reflected[0] = valid[1] && valid[0] ? all[1] : -1;
      reflected[1] = valid[2] && (valid[0] || valid[1]) ? all[2] : -1;
    }
  }
  template <class F>
  WT_DEVICE void each(F&& f) const {
    for (int64_t i = first; i < last; i += step) f(i);
    if (reflected[0] >= 0) f(reflected[0]);
    if (reflected[1] >= 0) f(reflected[1]);
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) pad_backward_kernel(const __grid_constant__ PadArgs a) {
  using C = Compute<T>;
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.n) return;
  int64_t at[kPaddedDims];
  const int64_t plane = a(i, at);
  const PadPlan& p = a.p;
  const Copies planes(p, 0, at[0]), rows(p, 1, at[1]), cols(p, 2, at[2]);
  C sum(0);
  planes.each([&](int64_t u) {
    rows.each([&](int64_t v) {
      const T* row = static_cast<const T*>(a.from) + ((plane * p.out[0] + u) * p.out[1] + v) * p.out[2];
      cols.each([&](int64_t w) { sum = sum + widen<C>(row[w]); });
    });
  });
  static_cast<T*>(a.to)[i] = narrow<T>(sum);
}

PadArgs over(const PadPlan& p, const int64_t (&sizes)[kPaddedDims], void* to, const void* from) {
  PadArgs a{};
  a.p = p;
  a.n = p.planes;
  for (int d = 0; d < kPaddedDims; ++d) {
    a.sizes[d] = FastDivide(sizes[d]);
    a.n *= sizes[d];
  }
  a.wide = a.n > INT32_MAX;
  a.to = to;
  a.from = from;
  return a;
}

template <class KernelOf>
void launch_pad(const LaunchContext& ctx, const char* op, const PadArgs& a, KernelOf kernel) {
  launch(ctx, op, kernel, dim3(unsigned(ceil_div(a.n, kThreads))), dim3(kThreads), 0, a);
}

void pad_constant(const LaunchContext& ctx, const View& out, const View& x, const PadPlan& p,
                  const void* value) {
  PadArgs a = over(p, p.out, out.data, x.data);
  a.p.mode = PadMode::Constant;
  std::memcpy(a.value, value, itemsize(p.dtype));
  dispatch_size(MoveTypes{}, itemsize(p.dtype),
                [&](auto t) { launch_pad(ctx, "pad", a, pad_kernel<typename decltype(t)::type>); });
}

void pad(const LaunchContext& ctx, const View& out, const View& x, const PadPlan& p) {
  const PadArgs a = over(p, p.out, out.data, x.data);
  dispatch_size(MoveTypes{}, itemsize(p.dtype),
                [&](auto t) { launch_pad(ctx, "pad", a, pad_kernel<typename decltype(t)::type>); });
}

void pad_backward(const LaunchContext& ctx, const View& dx, const View& dout, const PadPlan& p) {
  const PadArgs a = over(p, p.in, dx.data, dout.data);
  dispatch(Stored<Complex<double>>{}, p.dtype, [&](auto t) {
    launch_pad(ctx, "pad_backward", a, pad_backward_kernel<typename decltype(t)::type>);
  });
}

}  // namespace

WT_KERNEL(pad_constant, pad_constant);
WT_KERNEL(pad, pad);
WT_KERNEL(pad_backward, pad_backward);

}  // namespace warptape::kernels::cuda
