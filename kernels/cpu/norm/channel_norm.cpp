// Group and batch norm of [batch, channels, inner]. Both are an affine map per channel with statistics over a
// group of channels or over the batch. Where inner is 1, vectors lie across the channels.
#include "kernels/norm/norm.h"

#include "kernels/cpu/vector/rows.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

using cpu::parallel_for;

template <class C>
WT_FN C inverse_std(C variance, double eps) {
  return C(1) / C(__builtin_sqrt(variance + C(eps)));
}

template <class T>
WT_FN Compute<T> sum_of(const T* x, int64_t n) {
  return sum_vectors<Compute<T>>(n, [&](int64_t i, auto lanes) { return load(x + i, lanes); });
}
template <class T>
WT_FN Compute<T> squares_around(const T* x, int64_t n, Compute<T> mean) {
  using C = Compute<T>;
  return sum_vectors<C>(n, [&](int64_t i, auto lanes) {
    const Vec<C> v = keep<C>(load(x + i, lanes) - Vec<C>(mean), lanes);
    return v * v;
  });
}
// Of n elements: the sum of dy, and the sum of dy * (x - mean).
template <class C>
struct GradSums {
  C dy, dy_x;
};
template <class T>
WT_FN GradSums<Compute<T>> grad_sums(const T* dy, const T* x, int64_t n, Compute<T> mean) {
  using C = Compute<T>;
  struct Both {
    Vec<C> a, b;
  };
  const Both s = fold_vectors<C>(
      n, Both{Vec<C>(0), Vec<C>(0)},
      [&](Both& acc, int64_t i, auto lanes) {
        const Vec<C> g = load(dy + i, lanes);
        acc.a += g;
        acc.b = fma(g, load(x + i, lanes) - Vec<C>(mean), acc.b);
      },
      [](Both a, Both b) { return Both{a.a + b.a, a.b + b.b}; });
  return {sum_lanes(s.a), sum_lanes(s.b)};
}

template <class T>
WT_FN void affine(T* y, const T* x, int64_t n, Compute<T> factor, Compute<T> offset) {
  using C = Compute<T>;
  for_vectors<C>(n, [&](int64_t i, auto lanes) {
    store(y + i, fma(load(x + i, lanes), Vec<C>(factor), Vec<C>(offset)), lanes);
  });
}
// dx = a * dy + b * x + c
template <class T>
WT_FN void affine2(T* dx, const T* dy, const T* x, int64_t n, Compute<T> a, Compute<T> b, Compute<T> c) {
  using C = Compute<T>;
  for_vectors<C>(n, [&](int64_t i, auto lanes) {
    const Vec<C> v = fma(load(x + i, lanes), Vec<C>(b), Vec<C>(c));
    store(dx + i, fma(load(dy + i, lanes), Vec<C>(a), v), lanes);
  });
}

// ---- group norm ----

void group_norm(const LaunchContext& ctx, const View& y, const View& mean, const View& rstd, const View& x,
                const View& weight, const View& bias, int64_t batch, int64_t channels, int64_t inner,
                int64_t groups, double eps) {
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const C* w = in_compute<C>(ctx, weight, channels);
    const C* b = in_compute<C>(ctx, bias, channels);
    const int64_t per = channels / groups, n = per * inner;
    parallel_for(batch * groups, row_grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        const T* from = x.as<T>() + g * n;
        const C m = sum_of(from, n) / C(n);
        const C s = inverse_std(squares_around(from, n, m) / C(n), eps);
        mean.as<C>()[g] = m;
        rstd.as<C>()[g] = s;
        for (int64_t k = 0; k < per; ++k) {
          const int64_t c = g % groups * per + k;
          const C factor = w ? w[c] * s : s;
          affine(y.as<T>() + g * n + k * inner, from + k * inner, inner, factor,
                 (b ? b[c] : C(0)) - m * factor);
        }
      }
    });
  });
}

void group_norm_backward(const LaunchContext& ctx, const View& dx, const View& dweight, const View& dbias,
                         const View& dy, const View& x, const View& mean, const View& rstd,
                         const View& weight, int64_t batch, int64_t channels, int64_t inner, int64_t groups) {
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const C* w = in_compute<C>(ctx, weight, channels);
    const int64_t per = channels / groups, n = per * inner;
    auto* sums = static_cast<GradSums<C>*>(ctx.scratch((batch * channels + 1) * sizeof(GradSums<C>)));
    parallel_for(batch * groups, row_grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        const C m = mean.as<C>()[g], s = rstd.as<C>()[g];
        C a = 0, b = 0;  // over the group: sums of dy * w and dy * w * h
        for (int64_t k = 0; k < per; ++k) {
          const int64_t at = g * n + k * inner, c = g % groups * per + k;
          GradSums<C> sum = grad_sums(dy.as<T>() + at, x.as<T>() + at, inner, m);
          sum.dy_x *= s;
          sums[g * per + k] = sum;
          a += w ? sum.dy * w[c] : sum.dy;
          b += w ? sum.dy_x * w[c] : sum.dy_x;
        }
        if (!dx.data) continue;
        for (int64_t k = 0; k < per; ++k) {
          const int64_t at = g * n + k * inner, c = g % groups * per + k;
          const C slope = -b / C(n) * s * s;
          affine2(dx.as<T>() + at, dy.as<T>() + at, x.as<T>() + at, inner, w ? w[c] * s : s, slope,
                  -a / C(n) * s - slope * m);
        }
      }
    });
    for (int64_t c = 0; c < channels; ++c) {
      C a = 0, b = 0;
      for (int64_t i = 0; i < batch; ++i) {
        a += sums[i * channels + c].dy;
        b += sums[i * channels + c].dy_x;
      }
      if (dweight.data) store_as(dweight, c, b);
      if (dbias.data) store_as(dbias, c, a);
    }
  });
}

// ---- batch norm ----

// Where inner is 1, two sums per channel of each block of rows: blocks are small enough to stay in the cache
// for a second look, and are cut by size alone. sum(to, row, rows) adds to [2, channels].
template <class C>
struct RowBlocks {
  int64_t rows, channels;
  int64_t step = 65536 / (channels + 1) / 4 * 4 + 4;
  int64_t count = (rows + step - 1) / step;
  C* sums = nullptr;

  template <class F>
  WT_FN void run(const LaunchContext& ctx, F&& sum) {
    sums = static_cast<C*>(ctx.scratch((count * 2 * channels + 1) * sizeof(C)));
    parallel_for(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        C* to = sums + i * 2 * channels;
        for (int64_t c = 0; c < 2 * channels; ++c) to[c] = 0;
        sum(to, i * step, rows_of(i));
      }
    });
  }
  WT_INLINE int64_t rows_of(int64_t i) const { return i + 1 < count ? step : rows - i * step; }
  WT_INLINE C at(int64_t i, int64_t which, int64_t c) const { return sums[(2 * i + which) * channels + c]; }
};

// to[c] += the sum of f(index of an element, lanes) over the rows from `at` on.
template <class C, class F>
WT_FN void add_rows(C* to, int64_t at, int64_t rows, int64_t channels, F&& f) {
  for (; rows >= 4; rows -= 4, at += 4 * channels)
    for_vectors<C>(channels, [&](int64_t c, auto lanes) {
      const int64_t i = at + c;
      const Vec<C> sum = (f(c, i, lanes) + f(c, i + channels, lanes)) +
                         (f(c, i + 2 * channels, lanes) + f(c, i + 3 * channels, lanes));
      store(to + c, load(to + c, lanes) + sum, lanes);
    });
  for (; rows > 0; --rows, at += channels)
    for_vectors<C>(channels, [&](int64_t c, auto lanes) {
      store(to + c, load(to + c, lanes) + f(c, at + c, lanes), lanes);
    });
}

template <class C>
void move_running(const View& running, int64_t c, C value, double momentum) {
  if (!running.data) return;
  dispatch(FloatTypes{}, running.dtype, [&](auto t) {
    using R = typename decltype(t)::type;
    R& r = running.as<R>()[c];
    r = R(static_cast<Compute<R>>((1 - momentum) * double(Compute<R>(r)) + momentum * double(value)));
  });
}

void batch_norm_stats(const LaunchContext& ctx, const View& mean, const View& rstd, const View& running_mean,
                      const View& running_var, const View& x, int64_t batch, int64_t channels, int64_t inner,
                      double momentum, double eps) {
  const int64_t count = batch * inner;
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const T* px = x.as<T>();
    auto finish = [&](int64_t c, C m, C squares) {
      mean.as<C>()[c] = m;
      rstd.as<C>()[c] = inverse_std(squares / C(count), eps);
      move_running(running_mean, c, m, momentum);
      move_running(running_var, c, squares / C(count - 1), momentum);
    };
    if (inner == 1) {
      // Of each block the mean and the squares around it, which are then moved to the mean of all.
      RowBlocks<C> blocks{batch, channels};
      blocks.run(ctx, [&](C* to, int64_t row, int64_t rows) {
        add_rows(to, row * channels, rows, channels,
                 [&](int64_t, int64_t i, auto lanes) { return load(px + i, lanes); });
        for (int64_t c = 0; c < channels; ++c) to[c] /= C(rows);
        add_rows(to + channels, row * channels, rows, channels, [&](int64_t c, int64_t i, auto lanes) {
          const Vec<C> v = load(px + i, lanes) - load(to + c, lanes);
          return v * v;
        });
      });
      for (int64_t c = 0; c < channels; ++c) {
        C sum = 0, squares = 0;
        for (int64_t i = 0; i < blocks.count; ++i) sum += blocks.at(i, 0, c) * C(blocks.rows_of(i));
        const C m = sum / C(count);
        for (int64_t i = 0; i < blocks.count; ++i) {
          const C away = blocks.at(i, 0, c) - m;
          squares += blocks.at(i, 1, c) + C(blocks.rows_of(i)) * away * away;
        }
        finish(c, m, squares);
      }
      return;
    }
    parallel_for(channels, row_grain(batch * inner), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        C sum = 0, squares = 0;
        for (int64_t b = 0; b < batch; ++b) sum += sum_of(px + (b * channels + c) * inner, inner);
        const C m = sum / C(count);
        for (int64_t b = 0; b < batch; ++b)
          squares += squares_around(px + (b * channels + c) * inner, inner, m);
        finish(c, m, squares);
      }
    });
  });
}

// Outlined, so that one piece of code rounds them for both kernels.
template <class C>
WT_FN_OUTLINED void coefficients(const LaunchContext& ctx, C* factor, C* offset, const View& mean,
                                 const View& rstd, const View& weight, const View& bias, int64_t channels) {
  const C* w = in_compute<C>(ctx, weight, channels);
  const C* b = in_compute<C>(ctx, bias, channels);
  for (int64_t c = 0; c < channels; ++c) {
    factor[c] = w ? w[c] * rstd.as<C>()[c] : rstd.as<C>()[c];
    offset[c] = (b ? b[c] : C(0)) - mean.as<C>()[c] * factor[c];
  }
}

void batch_norm_coefficients(const LaunchContext& ctx, const View& factor, const View& offset,
                             const View& mean, const View& rstd, const View& weight, const View& bias,
                             int64_t channels) {
  dispatch(FloatTypes{}, factor.dtype, [&](auto t) {
    using C = Compute<typename decltype(t)::type>;
    coefficients(ctx, factor.as<C>(), offset.as<C>(), mean, rstd, weight, bias, channels);
  });
}

// Coefficients per channel, [channels] each, then an affine map of every row.
void batch_norm_apply(const LaunchContext& ctx, const View& y, const View& x, const View& mean,
                      const View& rstd, const View& weight, const View& bias, int64_t batch, int64_t channels,
                      int64_t inner) {
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    C* factor = static_cast<C*>(ctx.scratch((2 * channels + 1) * sizeof(C)));
    C* offset = factor + channels;
    coefficients(ctx, factor, offset, mean, rstd, weight, bias, channels);
    T* py = y.as<T>();
    const T* px = x.as<T>();
    if (inner == 1) {
      parallel_for(batch, row_grain(channels), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          for_vectors<C>(channels, [&](int64_t c, auto lanes) {
            const int64_t at = r * channels + c;
            store(py + at, fma(load(px + at, lanes), load(factor + c, lanes), load(offset + c, lanes)),
                  lanes);
          });
      });
      return;
    }
    parallel_for(batch * channels, row_grain(inner), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        affine(py + r * inner, px + r * inner, inner, factor[r % channels], offset[r % channels]);
    });
  });
}

// dx = a * dy + b * x + k with coefficients [3, channels].
template <class T>
void input_gradient(const View& dx, const View& dy, const View& x, const Compute<T>* a, int64_t batch,
                    int64_t channels, int64_t inner) {
  using C = Compute<T>;
  const C *b = a + channels, *k = b + channels;
  T* to = dx.as<T>();
  const T *g = dy.as<T>(), *from = x.as<T>();
  if (inner == 1) {
    parallel_for(batch, row_grain(channels), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        for_vectors<C>(channels, [&](int64_t c, auto lanes) {
          const int64_t at = r * channels + c;
          const Vec<C> v = fma(load(from + at, lanes), load(b + c, lanes), load(k + c, lanes));
          store(to + at, fma(load(g + at, lanes), load(a + c, lanes), v), lanes);
        });
    });
    return;
  }
  parallel_for(batch * channels, row_grain(inner), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t c = r % channels, at = r * inner;
      affine2(to + at, g + at, from + at, inner, a[c], b[c], k[c]);
    }
  });
}

void batch_norm_backward(const LaunchContext& ctx, const View& dx, const View& dweight, const View& dbias,
                         const View& dy, const View& x, const View& mean, const View& rstd,
                         const View& weight, int64_t batch, int64_t channels, int64_t inner, bool train) {
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const C* w = in_compute<C>(ctx, weight, channels);
    const T *g = dy.as<T>(), *from = x.as<T>();
    const C *m = mean.as<C>(), *s = rstd.as<C>();
    C* a = static_cast<C*>(ctx.scratch((3 * channels + 1) * sizeof(C)));
    const C count = C(batch * inner);
    auto finish = [&](int64_t c, C sum_dy, C sum_dy_x) {
      const C sum_dy_h = sum_dy_x * s[c];
      if (dweight.data) store_as(dweight, c, sum_dy_h);
      if (dbias.data) store_as(dbias, c, sum_dy);
      const C scale_by = w ? w[c] * s[c] : s[c];
      const C slope = train ? -scale_by * s[c] * sum_dy_h / count : C(0);
      a[c] = scale_by;
      a[channels + c] = slope;
      a[2 * channels + c] = train ? -scale_by * sum_dy / count - slope * m[c] : C(0);
    };
    if (inner == 1) {
      RowBlocks<C> blocks{batch, channels};
      blocks.run(ctx, [&](C* to, int64_t row, int64_t rows) {
        add_rows(to, row * channels, rows, channels,
                 [&](int64_t, int64_t i, auto lanes) { return load(g + i, lanes); });
        add_rows(to + channels, row * channels, rows, channels, [&](int64_t c, int64_t i, auto lanes) {
          return load(g + i, lanes) * (load(from + i, lanes) - load(m + c, lanes));
        });
      });
      for (int64_t c = 0; c < channels; ++c) {
        C sum_dy = 0, sum_dy_x = 0;
        for (int64_t i = 0; i < blocks.count; ++i) {
          sum_dy += blocks.at(i, 0, c);
          sum_dy_x += blocks.at(i, 1, c);
        }
        finish(c, sum_dy, sum_dy_x);
      }
    } else {
      parallel_for(channels, row_grain(batch * inner), [&](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; ++c) {
          C sum_dy = 0, sum_dy_x = 0;
          for (int64_t b = 0; b < batch; ++b) {
            const int64_t at = (b * channels + c) * inner;
            const GradSums<C> sums = grad_sums(g + at, from + at, inner, m[c]);
            sum_dy += sums.dy;
            sum_dy_x += sums.dy_x;
          }
          finish(c, sum_dy, sum_dy_x);
        }
      });
    }
    if (dx.data) input_gradient<T>(dx, dy, x, a, batch, channels, inner);
  });
}

}  // namespace

WT_KERNEL(group_norm, group_norm);
WT_KERNEL(group_norm_backward, group_norm_backward);
WT_KERNEL(batch_norm_stats, batch_norm_stats);
WT_KERNEL(batch_norm_coefficients, batch_norm_coefficients);
WT_KERNEL(batch_norm_apply, batch_norm_apply);
WT_KERNEL(batch_norm_backward, batch_norm_backward);

}  // namespace warptape::kernels::WARPTAPE_ISA
