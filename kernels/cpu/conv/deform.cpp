// The columns of a convolution at displaced places, and their gradients. The four pixels around a place and
// their weights are found once for a run of places and serve all channels of the group. Legend: tap one of
// the kernel's, L places of the output.
#include "kernels/dispatch.h"
#include "kernels/extra/vision.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int64_t kRun = 128;      // places at a time
constexpr int64_t kChannels = 16;  // that one part of the input's gradient takes

template <class T>
struct Places {
  int64_t at[4][kRun];  // pixels: above left, above right, below left, below right
  T weight[4][kRun];    // 0 where the pixel, or the place, lies outside of the image; times the mask
  T down[4][kRun], right[4][kRun];  // derivatives of the weights without the mask, by y and by x
};

template <class T>
struct Offsets {
  const DeformPlan& p;
  const T *offset, *mask;
  int64_t taps = p.kernel[0] * p.kernel[1], length = p.out_height * p.out_width;

  // Places [begin, begin + count) of tap `tap` in image n for group `group`. A place is read from above -1 to
  // below the image's size; the derivative there is that of the pixels which exist, so at -1 it is not 0.
  template <bool Derivatives>
  WT_INLINE void find(int64_t n, int64_t group, int64_t tap, int64_t begin, int64_t count, bool masked,
                      Places<T>& to) const {
    const int64_t block = (n * p.groups + group) * taps + tap;
    const T* move = offset + block * 2 * length;
    const int64_t i = tap / p.kernel[1] * p.dilation[0] - p.padding[0],
                  j = tap % p.kernel[1] * p.dilation[1] - p.padding[1];
    for (int64_t r = 0; r < count; ++r) {
      const int64_t l = begin + r;
      const T y = T(l / p.out_width * p.stride[0] + i) + move[l];
      const T x = T(l % p.out_width * p.stride[1] + j) + move[length + l];
      const bool near = y >= T(-1) && y <= T(p.height) && x >= T(-1) && x <= T(p.width);
      const bool read = near && y > T(-1) && y < T(p.height) && x > T(-1) && x < T(p.width);
      const T top = near ? __builtin_floor(y) : T(0), left = near ? __builtin_floor(x) : T(0);
      const T v = (masked && mask ? mask[block * length + l] : T(1)) * T(read);
      const T by[2]{1 - (y - top), y - top}, bx[2]{1 - (x - left), x - left};
      for (int64_t q = 0; q < 4; ++q) {
        const int64_t py = int64_t(top) + q / 2, px = int64_t(left) + q % 2;
        const bool in = near && py >= 0 && py < p.height && px >= 0 && px < p.width;
        to.at[q][r] = in ? py * p.width + px : 0;
        to.weight[q][r] = in && read ? by[q / 2] * bx[q % 2] * v : T(0);
        if constexpr (Derivatives) {
          to.down[q][r] = in ? (q / 2 ? bx[q % 2] : -bx[q % 2]) : T(0);
          to.right[q][r] = in ? (q % 2 ? by[q / 2] : -by[q / 2]) : T(0);
        }
      }
    }
  }
};

template <class T>
void columns_of(const DeformPlan& p, T* columns, const T* x, const T* offset, const T* mask) {
  const Offsets<T> at{p, offset, mask};
  const int64_t area = p.height * p.width, each = p.channels / p.groups;
  const int64_t runs = (at.length + kRun - 1) / kRun;
  cpu::parallel_for(p.n * p.groups * at.taps * runs, 1, [&](int64_t begin, int64_t end) {
    Places<T> places;
    for (int64_t job = begin; job < end; ++job) {
      const int64_t from = job % runs * kRun, tap = job / runs % at.taps;
      const int64_t group = job / runs / at.taps % p.groups, n = job / runs / at.taps / p.groups;
      const int64_t count = from + kRun < at.length ? kRun : at.length - from;
      at.template find<false>(n, group, tap, from, count, true, places);
      for (int64_t c = n * p.channels + group * each; c < n * p.channels + (group + 1) * each; ++c) {
        const T* map = x + c * area;
        T* to = columns + (c * at.taps + tap) * at.length + from;
        for (int64_t r = 0; r < count; ++r)
          to[r] = places.weight[0][r] * map[places.at[0][r]] + places.weight[1][r] * map[places.at[1][r]] +
                  places.weight[2][r] * map[places.at[2][r]] + places.weight[3][r] * map[places.at[3][r]];
      }
    }
  });
}

// Places overlap, so a part is some channels of an image.
template <class T>
void input_of(const DeformPlan& p, T* grad, const T* g, const T* offset, const T* mask) {
  const Offsets<T> at{p, offset, mask};
  const int64_t area = p.height * p.width, each = p.channels / p.groups;
  const int64_t blocks = (each + kChannels - 1) / kChannels;
  cpu::parallel_for(p.n * p.groups * blocks, 1, [&](int64_t begin, int64_t end) {
    Places<T> places;
    for (int64_t job = begin; job < end; ++job) {
      const int64_t group = job / blocks % p.groups, n = job / blocks / p.groups;
      const int64_t base = n * p.channels + group * each, low = job % blocks * kChannels;
      const int64_t high = low + kChannels < each ? low + kChannels : each;
      for (int64_t i = (base + low) * area; i < (base + high) * area; ++i) grad[i] = 0;
      for (int64_t tap = 0; tap < at.taps; ++tap)
        for (int64_t from = 0; from < at.length; from += kRun) {
          const int64_t count = from + kRun < at.length ? kRun : at.length - from;
          at.template find<false>(n, group, tap, from, count, true, places);
          for (int64_t c = base + low; c < base + high; ++c) {
            const T* up = g + (c * at.taps + tap) * at.length + from;
            T* to = grad + c * area;
            for (int64_t r = 0; r < count; ++r)
              for (int64_t q = 0; q < 4; ++q) to[places.at[q][r]] += places.weight[q][r] * up[r];
          }
        }
    }
  });
}

template <class T>
void places_of(const DeformPlan& p, T* grad_offset, T* grad_mask, const T* g, const T* x, const T* offset,
               const T* mask) {
  const Offsets<T> at{p, offset, mask};
  const int64_t area = p.height * p.width, each = p.channels / p.groups;
  const int64_t runs = (at.length + kRun - 1) / kRun;
  cpu::parallel_for(p.n * p.groups * at.taps * runs, 1, [&](int64_t begin, int64_t end) {
    Places<T> places;
    for (int64_t job = begin; job < end; ++job) {
      const int64_t from = job % runs * kRun, block = job / runs, tap = block % at.taps;
      const int64_t group = block / at.taps % p.groups, n = block / at.taps / p.groups;
      const int64_t count = from + kRun < at.length ? kRun : at.length - from;
      at.template find<true>(n, group, tap, from, count, false, places);
      T by_y[kRun]{}, by_x[kRun]{}, by_mask[kRun]{};
      for (int64_t c = n * p.channels + group * each; c < n * p.channels + (group + 1) * each; ++c) {
        const T *map = x + c * area, *up = g + (c * at.taps + tap) * at.length + from;
        for (int64_t r = 0; r < count; ++r)
          for (int64_t q = 0; q < 4; ++q) {
            const T term = up[r] * map[places.at[q][r]];
            by_y[r] += places.down[q][r] * term;
            by_x[r] += places.right[q][r] * term;
            by_mask[r] += places.weight[q][r] * term;
          }
      }
      for (int64_t r = 0; r < count; ++r) {
        const T v = mask ? mask[block * at.length + from + r] : T(1);
        grad_offset[block * 2 * at.length + from + r] = v * by_y[r];
        grad_offset[(block * 2 + 1) * at.length + from + r] = v * by_x[r];
        if (grad_mask) grad_mask[block * at.length + from + r] = by_mask[r];
      }
    }
  });
}

void columns(const LaunchContext&, const DeformPlan& p, void* out, const void* x, const void* offset,
             const void* mask) {
  dispatch(Types<float, double>{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    columns_of(p, static_cast<T*>(out), static_cast<const T*>(x), static_cast<const T*>(offset),
               static_cast<const T*>(mask));
  });
}
void input(const LaunchContext&, const DeformPlan& p, void* grad, const void* g, const void* offset,
           const void* mask) {
  dispatch(Types<float, double>{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    input_of(p, static_cast<T*>(grad), static_cast<const T*>(g), static_cast<const T*>(offset),
             static_cast<const T*>(mask));
  });
}
void places(const LaunchContext&, const DeformPlan& p, void* grad_offset, void* grad_mask, const void* g,
            const void* x, const void* offset, const void* mask) {
  dispatch(Types<float, double>{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    places_of(p, static_cast<T*>(grad_offset), static_cast<T*>(grad_mask), static_cast<const T*>(g),
              static_cast<const T*>(x), static_cast<const T*>(offset), static_cast<const T*>(mask));
  });
}

}  // namespace

WT_KERNEL(deform_columns, columns);
WT_KERNEL(deform_input, input);
WT_KERNEL(deform_places, places);

}  // namespace warptape::kernels::WARPTAPE_ISA
