// Convolution with channels innermost where each channel has its own kernel: vectors lie across the channels.
#include "kernels/conv/conv.h"

#include "kernels/cpu/vector/rows.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

// Weights [C, KH, KW] as rows of channels, in the compute type.
template <class T>
Compute<T>* by_tap(const LaunchContext& ctx, const ConvPlan& p, const T* weight) {
  const int64_t taps = p.kernel[0] * p.kernel[1], n = p.in_channels;
  auto* rows = static_cast<Compute<T>*>(ctx.scratch((taps * n + 1) * sizeof(Compute<T>)));
  for (int64_t c = 0; c < n; ++c)
    for (int64_t k = 0; k < taps; ++k) rows[k * n + c] = Compute<T>(weight[c * taps + k]);
  return rows;
}

// What one element of a dim of the result sums: element `at` of the operand times kernel element `tap`.
struct Term {
  int64_t at, tap;
};

// Each pixel of `to` [batch, size] is the sum over the terms of both dims, terms(dim, position, out) ->
// count.
template <class T, class F>
void sum_terms(const ConvPlan& p, const int64_t (&size)[2], const int64_t (&from_size)[2], T* to,
               const T* from, const Compute<T>* weight, const Compute<T>* bias, F&& terms) {
  using C = Compute<T>;
  const int64_t n = p.in_channels, most = p.kernel[0] * p.kernel[1];
  const int64_t bytes = (p.kernel[0] + p.kernel[1] + most) * int64_t(sizeof(Term));
  cpu::parallel_for(p.batch * size[0], row_grain(size[1] * n * most), [&](int64_t begin, int64_t end) {
    auto* down = static_cast<Term*>(cpu::thread_scratch(size_t(bytes)));
    Term *along = down + p.kernel[0], *both = along + p.kernel[1];
    for (int64_t row = begin; row < end; ++row) {
      const T* image = from + row / size[0] * from_size[0] * from_size[1] * n;
      const int64_t downs = terms(0, row % size[0], down);
      for (int64_t x = 0; x < size[1]; ++x) {
        const int64_t alongs = terms(1, x, along), count = downs * alongs;
        for (int64_t i = 0; i < count; ++i) {
          const Term &y = down[i / alongs], &z = along[i % alongs];
          both[i] = {(y.at * from_size[1] + z.at) * n, (y.tap * p.kernel[1] + z.tap) * n};
        }
        T* out = to + (row * size[1] + x) * n;
        for_vectors<C>(n, [&](int64_t c, auto lanes) {
          Vec<C> sum = bias ? load(bias + c, lanes) : Vec<C>(C(0));
          for (const Term* t = both; t < both + count; ++t)
            sum = fma(load(image + t->at + c, lanes), load(weight + t->tap + c, lanes), sum);
          store(out + c, sum, lanes);
        });
      }
    }
  });
}

void conv_depthwise(const LaunchContext& ctx, const ConvPlan& p, void* out, const void* in,
                    const void* weight, const void* bias) {
  dispatch(FloatTypes{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    C* offsets = nullptr;
    if (bias) {
      offsets = static_cast<C*>(ctx.scratch((p.in_channels + 1) * sizeof(C)));
      for (int64_t c = 0; c < p.in_channels; ++c) offsets[c] = C(static_cast<const T*>(bias)[c]);
    }
    sum_terms(p, p.out, p.in, static_cast<T*>(out), static_cast<const T*>(in),
              by_tap(ctx, p, static_cast<const T*>(weight)), offsets, [&](int d, int64_t i, Term* to) {
                int64_t count = 0;
                for (int64_t k = 0; k < p.kernel[d]; ++k) {
                  const int64_t at = i * p.stride[d] - p.padding[d] + k * p.dilation[d];
                  if (at >= 0 && at < p.in[d]) to[count++] = {at, k};
                }
                return count;
              });
  });
}

void conv_depthwise_backward_input(const LaunchContext& ctx, const ConvPlan& p, void* grad_in,
                                   const void* grad_out, const void* weight) {
  dispatch(FloatTypes{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Compute<T>* none = nullptr;
    sum_terms(p, p.in, p.out, static_cast<T*>(grad_in), static_cast<const T*>(grad_out),
              by_tap(ctx, p, static_cast<const T*>(weight)), none, [&](int d, int64_t i, Term* to) {
                int64_t count = 0;
                for (int64_t k = 0; k < p.kernel[d]; ++k) {
                  const int64_t at = i + p.padding[d] - k * p.dilation[d];
                  if (at >= 0 && at % p.stride[d] == 0 && at / p.stride[d] < p.out[d])
                    to[count++] = {at / p.stride[d], k};
                }
                return count;
              });
  });
}

// Sums over blocks of the output's rows, cut by size alone; the blocks are added in order.
void conv_depthwise_backward_weight(const LaunchContext& ctx, const ConvPlan& p, void* grad_weight,
                                    const void* grad_out, const void* in) {
  dispatch(FloatTypes{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const int64_t n = p.in_channels, taps = p.kernel[0] * p.kernel[1], rows = p.batch * p.out[0];
    const int64_t step = (rows + 31) / 32, blocks = step ? (rows + step - 1) / step : 0, line = p.in[1] * n;
    auto* sums = static_cast<C*>(ctx.scratch((blocks * taps * n + 1) * sizeof(C)));
    cpu::parallel_for(blocks, row_grain(step * p.out[1] * n * taps), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        C* sum = sums + i * taps * n;
        for (int64_t k = 0; k < taps * n; ++k) sum[k] = 0;
        for (int64_t row = i * step; row < (i + 1) * step && row < rows; ++row) {
          const T* g = static_cast<const T*>(grad_out) + row * p.out[1] * n;
          const T* image = static_cast<const T*>(in) + row / p.out[0] * p.in[0] * line;
          for (int64_t k = 0; k < taps; ++k) {
            const int64_t y = row % p.out[0] * p.stride[0] - p.padding[0] + k / p.kernel[1] * p.dilation[0];
            if (y < 0 || y >= p.in[0]) continue;
            const int64_t shift = k % p.kernel[1] * p.dilation[1] - p.padding[1];
            int64_t first = 0, last = p.out[1];
            while (first < last && first * p.stride[1] + shift < 0) ++first;
            while (first < last && (last - 1) * p.stride[1] + shift >= p.in[1]) --last;
            for_vectors<C>(n, [&](int64_t c, auto lanes) {
              Vec<C> total = load(sum + k * n + c, lanes);
              const T* x = image + y * line + c;
              for (int64_t j = first; j < last; ++j)
                total =
                    fma(load(g + j * n + c, lanes), load(x + (j * p.stride[1] + shift) * n, lanes), total);
              store(sum + k * n + c, total, lanes);
            });
          }
        }
      }
    });
    for (int64_t c = 0; c < n; ++c)
      for (int64_t k = 0; k < taps; ++k) {
        C total = 0;
        for (int64_t i = 0; i < blocks; ++i) total += sums[(i * taps + k) * n + c];
        static_cast<T*>(grad_weight)[c * taps + k] = T(total);
      }
  });
}

}  // namespace

WT_KERNEL(conv_depthwise, conv_depthwise);
WT_KERNEL(conv_depthwise_backward_input, conv_depthwise_backward_input);
WT_KERNEL(conv_depthwise_backward_weight, conv_depthwise_backward_weight);

}  // namespace warptape::kernels::WARPTAPE_ISA
