// Pooling. An output row is made by going over the kernel's elements, each of which sees a strided run of an
// input row.
#include "kernels/conv/pool.h"

#include "kernels/cpu/conv/pool_window.h"
#include "kernels/dispatch.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

// Output positions [first, last) of a dim for which kernel element t lies inside the input, and where the
// first one is.
struct Reach {
  int64_t first, last, at;
  WT_INLINE Reach(const PoolPlan& p, int d, int64_t t) {
    int64_t shift = t * p.dilation[d] - p.padding[d];
    first = shift >= 0 ? 0 : least((-shift + p.stride[d] - 1) / p.stride[d], p.out[d]);
    int64_t room = p.in[d] - shift;  // i * stride < room
    last = room <= 0 ? 0 : least((room + p.stride[d] - 1) / p.stride[d], p.out[d]);
    at = first * p.stride[d] + shift;
  }
};

// Kernel elements [first, last) of a dim that any output position sees inside the input.
struct Elements {
  int64_t first, last;
  WT_INLINE Elements(const PoolPlan& p, int d) {
    int64_t before = p.padding[d] - (p.out[d] - 1) * p.stride[d];
    first = before <= 0 ? 0 : (before + p.dilation[d] - 1) / p.dilation[d];
    last = least(p.kernel[d], (p.in[d] - 1 + p.padding[d]) / p.dilation[d] + 1);
  }
};

// Calls body(plane) for all planes on the pool, with scratch for `bytes`.
template <class F>
WT_INLINE void over_planes(const PoolPlan& p, size_t bytes, F&& body) {
  double work =
      double(plane_size(p.in)) + double(plane_size(p.out)) * (p.adaptive ? 1 : double(plane_size(p.kernel)));
  cpu::parallel_for(p.planes, int64_t(32768 / (work + 1)) + 1, [&](int64_t begin, int64_t end) {
    void* scratch = cpu::thread_scratch(bytes);
    for (int64_t i = begin; i < end; ++i) body(i, scratch);
  });
}

// ---- maximum --------------------------------------------------------------------------------------------

template <class S, class A>
WT_INLINE void max_of_window(const PoolPlan& p, const S* in, Window wz, Window wy, Window wx, A& best,
                             int64_t& place) {
  best = lowest<A>();
  place = (wz.begin * p.in[1] + wy.begin) * p.in[2] + wx.begin;
  for (int64_t z = wz.begin; z < wz.end; ++z)
    for (int64_t y = wy.begin; y < wy.end; ++y)
      for (int64_t x = wx.begin; x < wx.end; ++x) {
        int64_t at = (z * p.in[1] + y) * p.in[2] + x;
        A v = A(in[at]);
        if (v > best || v != v) best = v, place = at;
      }
}

// Calls body(row) for the input rows (flat over depth and height) that output row (z, y) sees.
template <class F>
WT_INLINE void over_rows(const PoolPlan& p, int64_t z, int64_t y, F&& body) {
  Elements ez(p, 0), ey(p, 1);
  for (int64_t kz = ez.first; kz < ez.last; ++kz) {
    int64_t plane = z * p.stride[0] - p.padding[0] + kz * p.dilation[0];
    if (plane < 0 || plane >= p.in[0]) continue;
    for (int64_t ky = ey.first; ky < ey.last; ++ky) {
      int64_t row = y * p.stride[1] - p.padding[1] + ky * p.dilation[1];
      if (row >= 0 && row < p.in[1]) body(plane * p.in[1] + row);
    }
  }
}

// One row of maxima and their places, for windows with strides.
template <class S, class A>
void max_row(const PoolPlan& p, const S* in, int64_t z, int64_t y, A* __restrict best,
             int32_t* __restrict place) {
  Elements ex(p, 2);
  for (int64_t x = 0; x < p.out[2]; ++x) best[x] = lowest<A>(), place[x] = -1;
  over_rows(p, z, y, [&](int64_t row) {
    for (int64_t kx = ex.first; kx < ex.last; ++kx) {
      Reach r(p, 2, kx);
      const S* from = in + row * p.in[2] + r.at;
      int32_t at = int32_t(row * p.in[2] + r.at), step = int32_t(p.stride[2]);
      for (int64_t x = r.first; x < r.last; ++x) {
        int32_t i = int32_t(x - r.first) * step;
        A v = A(from[i]);
        bool wins = (v > best[x]) | (v != v) | (place[x] < 0);
        best[x] = wins ? v : best[x];
        place[x] = wins ? at + i : place[x];
      }
    }
  });
}

template <class S>
void max_pool_of(const PoolPlan& p, S* out, int64_t* indices, const S* in) {
  using A = Compute<S>;
  over_planes(p, p.out[2] * (sizeof(A) + sizeof(int32_t)), [&](int64_t plane, void* scratch) {
    const S* from = in + plane * plane_size(p.in);
    int64_t to = plane * plane_size(p.out);
    A* best = static_cast<A*>(scratch);
    int32_t* place = reinterpret_cast<int32_t*>(best + p.out[2]);
    for (int64_t i = 0; i < p.out[0] * p.out[1]; ++i, to += p.out[2]) {
      int64_t z = i / p.out[1], y = i % p.out[1];
      if (p.adaptive) {
        for (int64_t x = 0; x < p.out[2]; ++x) {
          A v;
          max_of_window(p, from, adaptive_window(p, 0, z), adaptive_window(p, 1, y), adaptive_window(p, 2, x),
                        v, indices[to + x]);
          out[to + x] = S(v);
        }
      } else {
        max_row(p, from, z, y, best, place);
        for (int64_t x = 0; x < p.out[2]; ++x) out[to + x] = S(best[x]), indices[to + x] = place[x];
      }
    }
  });
}

// Sums of a plane in the compute type, then rounded: `add` is called with the plane and zeroed sums.
template <class S, class F>
WT_INLINE void gradient_planes(const PoolPlan& p, S* grad_in, F&& add) {
  using A = Compute<S>;
  int64_t size = plane_size(p.in);
  constexpr bool direct = sizeof(A) == sizeof(S);
  over_planes(p, direct ? 64 : size * sizeof(A), [&](int64_t plane, void* scratch) {
    S* to = grad_in + plane * size;
    A* sums = direct ? reinterpret_cast<A*>(to) : static_cast<A*>(scratch);
    std::memset(sums, 0, size * sizeof(A));
    add(plane, sums);
    if (!direct)
      for (int64_t i = 0; i < size; ++i) to[i] = S(sums[i]);
  });
}

template <class S>
void max_pool_backward_of(const PoolPlan& p, S* grad_in, const S* grad_out, const int64_t* indices) {
  int64_t size = plane_size(p.out);
  gradient_planes(p, grad_in, [&](int64_t plane, Compute<S>* sums) {
    for (int64_t i = plane * size; i < (plane + 1) * size; ++i)
      if (indices[i] >= 0) sums[indices[i]] += Compute<S>(grad_out[i]);
  });
}

// ---- average --------------------------------------------------------------------------------------------

template <class S>
void max_pool_gather_of(const PoolPlan& p, S* out, const S* in, const int64_t* indices) {
  int64_t size = plane_size(p.out);
  over_planes(p, 64, [&](int64_t plane, void*) {
    const S* from = in + plane * plane_size(p.in);
    for (int64_t i = plane * size; i < (plane + 1) * size; ++i)
      out[i] = indices[i] >= 0 ? from[indices[i]] : S(0.0f);
  });
}

// Adds the windows of an output row: first the rows that they cover, as `columns` [in[2]].
template <class S, class A>
void adaptive_sums(const PoolPlan& p, const S* in, int64_t z, int64_t y, A* __restrict columns,
                   A* __restrict sums) {
  const Window wz = adaptive_window(p, 0, z), wy = adaptive_window(p, 1, y);
  for (int64_t l = 0; l < p.in[2]; ++l) columns[l] = 0;
  for (int64_t k = wz.begin; k < wz.end; ++k)
    for (int64_t j = k * p.in[1] + wy.begin; j < k * p.in[1] + wy.end; ++j)
      for (int64_t l = 0; l < p.in[2]; ++l) columns[l] += A(in[j * p.in[2] + l]);
  for (int64_t x = 0; x < p.out[2]; ++x) {
    const Window wx = adaptive_window(p, 2, x);
    for (int64_t l = wx.begin; l < wx.end; ++l) sums[x] += columns[l];
  }
}

template <class S>
void avg_pool_of(const PoolPlan& p, S* out, const S* in) {
  using A = Compute<S>;
  over_planes(p, (p.out[2] + p.in[2]) * sizeof(A), [&](int64_t plane, void* scratch) {
    const S* from = in + plane * plane_size(p.in);
    S* to = out + plane * plane_size(p.out);
    A* __restrict sums = static_cast<A*>(scratch);
    Elements ex(p, 2);
    for (int64_t i = 0; i < p.out[0] * p.out[1]; ++i, to += p.out[2]) {
      int64_t z = i / p.out[1], y = i % p.out[1];
      for (int64_t x = 0; x < p.out[2]; ++x) sums[x] = 0;
      if (p.adaptive) {
        adaptive_sums(p, from, z, y, sums + p.out[2], sums);
      } else {
        over_rows(p, z, y, [&](int64_t row) {
          for (int64_t kx = ex.first; kx < ex.last; ++kx) {
            Reach r(p, 2, kx);
            const S* at = from + row * p.in[2] + r.at;
            for (int64_t x = r.first; x < r.last; ++x) sums[x] += A(at[(x - r.first) * p.stride[2]]);
          }
        });
      }
      int64_t rows = counted(p, 0, z) * counted(p, 1, y);
      for (int64_t x = 0; x < p.out[2]; ++x) to[x] = S(sums[x] / average_divisor<A>(p, rows, x));
    }
  });
}

template <class S>
void avg_pool_backward_of(const PoolPlan& p, S* grad_in, const S* grad_out) {
  using A = Compute<S>;
  gradient_planes(p, grad_in, [&](int64_t plane, A* sums) {
    const S* from = grad_out + plane * plane_size(p.out);
    for (int64_t i = 0; i < p.out[0] * p.out[1]; ++i, from += p.out[2]) {
      int64_t z = i / p.out[1], y = i % p.out[1], rows = counted(p, 0, z) * counted(p, 1, y);
      Window wz = window_of(p, 0, z), wy = window_of(p, 1, y);
      for (int64_t x = 0; x < p.out[2]; ++x) {
        A g = A(from[x]) / average_divisor<A>(p, rows, x);
        Window wx = window_of(p, 2, x);
        for (int64_t k = wz.begin; k < wz.end; ++k)
          for (int64_t j = k * p.in[1] + wy.begin; j < k * p.in[1] + wy.end; ++j)
            for (int64_t l = wx.begin; l < wx.end; ++l) sums[j * p.in[2] + l] += g;
      }
    }
  });
}

// ---- slots ----------------------------------------------------------------------------------------------

void max_pool(const LaunchContext&, const PoolPlan& p, void* out, int64_t* indices, const void* in) {
  dispatch(MaxTypes{}, p.dtype, [&](auto t) {
    using S = typename decltype(t)::type;
    max_pool_of(p, static_cast<S*>(out), indices, static_cast<const S*>(in));
  });
}

void max_pool_backward(const LaunchContext&, const PoolPlan& p, void* grad_in, const void* grad_out,
                       const int64_t* indices) {
  dispatch(FloatTypes{}, p.dtype, [&](auto t) {
    using S = typename decltype(t)::type;
    max_pool_backward_of(p, static_cast<S*>(grad_in), static_cast<const S*>(grad_out), indices);
  });
}

void max_pool_gather(const LaunchContext&, const PoolPlan& p, void* out, const void* in,
                     const int64_t* indices) {
  dispatch(FloatTypes{}, p.dtype, [&](auto t) {
    using S = typename decltype(t)::type;
    max_pool_gather_of(p, static_cast<S*>(out), static_cast<const S*>(in), indices);
  });
}

void avg_pool(const LaunchContext&, const PoolPlan& p, void* out, const void* in) {
  dispatch(AverageTypes{}, p.dtype, [&](auto t) {
    using S = typename decltype(t)::type;
    avg_pool_of(p, static_cast<S*>(out), static_cast<const S*>(in));
  });
}

void avg_pool_backward(const LaunchContext&, const PoolPlan& p, void* grad_in, const void* grad_out) {
  dispatch(FloatTypes{}, p.dtype, [&](auto t) {
    using S = typename decltype(t)::type;
    avg_pool_backward_of(p, static_cast<S*>(grad_in), static_cast<const S*>(grad_out));
  });
}

}  // namespace

WT_KERNEL(max_pool, max_pool);
WT_KERNEL(max_pool_backward, max_pool_backward);
WT_KERNEL(max_pool_gather, max_pool_gather);
WT_KERNEL(avg_pool, avg_pool);
WT_KERNEL(avg_pool_backward, avg_pool_backward);

}  // namespace warptape::kernels::WARPTAPE_ISA
