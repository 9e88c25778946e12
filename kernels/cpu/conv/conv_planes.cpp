// Convolution, row-major, where each channel has its own kernel: no matrix product, but sums of shifted rows
// of one image, which is copied into a frame of zeros (see ConvFrame). Vectors lie along the output's rows.
#include "kernels/conv/conv.h"

#include "kernels/cpu/conv/conv_columns.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/vector/rows.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

// A thread's frame of F's and one channel's weights.
template <class F, class C>
struct Plane {
  const ConvFrame& f;
  const int64_t taps = f.taps, height = f.p.out[0], width = f.p.out[1];
  const int64_t in_size = f.p.in[0] * f.p.in[1], out_size = height * width;
  const int64_t row_step = f.p.stride[0] * f.phases * f.steps;  // in the frame, of a row of the output
  // Rows of the output are read in whole groups of vectors.
  const int64_t frame_size = f.channel_size() + 4 * Vec<C>::kLanes;
  char* memory = static_cast<char*>(cpu::thread_scratch(size_t(
      ConvTables::size(f, taps, 0) * 8 + taps * int64_t(sizeof(C)) + 64 + frame_size * int64_t(sizeof(F)))));
  int64_t* offsets = reinterpret_cast<int64_t*>(memory);  // of every tap in the frame
  ConvTables tables{f, taps, offsets};
  C* weight = reinterpret_cast<C*>(offsets + ConvTables::size(f, taps, 0));
  F* frame = reinterpret_cast<F*>(weight + (taps + 1) / 2 * 2);

  explicit Plane(const ConvFrame& of) : f(of) { clear(); }
  void clear() { std::memset(static_cast<void*>(frame), 0, frame_size * sizeof(F)); }
  template <class T>
  void take_weight(const T* from) {
    for (int64_t k = 0; k < taps; ++k) weight[k] = C(Compute<T>(from[k]));
  }
};

template <int kWide, class T, class C = Compute<T>>
WT_FN void sum_row(const Plane<T, C>& p, T* out, const T* row, C bias) {
  constexpr int kLanes = Vec<C>::kLanes;
  for (int64_t x = 0; x < p.width; x += kWide * kLanes) {
    Vec<C> sum[kWide];
    for (Vec<C>& s : sum) s = Vec<C>(bias);
    for (int64_t k = 0; k < p.taps; ++k) {
      const Vec<C> w(p.weight[k]);
      for (int i = 0; i < kWide; ++i)
        sum[i] = fma(w, load(row + p.offsets[k] + x + i * kLanes, AllLanes{}), sum[i]);
    }
    for (int i = 0; i < kWide; ++i) {
      const int64_t at = x + i * kLanes, left = p.width - at;
      if (left >= kLanes)
        store(out + at, sum[i], AllLanes{});
      else if (left > 0)
        store(out + at, sum[i], FirstLanes{int(left)});
    }
  }
}

void conv_planes(const LaunchContext&, const ConvPlan& plan, void* out, const void* in, const void* weight,
                 const void* bias) {
  dispatch(FloatTypes{}, plan.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const ConvFrame f(plan);
    const int64_t channels = plan.in_channels;
    cpu::parallel_for(plan.batch * channels, row_grain(plan.out[0] * plan.out[1] * f.taps),
                      [&](int64_t begin, int64_t end) {
                        Plane<T, C> p(f);
                        for (int64_t i = begin; i < end; ++i) {
                          p.take_weight(static_cast<const T*>(weight) + i % channels * p.taps);
                          p.tables.load(p.frame, static_cast<const T*>(in) + i * p.in_size, 1);
                          const C offset =
                              bias ? C(Compute<T>(static_cast<const T*>(bias)[i % channels])) : C(0);
                          T* to = static_cast<T*>(out) + i * p.out_size;
                          for (int64_t y = 0; y < p.height; ++y) {
                            const T* row = p.frame + y * p.row_step;
                            if (p.width > 2 * Vec<C>::kLanes)
                              sum_row<4>(p, to + y * p.width, row, offset);
                            else
                              sum_row<1>(p, to + y * p.width, row, offset);
                          }
                        }
                      });
  });
}

// Rows are added tap by tap: a row that was just stored would still be on its way to memory.
void conv_planes_backward_input(const LaunchContext&, const ConvPlan& plan, void* grad_in,
                                const void* grad_out, const void* weight) {
  dispatch(FloatTypes{}, plan.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const ConvFrame f(plan);
    const int64_t channels = plan.in_channels;
    cpu::parallel_for(plan.batch * channels, row_grain(plan.out[0] * plan.out[1] * f.taps),
                      [&](int64_t begin, int64_t end) {
                        Plane<C, C> p(f);
                        for (int64_t i = begin; i < end; ++i) {
                          p.take_weight(static_cast<const T*>(weight) + i % channels * p.taps);
                          p.clear();
                          const T* from = static_cast<const T*>(grad_out) + i * p.out_size;
                          for (int64_t k = 0; k < p.taps; ++k)
                            for (int64_t y = 0; y < p.height; ++y) {
                              C* row = p.frame + y * p.row_step + p.offsets[k];
                              for_vectors<C>(p.width, [&](int64_t x, auto lanes) {
                                const Vec<C> g = load(from + y * p.width + x, lanes);
                                store(row + x, fma(Vec<C>(p.weight[k]), g, load(row + x, lanes)), lanes);
                              });
                            }
                          p.tables.store(static_cast<T*>(grad_in) + i * p.in_size, p.frame, 1);
                        }
                      });
  });
}

// weight[k] += the inner product of the gradient and the frame at tap k, for some taps from `first` on.
template <int kTaps, class T, class C = Compute<T>>
WT_FN void add_products(const Plane<T, C>& p, const T* grad, int64_t first) {
  Vec<C> sum[kTaps];
  for (Vec<C>& s : sum) s = Vec<C>(C(0));
  for (int64_t y = 0; y < p.height; ++y) {
    const T* row = p.frame + y * p.row_step;
    for_vectors<C>(p.width, [&](int64_t x, auto lanes) {
      const Vec<C> g = load(grad + y * p.width + x, lanes);
      for (int k = 0; k < kTaps; ++k) sum[k] = fma(g, load(row + p.offsets[first + k] + x, lanes), sum[k]);
    });
  }
  for (int k = 0; k < kTaps; ++k) p.weight[first + k] += sum_lanes(sum[k]);
}

// A task has channels, whose images follow each other.
void conv_planes_backward_weight(const LaunchContext&, const ConvPlan& plan, void* grad_weight,
                                 const void* grad_out, const void* in) {
  dispatch(FloatTypes{}, plan.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const ConvFrame f(plan);
    const int64_t channels = plan.in_channels, work = plan.batch * plan.out[0] * plan.out[1] * f.taps;
    cpu::parallel_for(channels, row_grain(work), [&](int64_t begin, int64_t end) {
      Plane<T, C> p(f);
      for (int64_t c = begin; c < end; ++c) {
        for (int64_t k = 0; k < p.taps; ++k) p.weight[k] = 0;
        for (int64_t n = 0; n < plan.batch; ++n) {
          p.tables.load(p.frame, static_cast<const T*>(in) + (n * channels + c) * p.in_size, 1);
          const T* g = static_cast<const T*>(grad_out) + (n * channels + c) * p.out_size;
          int64_t k = 0;
          for (; k + 4 <= p.taps; k += 4) add_products<4>(p, g, k);
          for (; k < p.taps; ++k) add_products<1>(p, g, k);
        }
        for (int64_t k = 0; k < p.taps; ++k) static_cast<T*>(grad_weight)[c * p.taps + k] = T(p.weight[k]);
      }
    });
  });
}

}  // namespace

WT_KERNEL(conv_planes, conv_planes);
WT_KERNEL(conv_planes_backward_input, conv_planes_backward_input);
WT_KERNEL(conv_planes_backward_weight, conv_planes_backward_weight);

}  // namespace warptape::kernels::WARPTAPE_ISA
