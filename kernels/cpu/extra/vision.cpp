// Object detection: suppression of boxes, and regions pooled into bins. Legend: K regions, C channels, (i, j)
// a bin, (y, x) a pixel of a map.
#include "kernels/extra/vision.h"

#include "kernels/dispatch.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

template <class T> WT_INLINE T least(T a, T b) { return b < a ? b : a; }
template <class T> WT_INLINE T most(T a, T b) { return a < b ? b : a; }

// Items of a part, each of about `each` steps.
WT_INLINE int64_t grain_of(int64_t each) { return 16384 / (each + 1) + 1; }

// ---- nms -----------------------------------------------------------------------------------------------

// The largest T that is not above x: for a T, to be above it or above x is the same.
template <class T>
WT_INLINE T rounded_down(double x) {
  T t = T(x);
  if constexpr (sizeof(T) == 4) {
    if (double(t) > x) t = __builtin_nextafterf(t, -__builtin_inff());
  }
  return t;
}

template <class T>
struct Boxes {
  const T *x1, *y1, *x2, *y2, *area;
  T threshold;

  // Marks those of [begin, end) that box i overlaps. The quotient of an empty union is NaN, above nothing.
  WT_INLINE void suppress(int64_t i, int64_t begin, int64_t end, uint8_t* dead) const {
    const T l = x1[i], t = y1[i], r = x2[i], b = y2[i], own = area[i];
    for (int64_t j = begin; j < end; ++j) {
      const T w = most(T(0), least(r, x2[j]) - most(l, x1[j]));
      const T h = most(T(0), least(b, y2[j]) - most(t, y1[j]));
      const T shared = w * h;
      dead[j] |= uint8_t(shared / (own + area[j] - shared) > threshold);
    }
  }
};

// Boxes are taken in blocks: one after the other within a block, then all that it keeps against all behind
// it, which are independent of each other.
template <class T>
int64_t nms_of(int64_t n, const T* at, double threshold, int64_t* kept, T* area, uint8_t* dead) {
  constexpr int64_t kBlock = 64;
  const Boxes<T> b{at, at + n, at + 2 * n, at + 3 * n, area, rounded_down<T>(threshold)};
  for (int64_t i = 0; i < n; ++i) area[i] = (b.x2[i] - b.x1[i]) * (b.y2[i] - b.y1[i]), dead[i] = 0;
  int64_t count = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = least(begin + kBlock, n), first = count;
    for (int64_t i = begin; i < end; ++i) {
      if (dead[i]) continue;
      kept[count++] = i;
      b.suppress(i, i + 1, end, dead);
    }
    cpu::parallel_for(n - end, grain_of((count - first) / 4), [&](int64_t from, int64_t to) {
      for (int64_t k = first; k < count; ++k) b.suppress(kept[k], end + from, end + to, dead);
    });
  }
  return count;
}

int64_t nms(const LaunchContext&, DType dtype, int64_t n, const void* boxes, double threshold, int64_t* kept,
            void* areas, uint8_t* dead) {
  int64_t count = 0;
  dispatch(Types<float, double>{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    count = nms_of(n, static_cast<const T*>(boxes), threshold, kept, static_cast<T*>(areas), dead);
  });
  return count;
}

// ---- bins that are weighted sums -----------------------------------------------------------------------

struct Span {
  int64_t begin, end;
};

// The columns that the bins of region k read.
WT_INLINE Span columns_of(const RoiBins& p, int64_t k) {
  Span s{p.width, 0};
  for (int64_t e = p.x.first[k * p.columns]; e < p.x.first[(k + 1) * p.columns]; ++e)
    s = {least(s.begin, p.x.place[e]), most(s.end, p.x.place[e] + 1)};
  return s;
}

// One channel of region k: rows are summed first, into `line` [width], and then read at the columns.
template <class T>
WT_INLINE void pool_bins(const RoiBins& p, int64_t k, Span s, const T* map, T* out, T* __restrict line) {
  for (int64_t i = 0; i < p.rows; ++i, out += p.columns) {
    for (int64_t x = s.begin; x < s.end; ++x) line[x] = 0;
    for (int64_t e = p.y.first[k * p.rows + i]; e < p.y.first[k * p.rows + i + 1]; ++e) {
      const T w = T(p.y.weight[e]);
      const T* from = map + p.y.place[e] * p.width;
      for (int64_t x = s.begin; x < s.end; ++x) line[x] += w * from[x];
    }
    for (int64_t j = 0; j < p.columns; ++j) {
      T sum = 0;
      for (int64_t e = p.x.first[k * p.columns + j]; e < p.x.first[k * p.columns + j + 1]; ++e)
        sum += T(p.x.weight[e]) * line[p.x.place[e]];
      out[j] = sum;
    }
  }
}

// Its transpose: adds to `map`.
template <class T>
WT_INLINE void spread_bins(const RoiBins& p, int64_t k, Span s, const T* g, T* map, T* __restrict line) {
  for (int64_t i = 0; i < p.rows; ++i, g += p.columns) {
    for (int64_t x = s.begin; x < s.end; ++x) line[x] = 0;
    for (int64_t j = 0; j < p.columns; ++j)
      for (int64_t e = p.x.first[k * p.columns + j]; e < p.x.first[k * p.columns + j + 1]; ++e)
        line[p.x.place[e]] += T(p.x.weight[e]) * g[j];
    for (int64_t e = p.y.first[k * p.rows + i]; e < p.y.first[k * p.rows + i + 1]; ++e) {
      const T w = T(p.y.weight[e]);
      T* __restrict to = map + p.y.place[e] * p.width;
      for (int64_t x = s.begin; x < s.end; ++x) to[x] += w * line[x];
    }
  }
}

// Calls f(offset in the map, weight) for the pixels of bin (i, j) of region k.
template <class F>
WT_INLINE void each_pixel(const RoiBins& p, int64_t k, int64_t i, int64_t j, F f) {
  for (int64_t a = p.y.first[k * p.rows + i]; a < p.y.first[k * p.rows + i + 1]; ++a)
    for (int64_t b = p.x.first[k * p.columns + j]; b < p.x.first[k * p.columns + j + 1]; ++b)
      f(p.y.place[a] * p.width + p.x.place[b], p.y.weight[a] * p.x.weight[b]);
}

template <class T>
void roi_bins_of(const RoiBins& p, T* out, const T* maps) {
  const int64_t area = p.height * p.width, bins = p.rows * p.columns;
  const int64_t channels = p.by_position ? p.channels / bins : p.channels;
  cpu::parallel_for(p.regions * channels, grain_of(8 * bins), [&](int64_t begin, int64_t end) {
    T* line = static_cast<T*>(cpu::thread_scratch(size_t(p.width) * sizeof(T)));
    Span s{};
    for (int64_t at = begin; at < end; ++at) {
      const int64_t k = at / channels, c = at % channels;
      const T* image = maps + p.image[k] * p.channels * area;
      T* to = out + at * bins;
      if (!p.by_position) {
        if (at == begin || c == 0) s = columns_of(p, k);
        pool_bins(p, k, s, image + c * area, to, line);
        continue;
      }
      for (int64_t bin = 0; bin < bins; ++bin) {
        const T* map = image + (c * bins + bin) * area;
        T sum = 0;
        each_pixel(p, k, bin / p.columns, bin % p.columns,
                   [&](int64_t pixel, double w) { sum += T(w) * map[pixel]; });
        to[bin] = sum;
      }
    }
  });
}

// Regions overlap, so a part is a number of maps, to which all regions of their image add.
template <class T>
void roi_bins_backward_of(const RoiBins& p, T* maps, const T* g) {
  const int64_t area = p.height * p.width, bins = p.rows * p.columns;
  const int64_t channels = p.by_position ? p.channels / bins : p.channels;
  const int64_t each = p.by_position ? 8 : 8 * bins;
  cpu::parallel_for(p.images * p.channels, grain_of(area + p.regions * each),
                    [&](int64_t begin, int64_t end) {
                      T* line = static_cast<T*>(cpu::thread_scratch(size_t(p.width) * sizeof(T)));
                      for (int64_t at = begin; at < end; ++at) {
                        const int64_t image = at / p.channels, c = at % p.channels;
                        T* map = maps + at * area;
                        for (int64_t x = 0; x < area; ++x) map[x] = 0;
                        for (int64_t k = 0; k < p.regions; ++k) {
                          if (p.image[k] != image) continue;
                          if (!p.by_position) {
                            spread_bins(p, k, columns_of(p, k), g + (k * channels + c) * bins, map, line);
                            continue;
                          }
                          const int64_t bin = c % bins;
                          const T up = g[k * p.channels + c];
                          each_pixel(p, k, bin / p.columns, bin % p.columns,
                                     [&](int64_t pixel, double w) { map[pixel] += T(w) * up; });
                        }
                      }
                    });
}

void roi_bins(const LaunchContext&, const RoiBins& p, void* out, const void* in) {
  dispatch(Types<float, double>{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    roi_bins_of(p, static_cast<T*>(out), static_cast<const T*>(in));
  });
}
void roi_bins_backward(const LaunchContext&, const RoiBins& p, void* out, const void* in) {
  dispatch(Types<float, double>{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    roi_bins_backward_of(p, static_cast<T*>(out), static_cast<const T*>(in));
  });
}

// ---- bins that are maxima ------------------------------------------------------------------------------

template <class T>
void roi_max_of(const RoiWindows& p, T* out, int32_t* place, const T* maps) {
  const int64_t area = p.height * p.width, bins = p.rows * p.columns;
  cpu::parallel_for(p.regions * p.channels, grain_of(8 * bins), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t k = at / p.channels, c = at % p.channels;
      const T* map = maps + (p.image[k] * p.channels + c) * area;
      for (int64_t bin = 0; bin < bins; ++bin) {
        const int64_t* ys = p.y + (k * p.rows + bin / p.columns) * 2;
        const int64_t* xs = p.x + (k * p.columns + bin % p.columns) * 2;
        const bool none = ys[1] <= ys[0] || xs[1] <= xs[0];
        // The lowest finite number: what is not above it, as a NaN, is not found.
        T best = none ? T(0) : sizeof(T) == 4 ? T(-__FLT_MAX__) : T(-__DBL_MAX__);
        int64_t found = -1;
        for (int64_t y = ys[0]; y < ys[1]; ++y)
          for (int64_t x = xs[0]; x < xs[1]; ++x)
            if (map[y * p.width + x] > best) best = map[y * p.width + x], found = y * p.width + x;
        out[at * bins + bin] = best;
        place[at * bins + bin] = int32_t(found);
      }
    }
  });
}

void roi_max(const LaunchContext&, const RoiWindows& p, void* out, int32_t* place, const void* maps) {
  dispatch(Types<float, double>{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    roi_max_of(p, static_cast<T*>(out), place, static_cast<const T*>(maps));
  });
}

}  // namespace

WT_KERNEL(nms, nms);
WT_KERNEL(roi_bins, roi_bins);
WT_KERNEL(roi_bins_backward, roi_bins_backward);
WT_KERNEL(roi_max, roi_max);

}  // namespace warptape::kernels::WARPTAPE_ISA
