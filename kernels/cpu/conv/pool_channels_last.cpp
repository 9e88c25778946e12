// Pooling with channels innermost: vectors lie across the channels of a pixel.
#include "kernels/conv/pool.h"

#include "kernels/cpu/conv/pool_window.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int64_t kChannels = 128;  // of a task that scatters

// The input positions of window i of a dim.
struct Span {
  int64_t begin, end, step;
  WT_INLINE Span(const PoolPlan& p, int d, int64_t i) : step(1) {
    if (p.adaptive) {
      const Window w = adaptive_window(p, d, i);
      begin = w.begin, end = w.end;
      return;
    }
    step = p.dilation[d];
    const int64_t low = i * p.stride[d] - p.padding[d];
    begin = low >= 0 ? low : low + (-low + step - 1) / step * step;
    end = least(low + (p.kernel[d] - 1) * step + 1, p.in[d]);
  }
};

// Calls body(pixel) for the pixels of the window of output (z, y, x), in order.
template <class F>
WT_INLINE void over_window(const PoolPlan& p, int64_t z, int64_t y, int64_t x, F&& body) {
  const Span sz(p, 0, z), sy(p, 1, y), sx(p, 2, x);
  for (int64_t k = sz.begin; k < sz.end; k += sz.step)
    for (int64_t j = sy.begin; j < sy.end; j += sy.step)
      for (int64_t i = sx.begin; i < sx.end; i += sx.step) body((k * p.in[1] + j) * p.in[2] + i);
}

WT_INLINE int64_t images(const PoolPlan& p) { return p.planes / p.channels; }
WT_INLINE double work_of_pixel(const PoolPlan& p) {
  const double window =
      p.adaptive ? double(plane_size(p.in)) / double(plane_size(p.out)) : double(plane_size(p.kernel));
  return (window + 1) * double(p.channels);
}

// Calls body(image, z, y, x, output pixel, scratch) for all output pixels on the pool.
template <class F>
WT_INLINE void over_pixels(const PoolPlan& p, size_t bytes, F&& body) {
  const int64_t size = plane_size(p.out);
  cpu::parallel_for(images(p) * size, int64_t(32768 / work_of_pixel(p)) + 1, [&](int64_t begin, int64_t end) {
    void* scratch = cpu::thread_scratch(bytes);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i % size;
      body(i / size, at / (p.out[1] * p.out[2]), at / p.out[2] % p.out[1], at % p.out[2], i, scratch);
    }
  });
}

// Sums of some channels of an image in the compute type, then rounded: add(image, first channel, channels,
// sums, pitch), where pixel i's sums begin at sums + i * pitch and start as 0.
template <class S, class F>
WT_INLINE void gradient_images(const PoolPlan& p, S* grad_in, F&& add) {
  using A = Compute<S>;
  constexpr bool direct = sizeof(A) == sizeof(S);
  const int64_t size = plane_size(p.in), parts = (p.channels + kChannels - 1) / kChannels;
  const double work = double(plane_size(p.out)) * work_of_pixel(p) / double(parts);
  cpu::parallel_for(images(p) * parts, int64_t(32768 / (work + 1)) + 1, [&](int64_t begin, int64_t end) {
    void* scratch = cpu::thread_scratch(direct ? 64 : size * kChannels * sizeof(A));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % parts * kChannels, n = least(kChannels, p.channels - first);
      S* to = grad_in + i / parts * size * p.channels + first;
      A* sums = direct ? reinterpret_cast<A*>(to) : static_cast<A*>(scratch);
      const int64_t pitch = direct ? p.channels : n;
      for (int64_t at = 0; at < size; ++at) std::memset(sums + at * pitch, 0, n * sizeof(A));
      add(i / parts, first, n, sums, pitch);
      if (direct) continue;
      for (int64_t at = 0; at < size; ++at)
        for (int64_t c = 0; c < n; ++c) to[at * p.channels + c] = S(sums[at * n + c]);
    }
  });
}

// ---- maximum --------------------------------------------------------------------------------------------

template <class S>
void max_pool_of(const PoolPlan& p, S* out, int64_t* indices, const S* in) {
  using A = Compute<S>;
  const int64_t n = p.channels;
  over_pixels(p, n * (sizeof(A) + sizeof(int32_t)),
              [&](int64_t image, int64_t z, int64_t y, int64_t x, int64_t pixel, void* scratch) {
                A* __restrict best = static_cast<A*>(scratch);
                int32_t* __restrict place = reinterpret_cast<int32_t*>(best + n);
                for (int64_t c = 0; c < n; ++c) best[c] = lowest<A>(), place[c] = -1;
                over_window(p, z, y, x, [&](int64_t at) {
                  const S* from = in + (image * plane_size(p.in) + at) * n;
                  const auto here = int32_t(at);
                  for (int64_t c = 0; c < n; ++c) {
                    const A v = A(from[c]);
                    const bool wins = (v > best[c]) | (v != v) | (place[c] < 0);
                    best[c] = wins ? v : best[c];
                    place[c] = wins ? here : place[c];
                  }
                });
                S* to = out + pixel * n;
                int64_t* index = indices + pixel * n;
                for (int64_t c = 0; c < n; ++c) to[c] = S(best[c]);
                for (int64_t c = 0; c < n; ++c) index[c] = place[c];
              });
}

template <class S>
void max_pool_backward_of(const PoolPlan& p, S* grad_in, const S* grad_out, const int64_t* indices) {
  const int64_t size = plane_size(p.out);
  gradient_images(p, grad_in, [&](int64_t image, int64_t first, int64_t n, Compute<S>* sums, int64_t pitch) {
    for (int64_t i = image * size; i < (image + 1) * size; ++i) {
      const S* g = grad_out + i * p.channels + first;
      const int64_t* index = indices + i * p.channels + first;
      for (int64_t c = 0; c < n; ++c)
        if (index[c] >= 0) sums[index[c] * pitch + c] += Compute<S>(g[c]);
    }
  });
}

template <class S>
void max_pool_gather_of(const PoolPlan& p, S* out, const S* in, const int64_t* indices) {
  over_pixels(p, 64, [&](int64_t image, int64_t, int64_t, int64_t, int64_t pixel, void*) {
    const S* from = in + image * plane_size(p.in) * p.channels;
    for (int64_t c = 0; c < p.channels; ++c) {
      const int64_t at = indices[pixel * p.channels + c];
      out[pixel * p.channels + c] = at >= 0 ? from[at * p.channels + c] : S(0.0f);
    }
  });
}

// ---- average --------------------------------------------------------------------------------------------

template <class S>
void avg_pool_of(const PoolPlan& p, S* out, const S* in) {
  using A = Compute<S>;
  const int64_t n = p.channels;
  over_pixels(p, n * sizeof(A),
              [&](int64_t image, int64_t z, int64_t y, int64_t x, int64_t pixel, void* scratch) {
                A* __restrict sums = static_cast<A*>(scratch);
                for (int64_t c = 0; c < n; ++c) sums[c] = 0;
                over_window(p, z, y, x, [&](int64_t at) {
                  const S* from = in + (image * plane_size(p.in) + at) * n;
                  for (int64_t c = 0; c < n; ++c) sums[c] += A(from[c]);
                });
                const A divisor = average_divisor<A>(p, counted(p, 0, z) * counted(p, 1, y), x);
                for (int64_t c = 0; c < n; ++c) out[pixel * n + c] = S(sums[c] / divisor);
              });
}

template <class S>
void avg_pool_backward_of(const PoolPlan& p, S* grad_in, const S* grad_out) {
  using A = Compute<S>;
  gradient_images(p, grad_in, [&](int64_t image, int64_t first, int64_t n, A* sums, int64_t pitch) {
    A share[kChannels];
    for (int64_t i = 0; i < plane_size(p.out); ++i) {
      const int64_t z = i / (p.out[1] * p.out[2]), y = i / p.out[2] % p.out[1], x = i % p.out[2];
      const A divisor = average_divisor<A>(p, counted(p, 0, z) * counted(p, 1, y), x);
      const S* g = grad_out + (image * plane_size(p.out) + i) * p.channels + first;
      for (int64_t c = 0; c < n; ++c) share[c] = A(g[c]) / divisor;
      over_window(p, z, y, x, [&](int64_t at) {
        A* to = sums + at * pitch;
        for (int64_t c = 0; c < n; ++c) to[c] += share[c];
      });
    }
  });
}

// ---- slots ----------------------------------------------------------------------------------------------

void max_pool_channels_last(const LaunchContext&, const PoolPlan& p, void* out, int64_t* indices,
                            const void* in) {
  dispatch(MaxTypes{}, p.dtype, [&](auto t) {
    using S = typename decltype(t)::type;
    max_pool_of(p, static_cast<S*>(out), indices, static_cast<const S*>(in));
  });
}
void max_pool_channels_last_backward(const LaunchContext&, const PoolPlan& p, void* grad_in,
                                     const void* grad_out, const int64_t* indices) {
  dispatch(FloatTypes{}, p.dtype, [&](auto t) {
    using S = typename decltype(t)::type;
    max_pool_backward_of(p, static_cast<S*>(grad_in), static_cast<const S*>(grad_out), indices);
  });
}
void max_pool_channels_last_gather(const LaunchContext&, const PoolPlan& p, void* out, const void* in,
                                   const int64_t* indices) {
  dispatch(FloatTypes{}, p.dtype, [&](auto t) {
    using S = typename decltype(t)::type;
    max_pool_gather_of(p, static_cast<S*>(out), static_cast<const S*>(in), indices);
  });
}
void avg_pool_channels_last(const LaunchContext&, const PoolPlan& p, void* out, const void* in) {
  dispatch(AverageTypes{}, p.dtype, [&](auto t) {
    using S = typename decltype(t)::type;
    avg_pool_of(p, static_cast<S*>(out), static_cast<const S*>(in));
  });
}
void avg_pool_channels_last_backward(const LaunchContext&, const PoolPlan& p, void* grad_in,
                                     const void* grad_out) {
  dispatch(FloatTypes{}, p.dtype, [&](auto t) {
    using S = typename decltype(t)::type;
    avg_pool_backward_of(p, static_cast<S*>(grad_in), static_cast<const S*>(grad_out));
  });
}

}  // namespace

WT_KERNEL(max_pool_channels_last, max_pool_channels_last);
WT_KERNEL(max_pool_channels_last_backward, max_pool_channels_last_backward);
WT_KERNEL(max_pool_channels_last_gather, max_pool_channels_last_gather);
WT_KERNEL(avg_pool_channels_last, avg_pool_channels_last);
WT_KERNEL(avg_pool_channels_last_backward, avg_pool_channels_last_backward);

}  // namespace warptape::kernels::WARPTAPE_ISA
