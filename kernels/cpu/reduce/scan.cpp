// Running reductions along one dim. Lines along the last dim are walked one by one; along an outer dim many
// lines that lie side by side advance together. Each line is summed in order, so results do not depend on
// threads.

#include "kernels/cpu/reduce/reduce.h"
#include "kernels/linalg/products.h"
#include "kernels/runtime/interrupt.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

// x as packed memory in T, in scratch unless it is so already.
template <class T>
const T* packed_as(const LaunchContext& ctx, const View& x) {
  const int64_t n = x.numel();
  if (x.dtype == dtype_of<T> && x.contiguous()) return x.as<const T>();
  T* values = static_cast<T*>(ctx.scratch(size_t(n) * sizeof(T)));
  Geometry g = geometry_of(x, x);  // nothing is reduced
  const Dim& row = g.kept[g.kept_dims - 1];
  ConvertFn* convert = converter(x.dtype, dtype_of<T>);
  cpu::parallel_for(n / row.size, kReduceGrain / row.size + 1, [&](int64_t b, int64_t e) {
    alignas(64) char raw[kRowBlock * 8];
    for (int64_t r = b; r < e; ++r) {
      int64_t ignored;
      const char* p = g.data + locate(g.kept, g.kept_dims - 1, r, &ignored);
      cpu::in_pieces(row.size, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i += kRowBlock) {
          const int64_t m = end - i < kRowBlock ? end - i : kRowBlock;
          gather(m, raw, p + i * row.stride, row.stride, size_t(g.item));
          convert(m, values + r * row.size + i, raw);
        }
      });
    }
  });
  return values;
}

struct Lines {
  int64_t outer, length, inner;  // of the contiguous tensor: [outer, length, inner]
};
Lines lines_of(const View& x, int dim) {
  Lines l{1, 1, 1};
  for (int d = 0; d < x.ndim; ++d) (d < dim ? l.outer : d == dim ? l.length : l.inner) *= x.sizes[d];
  return l;
}

constexpr int64_t kBand = 256;  // neighbouring lines that advance together

// Calls f(first element, lines side by side) for every band of lines.
template <class F>
WT_FN void for_each_band(const Lines& l, F&& f) {
  const int64_t bands = (l.inner + kBand - 1) / kBand;
  const int64_t cost = l.length * (l.inner < kBand ? l.inner : kBand);
  cpu::parallel_for(l.outer * bands, kReduceGrain / (cost + 1) + 1, [&](int64_t b, int64_t e) {
    for (int64_t u = b; u < e; ++u) {
      const int64_t first = u % bands * kBand;
      f(u / bands * l.length * l.inner + first, l.inner - first < kBand ? l.inner - first : kBand);
    }
  });
}

// A running sum in float would gather an error at every step.
template <class T> struct RunningOf {
  using type = T;
};
template <> struct RunningOf<float> {
  using type = double;
};
template <class T> using Running = typename RunningOf<T>::type;

struct Plus {
  template <class T> WT_FN static T start() { return T(0); }
  template <class T> WT_FN static T apply(T a, T b) { return a + b; }
};
struct Times {
  template <class T> WT_FN static T start() { return T(1); }
  template <class T> WT_FN static T apply(T a, T b) { return a * b; }
};
struct LogAdd {
  template <class T> WT_FN static T start() { return -T(__builtin_inf()); }
  template <class T> WT_FN static T apply(T a, T b) {
    if (a != a || b != b) return a + b;
    const T top = a > b ? a : b, low = a > b ? b : a;
    if (top - top != T(0)) return top;
    return top + T(__builtin_log1p(__builtin_exp(double(low) - double(top))));
  }
};

// kWidth lines that lie side by side, in registers.
template <class Op, int kWidth, class T>
WT_FN void scan_line(const T* x, T* y, int64_t length) {
  using R = Running<T>;
  R r[kWidth];
  for (int i = 0; i < kWidth; ++i) r[i] = Op::template start<R>();
  cpu::in_pieces(length, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin * kWidth; k < end * kWidth; k += kWidth)
      for (int i = 0; i < kWidth; ++i) {
        r[i] = Op::apply(r[i], R(x[k + i]));
        y[k + i] = T(r[i]);
      }
  });
}

template <class Op>
void scan(const LaunchContext& ctx, const View& out, const View& in, int dim) {
  const Lines l = lines_of(in, dim);
  const int64_t n = in.numel();
  if (n == 0) return;
  dispatch_compute(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* x = packed_as<T>(ctx, in);
    with_results<T>(ctx, out, n, [&](T* y) {
      for_each_band(l, [&](int64_t first, int64_t width) {
        if (l.inner == 1) return scan_line<Op, 1>(x + first, y + first, l.length);
        if (l.inner == 2) return scan_line<Op, 2>(x + first, y + first, l.length);
        Running<T> run[kBand];
        for (int64_t i = 0; i < width; ++i) run[i] = Op::template start<Running<T>>();
        cpu::in_pieces(l.length, [&](int64_t begin, int64_t end) {
          for (int64_t k = begin; k < end; ++k) {
            const T* xs = x + first + k * l.inner;
            T* ys = y + first + k * l.inner;
            for (int64_t i = 0; i < width; ++i) {
              run[i] = Op::apply(run[i], Running<T>(xs[i]));
              ys[i] = T(run[i]);
            }
          }
        });
      });
    });
  });
}

// Of complex numbers, which are packed.
template <class T>
void complex_products(const View& out, const View& in, const Lines& l) {
  const auto* x = in.as<const Complex<T>>();
  auto* y = out.as<Complex<T>>();
  cpu::parallel_for(l.outer * l.inner, kReduceGrain / (8 * l.length + 1) + 1, [&](int64_t b, int64_t e) {
    for (int64_t u = b; u < e; ++u) {
      const int64_t first = u / l.inner * l.length * l.inner + u % l.inner;
      double re = 1, im = 0;
      cpu::in_pieces(l.length, [&](int64_t begin, int64_t end) {
        for (int64_t k = first + begin * l.inner; k < first + end * l.inner; k += l.inner) {
          const double real = re * x[k].re - im * x[k].im;
          im = re * x[k].im + im * x[k].re;
          re = real;
          y[k] = Complex<T>(T(re), T(im));
        }
      });
    }
  });
}

void cumprod(const LaunchContext& ctx, const View& out, const View& in, int dim) {
  if (out.dtype != DType::Complex64 && out.dtype != DType::Complex128) return scan<Times>(ctx, out, in, dim);
  if (in.numel() == 0) return;
  const Lines l = lines_of(in, dim);
  out.dtype == DType::Complex64 ? complex_products<float>(out, in, l) : complex_products<double>(out, in, l);
}

// With z_i the product before x_i, dx_i = z_i * t_i, where t_i = g_i + x_(i+1) * t_(i+1). Both are run at
// once, from either end of the lines, `step` between the elements of one and `next` between lines: each is
// stored up to the middle, and multiplies what it meets behind it. No element is divided by, for it may be 0.
template <int kLines, class T>
WT_FN void product_gradients(T* dx, const T* __restrict g, const T* __restrict x, int64_t length,
                             int64_t step, int64_t next) {
  using R = Running<T>;
  R before[kLines], after[kLines];
  for (int l = 0; l < kLines; ++l) before[l] = 1, after[l] = g ? R(0) : R(1);
  cpu::in_pieces(length, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const bool first = 2 * k < length, last = 2 * k + 1 < length;
      const int64_t i = k * step, j = (length - 1 - k) * step;
      for (int l = 0; l < kLines; ++l) {
        dx[i + l * next] = T(before[l] * (first ? R(1) : R(dx[i + l * next])));
        before[l] *= R(x[i + l * next]);
      }
      for (int l = 0; l < kLines; ++l) {
        if (g) after[l] += R(g[j + l * next]);
        dx[j + l * next] = T(after[l] * (last ? R(1) : R(dx[j + l * next])));
        after[l] *= R(x[j + l * next]);
      }
    }
  });
}

void cumprod_backward(const LaunchContext& ctx, const View& dx, const View& dout, const View& x, int dim) {
  const Lines l = lines_of(x, dim);
  const int64_t n = x.numel(), count = l.outer * l.inner;
  if (n == 0) return;
  dispatch(Types<float, double>{}, x.dtype == DType::Float64 ? DType::Float64 : DType::Float32,
           [&](auto tag) {
             using T = typename decltype(tag)::type;
             const T* from = packed_as<T>(ctx, x);
             const T* g = dout.data ? packed_as<T>(ctx, dout) : nullptr;
             with_results<T>(ctx, dx, n, [&](T* to) {
               auto lines = [&](int64_t first, auto many, int64_t next) {
                 const int64_t at = first / l.inner * l.length * l.inner + first % l.inner;
                 product_gradients<decltype(many)::value>(to + at, g ? g + at : g, from + at, l.length,
                                                          l.inner, next);
               };
               // Neighbours advance together: of the rows any, else those side by side.
               constexpr std::integral_constant<int, 4> kRows;
               constexpr std::integral_constant<int, 16> kColumns;
               constexpr std::integral_constant<int, 1> kOne;
               cpu::parallel_for(count, kReduceGrain / l.length / 16 * 16 + 16, [&](int64_t u, int64_t end) {
                 while (u < end) {
                   if (l.inner == 1 && u + 4 <= end)
                     lines(u, kRows, l.length), u += 4;
                   else if (u % l.inner + 16 <= l.inner && u + 16 <= end)
                     lines(u, kColumns, 1), u += 16;
                   else
                     lines(u, kOne, 1), u += 1;
                 }
               });
             });
           });
}

struct Ascending {
  template <class T> WT_FN static bool takes(T v, T best) { return v >= best; }
};
struct Descending {
  template <class T> WT_FN static bool takes(T v, T best) { return v <= best; }
};

// One line: a new best value is rare in most data, so values are compared with it in runs.
template <class Order, class T>
WT_FN void scan_index_line(const T* x, T* y, int64_t* places, int64_t length) {
  constexpr int64_t kRun = 16;
  using Flag = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  T best = x[0];
  int64_t at = 0;
  const auto takes = [](T v, T b) __attribute__((always_inline)) { return v != v || Order::takes(v, b); };
  const auto step = [&](int64_t k) __attribute__((always_inline)) {
    if (takes(x[k], best)) {
      best = x[k];
      at = k;
    }
    y[k] = best;
    places[k] = at;
  };
  cpu::in_pieces(length, [&](int64_t begin, int64_t end) {
    int64_t k = begin;
    for (; k + kRun <= end; k += kRun) {
      Flag some = 0;
      for (int64_t i = 0; i < kRun; ++i) some |= Flag(takes(x[k + i], best));
      if (some) {
        for (int64_t i = 0; i < kRun; ++i) step(k + i);
        continue;
      }
      for (int64_t i = 0; i < kRun; ++i) y[k + i] = best;
      for (int64_t i = 0; i < kRun; ++i) places[k + i] = at;
    }
    for (; k < end; ++k) step(k);
  });
}

// Calls f with a tag of the type in which values of `dtype` are compared.
template <class F>
WT_FN void dispatch_ordered(DType dtype, F&& f) {
  if (!try_dispatch(Types<int32_t, int16_t, int8_t, uint8_t>{}, dtype, f))
    dtype == DType::Bool ? f(Tag<uint8_t>{}) : dispatch_compute(dtype, f);
}

template <class Order>
void scan_index(const LaunchContext& ctx, const View& values, const View& indices, const View& in, int dim) {
  const Lines l = lines_of(in, dim);
  const int64_t n = in.numel();
  if (n == 0) return;
  dispatch_ordered(values.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* x = packed_as<T>(ctx, in);
    int64_t* places = indices.as<int64_t>();
    with_results<T>(ctx, values, n, [&](T* y) {
      for_each_band(l, [&](int64_t first, int64_t width) {
        if (l.inner == 1) return scan_index_line<Order>(x + first, y + first, places + first, l.length);
        for (int64_t i = 0; i < width; ++i) {
          y[first + i] = x[first + i];
          places[first + i] = 0;
        }
        cpu::in_pieces(l.length - 1, [&](int64_t begin, int64_t end) {
          for (int64_t k = begin + 1; k < end + 1; ++k) {
            for (int64_t i = first + k * l.inner; i < first + k * l.inner + width; ++i) {
              const T before = y[i - l.inner];
              const bool take = x[i] != x[i] || (before == before && Order::template takes<T>(x[i], before));
              y[i] = take ? x[i] : before;
              places[i] = take ? k : places[i - l.inner];
            }
          }
        });
      });
    });
  });
}

WT_KERNEL(cumsum, scan<Plus>);
WT_KERNEL(cumprod, cumprod);
WT_KERNEL(cumprod_backward, cumprod_backward);
WT_KERNEL(logcumsumexp, scan<LogAdd>);
WT_KERNEL(cummax, scan_index<Ascending>);
WT_KERNEL(cummin, scan_index<Descending>);

}  // namespace
}  // namespace warptape::kernels::WARPTAPE_ISA
