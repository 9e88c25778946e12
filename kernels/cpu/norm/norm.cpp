// Layer and RMS norm, by rows. The gradients of weight and bias are sums over rows: each fixed block of rows
// adds up its part in a buffer of its own, and the parts are added in order.
#include "kernels/norm/norm.h"

#include "kernels/cpu/vector/rows.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

using cpu::parallel_for;

// kCentered: the mean is subtracted (layer norm), or not (RMS norm).
template <class T, bool kCentered>
struct Forward {
  using C = Compute<T>;
  T* y;
  const T* x;
  C* mean;
  C* rstd;
  const C* weight;
  const C* bias;
  int64_t n;
  C eps;

  void row(int64_t r) const {
    const T* from = x + r * n;
    T* to = y + r * n;
    C m = 0;
    if constexpr (kCentered)
      m = sum_vectors<C>(n, [&](int64_t i, auto lanes) { return load(from + i, lanes); }) / C(n);
    const Vec<C> center(m);
    const C squares = sum_vectors<C>(n, [&](int64_t i, auto lanes) {
      Vec<C> v = load(from + i, lanes);
      if constexpr (kCentered) v = keep<C>(v - center, lanes);
      return v * v;
    });
    const C s = C(1) / C(__builtin_sqrt(squares / C(n) + eps));
    if (mean) mean[r] = m;
    if (rstd) rstd[r] = s;
    const Vec<C> factor(s);
    // One loop for each of the cases, so that the common ones carry no tests.
    auto normal = [&](int64_t i, auto lanes) { return (load(from + i, lanes) - center) * factor; };
    if (weight && bias)
      for_vectors<C>(n, [&](int64_t i, auto lanes) {
        store(to + i, fma(normal(i, lanes), load(weight + i, lanes), load(bias + i, lanes)), lanes);
      });
    else if (weight)
      for_vectors<C>(n, [&](int64_t i, auto l) { store(to + i, normal(i, l) * load(weight + i, l), l); });
    else if (bias)
      for_vectors<C>(n, [&](int64_t i, auto l) { store(to + i, normal(i, l) + load(bias + i, l), l); });
    else
      for_vectors<C>(n, [&](int64_t i, auto l) { store(to + i, normal(i, l), l); });
  }
};

template <bool kCentered>
void forward(const LaunchContext& ctx, const View& y, const View& mean, const View& rstd, const View& x,
             const View& weight, const View& bias, int64_t rows, int64_t n, double eps) {
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const Forward<T, kCentered> f{y.as<T>(),
                                  x.as<T>(),
                                  kCentered ? mean.as<C>() : nullptr,
                                  rstd.as<C>(),
                                  in_compute<C>(ctx, weight, n),
                                  kCentered ? in_compute<C>(ctx, bias, n) : nullptr,
                                  n,
                                  C(eps)};
    parallel_for(rows, row_grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) f.row(r);
    });
  });
}

// With h = (x - mean) * rstd and g = dy * weight: dx = rstd * (g - mean(g) - h * mean(g * h)), dweight = sum
// of dy * h, dbias = sum of dy.
template <class T, bool kCentered>
struct Backward {
  using C = Compute<T>;
  T* dx;
  const T* dy;
  const T* x;
  const C* mean;
  const C* rstd;
  const C* weight;
  int64_t n;

  struct Sums {
    Vec<C> g, gh;
  };

  // kParts: also adds to the partial dweight and dbias.
  template <bool kParts>
  void row(int64_t r, C* dweight, C* dbias) const {
    const T* from = x + r * n;
    const T* g_in = dy + r * n;
    const Vec<C> center(kCentered ? mean[r] : C(0)), factor(rstd[r]), zero(C(0));
    auto pass = [&](auto weighted) {
      return fold_vectors<C>(
          n, Sums{zero, zero},
          [&](Sums& s, int64_t i, auto lanes) {
            const Vec<C> up = load(g_in + i, lanes);
            const Vec<C> h = (load(from + i, lanes) - center) * factor;
            const Vec<C> uh = up * h;
            if constexpr (kParts) {
              store(dweight + i, load(dweight + i, lanes) + uh, lanes);
              if constexpr (kCentered) store(dbias + i, load(dbias + i, lanes) + up, lanes);
            }
            if constexpr (decltype(weighted)::value) {
              const Vec<C> w = load(weight + i, lanes);
              s.g = fma(up, w, s.g);
              s.gh = fma(uh, w, s.gh);
            } else {
              s.g += up;
              s.gh += uh;
            }
          },
          [](Sums a, Sums b) { return Sums{a.g + b.g, a.gh + b.gh}; });
    };
    const Sums s = weight ? pass(std::true_type{}) : pass(std::false_type{});
    if (!dx) return;
    T* to = dx + r * n;
    const Vec<C> a(kCentered ? sum_lanes(s.g) / C(n) : C(0)), b(sum_lanes(s.gh) / C(n));
    auto emit = [&](int64_t i, Vec<C> g, auto lanes) {
      const Vec<C> h = (load(from + i, lanes) - center) * factor;
      if constexpr (kCentered) g = g - a;
      store(to + i, (g - h * b) * factor, lanes);
    };
    if (weight)
      for_vectors<C>(n, [&](int64_t i, auto l) { emit(i, load(g_in + i, l) * load(weight + i, l), l); });
    else
      for_vectors<C>(n, [&](int64_t i, auto l) { emit(i, load(g_in + i, l), l); });
  }
};

// Adds the blocks' parts, [blocks, 2, n], and stores the sums.
template <class C>
void sum_parts(const C* parts, int64_t blocks, int64_t n, const View& dweight, const View& dbias) {
  parallel_for(n, kRowGrain / (blocks + 1) + 64, [&](int64_t begin, int64_t end) {
    for (int which = 0; which < 2; ++which) {
      const View& out = which ? dbias : dweight;
      if (!out.data) continue;
      for (int64_t i = begin; i < end; ++i) {
        C sum = 0;
        for (int64_t b = 0; b < blocks; ++b) sum += parts[(2 * b + which) * n + i];
        store_as(out, i, sum);
      }
    }
  });
}

template <bool kCentered>
void backward(const LaunchContext& ctx, const View& dx, const View& dweight, const View& dbias,
              const View& dy, const View& x, const View& mean, const View& rstd, const View& weight,
              int64_t rows, int64_t n) {
  dispatch(FloatTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using C = Compute<T>;
    const Backward<T, kCentered> f{dx.as<T>(),
                                   dy.as<T>(),
                                   x.as<T>(),
                                   kCentered ? mean.as<C>() : nullptr,
                                   rstd.as<C>(),
                                   in_compute<C>(ctx, weight, n),
                                   n};
    if (!dweight.data && !dbias.data) {
      parallel_for(rows, row_grain(n), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) f.template row<false>(r, nullptr, nullptr);
      });
      return;
    }
    // At most 64 blocks, none of fewer than 16 rows.
    const int64_t per_block = rows > 64 * 16 ? (rows + 63) / 64 : 16;
    const int64_t blocks = (rows + per_block - 1) / per_block;
    C* parts = static_cast<C*>(ctx.scratch((blocks * 2 * n + 1) * sizeof(C)));
    parallel_for(blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) {
        C* part = parts + 2 * b * n;
        std::memset(part, 0, 2 * n * sizeof(C));
        for (int64_t r = b * per_block; r < rows && r < (b + 1) * per_block; ++r)
          f.template row<true>(r, part, part + n);
      }
    });
    sum_parts(parts, blocks, n, dweight, dbias);
  });
}

}  // namespace

WT_KERNEL(layer_norm, forward<true>);
WT_KERNEL(rms_norm, forward<false>);
WT_KERNEL(layer_norm_backward, backward<true>);
WT_KERNEL(rms_norm_backward, backward<false>);

}  // namespace warptape::kernels::WARPTAPE_ISA
