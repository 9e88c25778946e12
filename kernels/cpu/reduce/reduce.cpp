// Sum, product, mean, norm, variance and log-sum-exp, and the geometry that all reductions share.

#include "kernels/cpu/reduce/reduce.h"

namespace warptape::kernels::WARPTAPE_ISA {

namespace {

void append(Dim* dims, int& count, Dim d) {
  if (d.size == 1) return;
  if (count > 0) {
    Dim& last = dims[count - 1];
    if (last.stride == d.stride * d.size && last.to == d.to * d.size) {
      last = {last.size * d.size, d.stride, d.to};
      return;
    }
  }
  dims[count++] = d;
}

}  // namespace

Geometry geometry_of(const View& out, const View& in) {
  Geometry g;
  g.data = static_cast<const char*>(in.data);
  g.dtype = in.dtype;
  g.item = int64_t(itemsize(in.dtype));
  g.kept_count = g.reduced_count = 1;
  Dim reduced[kMaxDims];
  int n_reduced = 0;
  int64_t to[kMaxDims];
  int64_t next = 1;
  for (int d = in.ndim - 1; d >= 0; --d) {
    to[d] = next;
    next *= out.sizes[d];
  }
  g.kept_dims = g.reduced_dims = 0;
  for (int d = 0; d < in.ndim; ++d) {
    const int64_t stride = in.strides[d] * g.item;
    if (out.sizes[d] == in.sizes[d]) {
      g.kept_count *= in.sizes[d];
      append(g.kept, g.kept_dims, {in.sizes[d], stride, to[d]});
    } else {
      g.reduced_count *= in.sizes[d];
      // Insertion by falling stride; equal strides keep their order.
      int at = n_reduced++;
      for (; at > 0 && reduced[at - 1].stride < stride; --at) reduced[at] = reduced[at - 1];
      reduced[at] = {in.sizes[d], stride, 0};
    }
  }
  for (int i = 0; i < n_reduced; ++i) append(g.reduced, g.reduced_dims, reduced[i]);
  if (g.kept_dims == 0) g.kept[g.kept_dims++] = {1, 0, 1};
  if (g.reduced_dims == 0) g.reduced[g.reduced_dims++] = {1, 0, 0};
  g.column = -1;
  const Dim& row = g.reduced[g.reduced_dims - 1];
  for (int d = 0; d < g.kept_dims; ++d) {
    const Dim& k = g.kept[d];
    const bool faster = row.stride != g.item && k.stride == g.item;
    if (k.size >= 4 && (faster || row.size == 1)) g.column = d;
  }
  return g;
}

int64_t locate(const Dim* dims, int count, int64_t i, int64_t* to) {
  int64_t from = 0, at = 0;
  for (int d = count - 1; d > 0; --d) {
    const int64_t k = i % dims[d].size;
    i /= dims[d].size;
    from += k * dims[d].stride;
    at += k * dims[d].to;
  }
  if (count > 0) {
    from += i * dims[0].stride;
    at += i * dims[0].to;
  }
  *to = at;
  return from;
}

namespace {

struct Sum {
  template <class T> WT_FN static Vec<T> identity() { return Vec<T>(T(0)); }
  template <class V> WT_FN static V map(V x, V) { return x; }
  template <class V> WT_FN static V combine(V a, V b) { return a + b; }
};
}  // namespace
template <> inline constexpr bool kReducesPairs<Sum> = true;
namespace {

struct NanSum : Sum {
  template <class V> WT_FN static V map(V x, V) { return select(x == x, x, V(0)); }
};
struct Prod {
  template <class T> WT_FN static Vec<T> identity() { return Vec<T>(T(1)); }
  template <class V> WT_FN static V map(V x, V) { return x; }
  template <class V> WT_FN static V combine(V a, V b) { return a * b; }
};
struct SumAbs : Sum {
  template <class V> WT_FN static V map(V x, V) { return abs(x); }
};
struct SumSquares : Sum {
  template <class V> WT_FN static V map(V x, V) { return x * x; }
};
struct CountNonzero : Sum {
  template <class V> WT_FN static V map(V x, V) { return select(x != V(0), V(1), V(0)); }
};
struct SumPowers : Sum {  // the center is the exponent
  template <class V> WT_FN static V map(V x, V p) { return pow(abs(x), p); }
};
struct SumSquaredDeviations : Sum {
  template <class V> WT_FN static V map(V x, V mean) { return (x - mean) * (x - mean); }
};
struct SumExp : Sum {
  template <class V> WT_FN static V map(V x, V top) { return exp(x - top); }
};
struct Max {
  template <class T> WT_FN static Vec<T> identity() { return Vec<T>(-T(__builtin_inf())); }
  template <class V> WT_FN static V map(V x, V) { return x; }
  template <class V> WT_FN static V combine(V a, V b) { return maximum(a, b); }
};
struct MaxAbs : Max {
  template <class V> WT_FN static V map(V x, V) { return abs(x); }
};
struct MinAbs : MaxAbs {
  template <class T> WT_FN static Vec<T> identity() { return Vec<T>(T(__builtin_inf())); }
  template <class V> WT_FN static V combine(V a, V b) { return minimum(a, b); }
};

// f on the results vector by vector.
template <class T, class F>
WT_FN void update(T* p, int64_t n, F f) {
  constexpr int L = Vec<T>::kLanes;
  for (; n >= L; n -= L, p += L) f(Vec<T>::load(p)).store(p);
  if (n > 0) store_partial(p, f(load_partial<T>(p, int(n))), int(n));
}

template <class Red>
void reduce_any_type(const LaunchContext& ctx, const View& out, const View& in) {
  const Geometry g = geometry_of(out, in);
  dispatch_compute(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_results<T>(ctx, out, g.kept_count, [&](T* r) { reduce_into<Red, T>(ctx, g, nullptr, r); });
  });
}

// The product of n complex numbers that lie `step` apart, in kWays products, for one alone would wait for
// each multiplication.
template <class T>
Complex<T> complex_product(const Complex<T>* x, int64_t n, int64_t step) {
  constexpr int kWays = 16;
  T re[kWays], im[kWays];
  for (int k = 0; k < kWays; ++k) re[k] = 1, im[k] = 0;
  auto multiply = [&](int k, Complex<T> v) __attribute__((always_inline)) {
    const T real = re[k] * v.re - im[k] * v.im;
    im[k] = re[k] * v.im + im[k] * v.re;
    re[k] = real;
  };
  int64_t i = 0;
  cpu::in_pieces(n / kWays, [&](int64_t begin, int64_t end) {
    for (i = begin * kWays; i < end * kWays; i += kWays)
      if (step == 1)
        for (int k = 0; k < kWays; ++k) multiply(k, x[i + k]);
      else
        for (int k = 0; k < kWays; ++k) multiply(k, x[(i + k) * step]);
  });
  for (; i < n; ++i) multiply(int(i % kWays), x[i * step]);
  for (int half = kWays / 2; half; half /= 2)
    for (int k = 0; k < half; ++k) multiply(k, {re[k + half], im[k + half]});
  return {re[0], im[0]};
}

void prod(const LaunchContext& ctx, const View& out, const View& in) {
  const bool wide = in.dtype == DType::Complex128;
  if (!wide && in.dtype != DType::Complex64) return reduce_any_type<Prod>(ctx, out, in);
  const Geometry g = geometry_of(out, in);
  auto run = [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto* to = out.as<Complex<T>>();
    const Dim& row = g.reduced[g.reduced_dims - 1];
    cpu::parallel_for(g.kept_count, kReduceGrain / (g.reduced_count + 16) + 1, [&](int64_t b, int64_t e) {
      for (int64_t i = b; i < e; ++i) {
        int64_t at, ignored;
        const char* base = g.data + locate(g.kept, g.kept_dims, i, &at);
        Complex<T> product(1, 0);
        for (int64_t r = 0; r * row.size < g.reduced_count; ++r) {
          const char* p = base + locate(g.reduced, g.reduced_dims - 1, r, &ignored);
          product = product *
                    complex_product(reinterpret_cast<const Complex<T>*>(p), row.size, row.stride / g.item);
        }
        to[at] = product;
      }
    });
  };
  wide ? run(Tag<double>{}) : run(Tag<float>{});
}

template <class F>
WT_FN void dispatch_float(DType dtype, F&& f) {
  if (dtype == DType::Float64)
    f(Tag<double>{});
  else
    f(Tag<float>{});
}

void mean(const LaunchContext& ctx, const View& out, const View& in) {
  const Geometry g = geometry_of(out, in);
  dispatch_float(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_results<T>(ctx, out, g.kept_count, [&](T* r) {
      reduce_into<Sum, T>(ctx, g, nullptr, r);
      update(r, g.kept_count, [&](Vec<T> s) { return s / Vec<T>(T(g.reduced_count)); });
    });
  });
}

template <class T>
void norm_of(const LaunchContext& ctx, const Geometry& g, double p, T* r) {
  const int64_t n = g.kept_count;
  if (p == 2) {
    reduce_into<SumSquares, T>(ctx, g, nullptr, r);
    update(r, n, [](Vec<T> s) { return sqrt(s); });
  } else if (p == 1) {
    reduce_into<SumAbs, T>(ctx, g, nullptr, r);
  } else if (p == 0) {
    reduce_into<CountNonzero, T>(ctx, g, nullptr, r);
  } else if (p == __builtin_inf()) {
    reduce_into<MaxAbs, T>(ctx, g, nullptr, r);
    if (g.reduced_count == 0) update(r, n, [](Vec<T>) { return Vec<T>(T(0)); });
  } else if (p == -__builtin_inf()) {
    reduce_into<MinAbs, T>(ctx, g, nullptr, r);
  } else {
    T* exponents = static_cast<T*>(ctx.scratch(size_t(n) * sizeof(T)));
    for (int64_t i = 0; i < n; ++i) exponents[i] = T(p);
    reduce_into<SumPowers, T>(ctx, g, exponents, r);
    update(r, n, [&](Vec<T> s) { return pow(s, Vec<T>(T(1 / p))); });
  }
}

void norm(const LaunchContext& ctx, const View& out, const View& in, double p) {
  const Geometry g = geometry_of(out, in);
  dispatch_float(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_results<T>(ctx, out, g.kept_count, [&](T* r) { norm_of<T>(ctx, g, p, r); });
  });
}

struct Variance {
  View out, mean;
  double divisor;
  bool take_root;
};

// Two passes, for the second one needs the exact mean; a row that fits the cache is read from memory once.
// False if squares have left the range of T.
template <class T>
bool var_in(const LaunchContext& ctx, const Geometry& g, const Variance& v) {
  const int64_t n = g.kept_count;
  bool in_range = true;
  T* means = static_cast<T*>(ctx.scratch(size_t(n) * sizeof(T)));
  reduce_into<Sum, T>(ctx, g, nullptr, means);
  update(means, n, [&](Vec<T> s) { return s / Vec<T>(T(g.reduced_count)); });
  with_results<T>(ctx, v.out, n, [&](T* r) {
    reduce_into<SumSquaredDeviations, T>(ctx, g, means, r);
    for (int64_t i = 0; i < n; ++i) in_range &= r[i] != r[i] || (r[i] > T(1e-30) && r[i] < T(1e38));
    const Vec<T> divisor(T(v.divisor));
    update(r, n, [&](Vec<T> s) { return v.take_root ? sqrt(s / divisor) : s / divisor; });
  });
  if (v.mean.data) converter(dtype_of<T>, v.mean.dtype)(n, v.mean.data, means);
  return in_range;
}

void var(const LaunchContext& ctx, const View& out, const View& mean, const View& in, double correction,
         bool take_root) {
  const Geometry g = geometry_of(out, in);
  const double rest = double(g.reduced_count) - correction;
  const Variance v{out, mean, g.reduced_count == 0 ? __builtin_nan("") : rest > 0 ? rest : 0, take_root};
  if (out.dtype == DType::Float64 || !var_in<float>(ctx, g, v)) var_in<double>(ctx, g, v);
}

void logsumexp(const LaunchContext& ctx, const View& out, const View& in) {
  const Geometry g = geometry_of(out, in);
  dispatch_float(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t n = g.kept_count;
    T* tops = static_cast<T*>(ctx.scratch(size_t(n) * sizeof(T)));
    reduce_into<Max, T>(ctx, g, nullptr, tops);
    // An infinite top must not give infinity minus infinity.
    update(tops, n, [](Vec<T> t) { return select(isinf(t), Vec<T>(T(0)), t); });
    with_results<T>(ctx, out, n, [&](T* r) {
      reduce_into<SumExp, T>(ctx, g, tops, r);
      for (int64_t i = 0; i < n; ++i) r[i] = T(__builtin_log(double(r[i]))) + tops[i];
    });
  });
}

WT_KERNEL(sum, reduce_any_type<Sum>);
WT_KERNEL(nansum, reduce_any_type<NanSum>);
WT_KERNEL(prod, prod);
WT_KERNEL(mean, mean);
WT_KERNEL(norm, norm);
WT_KERNEL(var, var);
WT_KERNEL(logsumexp, logsumexp);

}  // namespace
}  // namespace warptape::kernels::WARPTAPE_ISA
