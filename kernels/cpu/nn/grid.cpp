// Images and volumes read at any places, and the gradients. The pixels around a place and their weights are
// found once for a run of places and serve all channels. Legend: a tap is a pixel along one dim, a corner a
// tap of each dim.
#include "kernels/nn/grid.h"

#include "kernels/cpu/vector/intrinsics.h"
#include "kernels/dispatch.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int64_t kRun = 64;      // places at a time
constexpr int64_t kCorners = 16;  // at most: bicubic, 4 x 4

// An offset into an image is 32 bits wide where it can be, which is what a gather of floats takes.
template <class T, class I>
struct Taps {
  I at[4][kRun];  // offset in the image, -1 outside of it
  T weight[4][kRun], slope[4][kRun];
};

WT_INLINE float floor_of(float x) { return __builtin_floorf(x); }
WT_INLINE double floor_of(double x) { return __builtin_floor(x); }
WT_INLINE float round_even(float x) { return __builtin_rintf(x); }
WT_INLINE double round_even(double x) { return __builtin_rint(x); }

// How far x goes inside, and its derivative there. As in PyTorch, on the border the derivative is 0.
template <class T>
struct Moved {
  T at, slope;
};
template <GridPadding Padding, class T>
WT_INLINE Moved<T> inside(T x, int64_t size, bool align) {
  if (Padding == GridPadding::Zeros) return {x, T(1)};
  T slope = 1;
  if (Padding == GridPadding::Reflection) {
    const T low = align ? T(0) : T(-0.5), span = align ? T(size - 1) : T(size);
    const T away = x < low ? low - x : x - low;
    const T turns = span > 0 ? floor_of(away / span) : T(0), rest = away - turns * span;
    const bool odd = turns - 2 * floor_of(turns * T(0.5)) != T(0);
    slope = (x < low) != odd ? T(-1) : T(1);
    x = span > 0 ? (odd ? low + span - rest : rest + low) : T(0);
  }
  const T last = T(size - 1), at = x > T(0) ? x : T(0);  // of NaN 0
  return {at < last ? at : last, x > T(0) && x < last ? slope : T(0)};
}

// "Cubic Convolution Interpolation for Digital Image Processing", equation 15, a = -0.75, d the distance.
template <class T> WT_INLINE T near_weight(T d) { return ((d * T(1.25) - T(2.25)) * d) * d + 1; }
template <class T> WT_INLINE T near_slope(T d) { return (d * T(3.75) - T(4.5)) * d; }
template <class T> WT_INLINE T far_weight(T d) { return ((d * T(-0.75) + T(3.75)) * d - T(6)) * d + T(3); }
template <class T> WT_INLINE T far_slope(T d) { return (d * T(-2.25) + T(7.5)) * d - T(6); }

template <class T, class I>
struct Grid {
  const GridPlan& p;
  const T* grid;
  int64_t each = p.mode == GridMode::Nearest ? 1 : p.mode == GridMode::Bilinear ? 2 : 4;
  int64_t corners = p.dims == 3 ? each * each * each : each * each;

  // Loops over a run are of one mode and padding each, so that they are of vectors.
  template <GridPadding Padding>
  WT_INLINE void taps_of(const T (&x)[kRun], int64_t size, int64_t stride, T scale, Taps<T, I>& to) const {
    const bool align = p.align;
    const auto put = [&](int64_t k, int64_t r, T at, T weight, T slope) {
      const bool in = at >= T(0) && at < T(size);
      to.at[k][r] = in ? I(in ? at : T(0)) * I(stride) : I(-1);
      to.weight[k][r] = weight;
      to.slope[k][r] = slope * scale;
    };
    if (p.mode == GridMode::Nearest) {
      for (int64_t r = 0; r < kRun; ++r)
        put(0, r, round_even(inside<Padding>(x[r], size, align).at), T(1), T(0));
    } else if (p.mode == GridMode::Bilinear) {
      for (int64_t r = 0; r < kRun; ++r) {
        const Moved<T> m = inside<Padding>(x[r], size, align);
        const T low = floor_of(m.at);
        put(0, r, low, low + 1 - m.at, -m.slope);
        put(1, r, low + 1, m.at - low, m.slope);
      }
    } else {
      for (int64_t r = 0; r < kRun; ++r) {
        const T low = floor_of(x[r]), t = x[r] - low;
        const auto at = [&](T tap) { return inside<Padding>(tap, size, align).at; };
        put(0, r, at(low - 1), far_weight(t + 1), far_slope(t + 1));
        put(1, r, at(low), near_weight(t), near_slope(t));
        put(2, r, at(low + 1), near_weight(1 - t), -near_slope(1 - t));
        put(3, r, at(low + 2), far_weight(2 - t), -far_slope(2 - t));
      }
    }
  }

  // The taps of `count` places from `begin` of image n along dim d; those of what remains of a run are some.
  WT_INLINE void along(int64_t n, int64_t d, int64_t begin, int64_t count, Taps<T, I>& to) const {
    const int64_t size = p.size[d];
    int64_t stride = 1;
    for (int64_t k = d + 1; k < p.dims; ++k) stride *= p.size[k];
    const T* from = grid + (n * p.places + begin) * p.dims + (p.dims - 1 - d);
    T x[kRun]{};
    for (int64_t r = 0; r < count; ++r) x[r] = from[r * p.dims];
    const T scale = p.align ? T(size - 1) / 2 : T(size) / 2;
    for (int64_t r = 0; r < kRun; ++r)
      x[r] = p.align ? (x[r] + 1) * scale : ((x[r] + 1) * T(size) - 1) * T(0.5);
    if (p.padding == GridPadding::Zeros) return taps_of<GridPadding::Zeros>(x, size, stride, scale, to);
    if (p.padding == GridPadding::Border) return taps_of<GridPadding::Border>(x, size, stride, scale, to);
    taps_of<GridPadding::Reflection>(x, size, stride, scale, to);
  }
};

template <class T, class I>
struct Corners {
  Taps<T, I> taps[3];
  I at[kCorners][kRun];
  T weight[kCorners][kRun];

  WT_INLINE void find(const Grid<T, I>& g, int64_t n, int64_t begin, int64_t count) {
    for (int64_t d = 0; d < g.p.dims; ++d) g.along(n, d, begin, count, taps[d]);
    for (int64_t c = 0; c < g.corners; ++c) {
      const int64_t* which = taps_at(g, c);
      const I *a = taps[0].at[which[0]], *b = taps[1].at[which[1]], *z = taps[2].at[which[2]];
      for (int64_t r = 0; r < kRun; ++r) at[c][r] = (a[r] | b[r]) < 0 ? I(-1) : a[r] + b[r];
      if (g.p.dims == 3)
        for (int64_t r = 0; r < kRun; ++r) at[c][r] = (at[c][r] | z[r]) < 0 ? I(-1) : at[c][r] + z[r];
      product(g, c, -1, weight[c]);
    }
    // What remains of a run reads nothing.
    for (int64_t c = 0; c < g.corners; ++c)
      for (int64_t r = count; r < kRun; ++r) at[c][r] = -1, weight[c][r] = 0;
  }

  // The taps that meet in corner c.
  int64_t which[3];
  WT_INLINE const int64_t* taps_at(const Grid<T, I>& g, int64_t c) {
    which[0] = c / g.each % g.each, which[1] = c % g.each, which[2] = c / (g.each * g.each);
    return which;
  }
  // Corner c's weights, or with d their derivatives by the coordinate of dim d.
  WT_INLINE void product(const Grid<T, I>& g, int64_t c, int64_t d, T (&to)[kRun]) {
    taps_at(g, c);
    for (int64_t k = 0; k < g.p.dims; ++k) {
      const T* factor = k == d ? taps[k].slope[which[k]] : taps[k].weight[which[k]];
      for (int64_t r = 0; r < kRun; ++r) to[r] = k ? to[r] * factor[r] : factor[r];
    }
  }
};

// map[at[r]] for a run, 0 where at[r] is -1.
template <class T, class I>
WT_INLINE void read(const T* map, const I* at, T (&to)[kRun]) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4 && sizeof(I) == 4) {
    for (int64_t r = 0; r < kRun; r += 16) {
      const __m512i places = _mm512_loadu_si512(at + r);
      const __mmask16 in = _mm512_cmpge_epi32_mask(places, _mm512_setzero_si512());
      _mm512_storeu_ps(to + r, _mm512_mask_i32gather_ps(_mm512_setzero_ps(), in, places, map, 4));
    }
    return;
  }
#endif
  for (int64_t r = 0; r < kRun; ++r) to[r] = at[r] < 0 ? T(0) : map[at[r]];
}

// Parts of about as much work, whatever the number of threads.
WT_INLINE int64_t grain_of(int64_t steps) { return 65536 / (steps + 1) + 1; }

// f(corners, image, first place, places) for all runs of places.
template <class T, class I, class F>
WT_INLINE void for_runs(const Grid<T, I>& g, F&& f) {
  const GridPlan& p = g.p;
  const int64_t runs = (p.places + kRun - 1) / kRun;
  cpu::parallel_for(p.n * runs, grain_of(kRun * p.channels * g.corners), [&](int64_t begin, int64_t end) {
    Corners<T, I> corners;
    for (int64_t job = begin; job < end; ++job) {
      const int64_t n = job / runs, from = job % runs * kRun;
      const int64_t count = from + kRun < p.places ? kRun : p.places - from;
      corners.find(g, n, from, count);
      f(corners, n, from, count);
    }
  });
}

template <class T, class I>
void sample_of(const GridPlan& p, T* out, const T* x, const T* grid) {
  const Grid<T, I> g{p, grid};
  const int64_t area = p.area();
  for_runs(g, [&](Corners<T, I>& corners, int64_t n, int64_t from, int64_t count) {
    for (int64_t c = n * p.channels; c < (n + 1) * p.channels; ++c) {
      T total[kRun]{}, values[kRun];
      for (int64_t k = 0; k < g.corners; ++k) {
        read(x + c * area, corners.at[k], values);
        for (int64_t r = 0; r < kRun; ++r) total[r] += corners.weight[k][r] * values[r];
      }
      T* to = out + c * p.places + from;
      for (int64_t r = 0; r < count; ++r) to[r] = total[r];
    }
  });
}

// Places share pixels, so a part is some channels of an image: Lanes of them, side by side while they are
// summed.
template <int Lanes, class T, class I>
void input_of(const GridPlan& p, T* grad, const T* up, const T* grid) {
  const Grid<T, I> g{p, grid};
  const int64_t area = p.area(), blocks = (p.channels + Lanes - 1) / Lanes;
  cpu::parallel_for(p.n * blocks, 1, [&](int64_t begin, int64_t end) {
    Corners<T, I> corners;
    T* sums = static_cast<T*>(cpu::thread_scratch(size_t(area * Lanes) * sizeof(T)));
    for (int64_t job = begin; job < end; ++job) {
      const int64_t n = job / blocks, low = job % blocks * Lanes, first = n * p.channels + low;
      const int64_t lanes = low + Lanes < p.channels ? Lanes : p.channels - low;
      for (int64_t i = 0; i < area * Lanes; ++i) sums[i] = 0;
      for (int64_t from = 0; from < p.places; from += kRun) {
        const int64_t count = from + kRun < p.places ? kRun : p.places - from;
        corners.find(g, n, from, count);
        T own[kRun][Lanes];
        for (int64_t r = 0; r < count; ++r)
          for (int64_t c = 0; c < Lanes; ++c)
            own[r][c] = c < lanes ? up[(first + c) * p.places + from + r] : T(0);
        for (int64_t r = 0; r < count; ++r)
          for (int64_t k = 0; k < g.corners; ++k) {
            if (corners.at[k][r] < 0) continue;
            T* to = sums + int64_t(corners.at[k][r]) * Lanes;
            for (int c = 0; c < Lanes; ++c) to[c] += corners.weight[k][r] * own[r][c];
          }
      }
      for (int64_t c = 0; c < lanes; ++c)
        for (int64_t i = 0; i < area; ++i) grad[(first + c) * area + i] = sums[i * Lanes + c];
    }
  });
}

template <class T, class I>
void grid_of(const GridPlan& p, T* grad, const T* up, const T* x, const T* grid) {
  const Grid<T, I> g{p, grid};
  const int64_t area = p.area();
  for_runs(g, [&](Corners<T, I>& corners, int64_t n, int64_t from, int64_t count) {
    T total[kCorners][kRun]{}, values[kRun], own[kRun]{};
    for (int64_t c = n * p.channels; c < (n + 1) * p.channels; ++c) {
      for (int64_t r = 0; r < count; ++r) own[r] = up[c * p.places + from + r];
      for (int64_t k = 0; k < g.corners; ++k) {
        read(x + c * area, corners.at[k], values);
        for (int64_t r = 0; r < kRun; ++r) total[k][r] += own[r] * values[r];
      }
    }
    T* to = grad + (n * p.places + from) * p.dims;
    for (int64_t d = 0; d < p.dims; ++d) {
      T sum[kRun]{}, slope[kRun];
      for (int64_t k = 0; k < g.corners; ++k) {
        corners.product(g, k, d, slope);
        for (int64_t r = 0; r < kRun; ++r) sum[r] += total[k][r] * slope[r];
      }
      for (int64_t r = 0; r < count; ++r) to[r * p.dims + p.dims - 1 - d] = sum[r];
    }
  });
}

// use.operator()<T, I>()
template <class F>
void by_kind(const GridPlan& p, F&& use) {
  if (p.dtype == DType::Float64) return use.template operator()<double, int64_t>();
  if (p.area() <= INT32_MAX) return use.template operator()<float, int32_t>();
  use.template operator()<float, int64_t>();
}

void sample(const LaunchContext&, const GridPlan& p, void* out, const void* x, const void* grid) {
  by_kind(p, [&]<class T, class I>() {
    sample_of<T, I>(p, static_cast<T*>(out), static_cast<const T*>(x), static_cast<const T*>(grid));
  });
}
void input(const LaunchContext&, const GridPlan& p, void* grad, const void* g, const void* grid) {
  by_kind(p, [&]<class T, class I>() {
    const auto run = p.channels <= 4 ? input_of<4, T, I> : input_of<16, T, I>;
    run(p, static_cast<T*>(grad), static_cast<const T*>(g), static_cast<const T*>(grid));
  });
}
void places(const LaunchContext&, const GridPlan& p, void* grad, const void* g, const void* x,
            const void* grid) {
  by_kind(p, [&]<class T, class I>() {
    grid_of<T, I>(p, static_cast<T*>(grad), static_cast<const T*>(g), static_cast<const T*>(x),
                  static_cast<const T*>(grid));
  });
}

}  // namespace

WT_KERNEL(grid_sample, sample);
WT_KERNEL(grid_sample_input, input);
WT_KERNEL(grid_sample_grid, places);

}  // namespace warptape::kernels::WARPTAPE_ISA
