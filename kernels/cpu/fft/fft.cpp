// Fourier transforms. Lines lie side by side in the lanes of vectors and go through Stockham's steps
// together, so that no step needs a shuffle; a long line is cut into a matrix, of which first the columns,
// then the rows are such lines (Bailey 1990, "FFTs in external or hierarchical memory", four-step). A length
// with a large prime factor becomes a convolution. The inverse is the transform with both parts swapped.
#include "kernels/fft/fft.h"

#include "kernels/cpu/fft/fft_lanes.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

using cpu::FftPlan;

constexpr int64_t kShort = 512;      // up to here whole lines go side by side, wherever they lie
constexpr int64_t kUneven = 2048;    // up to here, too, where a matrix would leave many lanes empty
constexpr int64_t kMiddle = 8192;    // up to here, too, where they lie side by side in memory
constexpr int64_t kGrain = 1 << 15;  // elements that are worth a task

enum class Kind { Complex, ToHalf, FromHalf };

template <class T>
struct Transform {
  const FftPlan<T>& plan;  // for ToHalf and FromHalf of half the length: pairs of reals are complex numbers
  Kind kind;
  bool swapped;
  T scale;
};

// One of the two tensors, [outer, size, inner].
template <class T>
struct Side {
  T* data;
  bool real;
  int64_t size, inner;

  // The line (o, i); its neighbours are those with other i, or with other o.
  WT_INLINE Place<T> line(int64_t o, int64_t i, bool along_inner) const {
    const int64_t item = real ? 1 : 2;
    T* re = data + item * (o * size * inner + i);
    return {re, re + (real ? inner : 1), 2 * inner, item * (along_inner ? 1 : size * inner)};
  }
};

template <class T>
constexpr int64_t kLanes = Vec<T>::kLanes;

// Bytes of scratch for the lanes of vectors, twice, with room for one more element.
template <class T>
WT_INLINE size_t lanes_bytes(int64_t n) {
  return size_t(4 * (n + 1)) * sizeof(Vec<T>);
}
// The same for line(), or for convolved_line().
template <class T>
size_t line_bytes(const FftPlan<T>& p) {
  if (p.padded) return line_bytes(*p.padded) + size_t(4 * p.padded->n) * sizeof(T);
  return lanes_bytes<T>(!p.rows ? p.n : p.columns > p.rows ? p.columns : p.rows);
}

template <class T>
void short_lines(const Transform<T>& t, const Place<T>& in, const Place<T>& out, int lanes, char* work) {
  const int64_t n = t.plan.n;
  Lanes<T> x = lanes_at<T>(work, n + 1), y = lanes_at<T>(work + 2 * size_t(n + 1) * sizeof(Vec<T>), n + 1);
  load(in, x, t.kind == Kind::FromHalf ? n + 1 : n, lanes);
  if (t.kind == Kind::FromHalf) convert_half<FromHalf>(n, t.plan.half, x);
  if (t.swapped) x = x.swapped();
  x = run_steps(t.plan, x, y);
  if (t.swapped) x = x.swapped();
  if (t.kind == Kind::ToHalf) convert_half<ToHalf>(n, t.plan.half, x);
  store(x, out, t.kind == Kind::ToHalf ? n + 1 : n, lanes, t.scale);
}

// Calls f(group, lanes) for groups of up to kLanes neighbours that cover [0, n).
template <class T, class F>
WT_FN void group(int64_t n, int64_t g, F&& f) {
  const int64_t first = g * kLanes<T>, left = n - first;
  f(first, int(left < kLanes<T> ? left : kLanes<T>));
}
template <class T>
WT_INLINE int64_t groups(int64_t n) {
  return (n + kLanes<T> - 1) / kLanes<T>;
}

// each(n, f) calls f(0, work) .. f(n - 1, work). Between its halves the line lies in `out`, [columns, rows].
template <class T, class Each>
WT_FN void long_line(const FftPlan<T>& p, const Place<T>& in, const Place<T>& out, bool swapped, T scale,
                     Each&& each) {
  each(groups<T>(p.columns), [&](int64_t g, char* work) {
    group<T>(p.columns, g, [&](int64_t c, int lanes) {
      Lanes<T> x = lanes_at<T>(work, p.rows),
               y = lanes_at<T>(work + 2 * size_t(p.rows) * sizeof(Vec<T>), p.rows);
      load(in.moved(c * in.step, in.step * p.columns, in.step), x, p.rows, lanes);
      x = run_steps(*p.of_columns, swapped ? x.swapped() : x, y);
      for (int64_t r = 1; r < p.rows; ++r) {
        const int64_t at = r * p.columns + c;
        const Vec<T> wr = load_some(p.turn_re + at, lanes), wi = load_some(p.turn_im + at, lanes);
        turn(x.re[r], x.im[r], wr, wi);
      }
      store(x, out.moved(c * p.rows * out.step, out.step, p.rows * out.step), p.rows, lanes, T(1));
    });
  });
  each(groups<T>(p.rows), [&](int64_t g, char* work) {
    group<T>(p.rows, g, [&](int64_t r, int lanes) {
      const int64_t n = p.columns;
      Lanes<T> x = lanes_at<T>(work, n), y = lanes_at<T>(work + 2 * size_t(n) * sizeof(Vec<T>), n);
      const Place<T> place = out.moved(r * out.step, p.rows * out.step, out.step);
      load(place, x, n, lanes);
      x = run_steps(*p.of_rows, x, y);
      store(swapped ? x.swapped() : x, place, n, lanes, scale);
    });
  });
}

// A line of a plan that has steps, in this thread.
template <class T>
void line(const FftPlan<T>& p, const Place<T>& in, const Place<T>& out, bool swapped, T scale, char* work) {
  if (!p.rows) return short_lines(Transform<T>{p, Kind::Complex, swapped, scale}, in, out, 1, work);
  long_line(p, in, out, swapped, scale, [&](int64_t n, auto&& f) {
    for (int64_t g = 0; g < n; ++g, cpu::poll_interrupt()) f(g, work);
  });
}

// x[k] w[k], summed as a convolution with the conjugate chirp: j k = (j^2 + k^2 - (k - j)^2) / 2.
template <class T>
void convolved_line(const FftPlan<T>& p, const Place<T>& in, const Place<T>& out, bool swapped, T scale,
                    char* work) {
  const FftPlan<T>& padded = *p.padded;
  const int64_t m = padded.n;
  T *a = reinterpret_cast<T*>(work + line_bytes(padded)), *b = a + 2 * m;
  const Place<T> at_a{a, a + 1, 2, 0}, at_b{b, b + 1, 2, 0};
  const T* w = p.chirp;
  for (int64_t k = 0; k < p.n; ++k) {
    const T re = (swapped ? in.im : in.re)[k * in.step], im = (swapped ? in.re : in.im)[k * in.step];
    a[2 * k] = re * w[2 * k] - im * w[2 * k + 1];
    a[2 * k + 1] = re * w[2 * k + 1] + im * w[2 * k];
  }
  std::memset(a + 2 * p.n, 0, size_t(2 * (m - p.n)) * sizeof(T));
  line(padded, at_a, at_b, false, T(1), work);
  for (int64_t k = 0; k < m; ++k) {
    const T re = b[2 * k], im = b[2 * k + 1], *f = p.filter + 2 * k;
    b[2 * k] = re * f[0] - im * f[1];
    b[2 * k + 1] = re * f[1] + im * f[0];
  }
  line(padded, at_b, at_a, true, scale / T(m), work);
  for (int64_t k = 0; k < p.n; ++k) {
    const T re = a[2 * k], im = a[2 * k + 1];
    (swapped ? out.im : out.re)[k * out.step] = re * w[2 * k] - im * w[2 * k + 1];
    (swapped ? out.re : out.im)[k * out.step] = re * w[2 * k + 1] + im * w[2 * k];
  }
}

template <class T>
void copy(const Place<T>& from, const Place<T>& to, int64_t n) {
  for (int64_t k = 0; k < n; ++k) {
    to.re[k * to.step] = from.re[k * from.step];
    to.im[k * to.step] = from.im[k * from.step];
  }
}

// The lines one by one, each in one task, or a few long ones with all threads in each.
template <class T>
void line_by_line(const LaunchContext& ctx, const Transform<T>& t, const Side<T>& in, const Side<T>& out,
                  int64_t lines) {
  const FftPlan<T>& p = t.plan;
  const size_t bytes = line_bytes(p);
  const bool packs = t.kind == Kind::FromHalf || (t.kind == Kind::ToHalf && in.inner > 1);
  T* packed = packs ? static_cast<T*>(ctx.scratch(size_t(lines * (p.n + 1)) * 2 * sizeof(T))) : nullptr;
  auto run = [&](int64_t q, auto&& transform) {
    const Place<T> from = in.line(q / in.inner, q % in.inner, true);
    const Place<T> to = out.line(q / out.inner, q % out.inner, true);
    if (t.kind == Kind::Complex) return transform(from, to);
    T* z = packs ? packed + q * 2 * (p.n + 1) : to.re;
    const Place<T> half{z, z + 1, 2, 0};
    if (t.kind == Kind::FromHalf) {
      copy(from, half, p.n + 1);
      convert_half<FromHalf>(p.n, p.half, z);
      return transform(half, to);
    }
    transform(from, half);
    convert_half<ToHalf>(p.n, p.half, z);
    if (packs) copy(half, to, p.n + 1);
  };
  if (p.rows && lines < 8) {
    for (int64_t q = 0; q < lines; ++q)
      run(q, [&](const Place<T>& from, const Place<T>& to) {
        long_line(p, from, to, t.swapped, t.scale, [&](int64_t n, auto&& f) {
          cpu::parallel_for(n, kGrain / (p.n / n) + 1, [&](int64_t b, int64_t e) {
            char* work = static_cast<char*>(cpu::thread_scratch(bytes));
            for (int64_t g = b; g < e; ++g) f(g, work);
          });
        });
      });
    return;
  }
  cpu::parallel_for(lines, kGrain / p.n + 1, [&](int64_t b, int64_t e) {
    char* work = static_cast<char*>(cpu::thread_scratch(bytes));
    for (int64_t q = b; q < e; ++q) {
      if (q > b) cpu::poll_interrupt();
      run(q, [&](const Place<T>& from, const Place<T>& to) {
        (p.padded ? convolved_line<T> : line<T>)(p, from, to, t.swapped, t.scale, work);
      });
    }
  });
}

template <class T>
void side_by_side(const Transform<T>& t, const Side<T>& in, const Side<T>& out, int64_t outer) {
  const int64_t inner = in.inner;
  const bool along_inner = inner >= kLanes<T> || inner >= outer;
  const int64_t across = along_inner ? inner : outer, others = along_inner ? outer : inner;
  const int64_t each = groups<T>(across);
  cpu::parallel_for(others * each, kGrain / (t.plan.n * kLanes<T>)+1, [&](int64_t b, int64_t e) {
    char* work = static_cast<char*>(cpu::thread_scratch(lanes_bytes<T>(t.plan.n)));
    for (int64_t u = b; u < e; ++u) {
      if (u % 64 == 63) cpu::poll_interrupt();
      group<T>(across, u % each, [&](int64_t first, int lanes) {
        const int64_t o = along_inner ? u / each : first, i = along_inner ? first : u / each;
        short_lines(t, in.line(o, i, along_inner), out.line(o, i, along_inner), lanes, work);
      });
    }
  });
}

template <class T>
void transform(const LaunchContext& ctx, const View& out, const View& in, int dim, bool forward,
               double scale) {
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < in.ndim; ++d)
    if (d != dim) (d < dim ? outer : inner) *= in.sizes[d];
  const bool from_real = !is_complex(in.dtype), to_real = !is_complex(out.dtype);
  const Side<T> source{in.as<T>(), from_real, in.sizes[dim], inner};
  const Side<T> target{out.as<T>(), to_real, out.sizes[dim], inner};
  const int64_t n = from_real ? source.size / 2 : to_real ? target.size / 2 : source.size;
  const cpu::FftPlanOf<T> plan(n);
  const Kind kind = from_real ? Kind::ToHalf : to_real ? Kind::FromHalf : Kind::Complex;
  const Transform<T> t{*plan, kind, !forward, T(scale)};
  const bool neighbours = inner >= kLanes<T> && n <= kMiddle;
  const bool uneven = (*plan).rows % kLanes<T> || (*plan).columns % kLanes<T>;
  if ((*plan).steps && (n <= kShort || (uneven && n <= kUneven) || neighbours || !(*plan).rows))
    side_by_side(t, source, target, outer);
  else
    line_by_line(ctx, t, source, target, outer * inner);
}

void fft(const LaunchContext& ctx, const View& out, const View& in, int dim, bool forward, double scale) {
  if (out.numel() == 0) return;
  const bool wide = out.dtype == DType::Complex128 || out.dtype == DType::Float64;
  (wide ? transform<double> : transform<float>)(ctx, out, in, dim, forward, scale);
}
WT_KERNEL(fft, fft);

}  // namespace
}  // namespace warptape::kernels::WARPTAPE_ISA
