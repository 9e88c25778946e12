// Distances between rows. Forward keeps a vector of distances from one row, so that a sum needs no reduction
// across lanes; backward keeps a vector of one row's gradient. Every result is made by one task.
#include "kernels/linalg/distance.h"

#include "kernels/cpu/vector/rows.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

using cpu::parallel_for;

inline constexpr int64_t kPiece = 512;  // differences added up before they join the rest: for accuracy
inline constexpr int kWide = 4;         // vectors at a time

// Of a norm: how a difference d joins the sum, what becomes of that, the factor of every d's slope, made once
// from the gradient and the norm, and the slope.
template <class V>
struct Norm1 {
  WT_FN static V add(V sum, V d) { return sum + abs(d); }
  WT_FN static V join(V a, V b) { return a + b; }
  WT_FN static V finish(V sum) { return sum; }
  template <class T>
  WT_FN static T factor(T g, T) {
    return g;
  }
  WT_FN static V slope(V d, V factor, V) { return select(d > V(0), factor, select(d < V(0), -factor, V(0))); }
};
template <class V>
struct Norm2 : Norm1<V> {
  WT_FN static V add(V sum, V d) { return fma(d, d, sum); }
  WT_FN static V finish(V sum) { return sqrt(sum); }
  template <class T>
  WT_FN static T factor(T g, T norm) {
    return norm == 0 ? T(0) : g / norm;
  }
  WT_FN static V slope(V d, V factor, V) { return d * factor; }
};
template <class V>
struct NormMax : Norm1<V> {
  WT_FN static V add(V most, V d) { return maximum(most, abs(d)); }
  WT_FN static V join(V a, V b) { return maximum(a, b); }
  WT_FN static V slope(V d, V factor, V norm) {
    return select(abs(d) == norm, Norm1<V>::slope(d, factor, norm), V(0));
  }
};

// f(number, how many vectors, lanes) for the numbers from `first` to `n`: kWide vectors at a time, then one.
template <class T, class F>
WT_FN void for_blocks(int64_t first, int64_t n, F&& f) {
  constexpr int kLanes = Vec<T>::kLanes;
  int64_t i = first;
  for (; i + kWide * kLanes <= n; i += kWide * kLanes) f(i, std::integral_constant<int, kWide>{}, AllLanes{});
  for (; i + kLanes <= n; i += kLanes) f(i, std::integral_constant<int, 1>{}, AllLanes{});
  if (i < n) f(i, std::integral_constant<int, 1>{}, FirstLanes{int(n - i)});
}

// out: the distances of x [d] to the columns of others [d, m] from `first` on.
template <class N, class T>
void row_distances(T* out, const T* x, const T* others, const DistancePlan& p, int64_t first) {
  using V = Vec<T>;
  for_blocks<T>(first, p.m, [&](int64_t j, auto wide, auto lanes) {
    constexpr int kCount = decltype(wide)::value;
    V total[kCount];
    for (V& t : total) t = V(0);
    for (int64_t begin = 0; begin < p.d; begin += kPiece) {
      V sum[kCount];
      for (V& s : sum) s = V(0);
      for (int64_t k = begin; k < p.d && k < begin + kPiece; ++k)
        for (int w = 0; w < kCount; ++w)
          sum[w] = N::add(sum[w], V(x[k]) - load(others + k * p.m + j + w * V::kLanes, lanes));
      for (int w = 0; w < kCount; ++w) total[w] = N::join(total[w], sum[w]);
    }
    for (int w = 0; w < kCount; ++w) store(out + (j - first) + w * V::kLanes, N::finish(total[w]), lanes);
  });
}

// dx [d], of x [d] by its distances to others [m, d].
template <class N, class T>
void row_gradient(T* dx, const T* x, const T* others, const T* factors, const T* norms,
                  const DistancePlan& p) {
  using V = Vec<T>;
  for_blocks<T>(0, p.d, [&](int64_t k, auto wide, auto lanes) {
    constexpr int kCount = decltype(wide)::value;
    V own[kCount], sum[kCount];
    for (int w = 0; w < kCount; ++w) own[w] = load(x + k + w * V::kLanes, lanes), sum[w] = V(0);
    for (int64_t j = 0; j < p.m; ++j)
      for (int w = 0; w < kCount; ++w)
        sum[w] +=
            N::slope(own[w] - load(others + j * p.d + k + w * V::kLanes, lanes), V(factors[j]), V(norms[j]));
    for (int w = 0; w < kCount; ++w) store(dx + k + w * V::kLanes, sum[w], lanes);
  });
}

// Where the distances of row i to those behind it begin.
WT_FN int64_t pairs_before(int64_t i, int64_t n) { return i * n - i * (i + 1) / 2; }

template <class N, class T>
void distances(const DistancePlan& p, T* out, const T* x1, const T* x2) {
  parallel_for(p.batch * p.n, row_grain(p.m * p.d), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T *x = x1 + r * p.d, *others = x2 + r / p.n * p.m * p.d;
      if (p.pairs)
        row_distances<N>(out + pairs_before(r, p.n), x, others, p, r + 1);
      else
        row_distances<N>(out + r * p.m, x, others, p, 0);
    }
  });
}

template <class N, class T>
void gradients(const DistancePlan& p, T* dx1, const T* dout, const T* out, const T* x1, const T* x2) {
  parallel_for(p.batch * p.n, row_grain(p.m * p.d), [&](int64_t begin, int64_t end) {
    T* factors = static_cast<T*>(cpu::thread_scratch(2 * p.m * sizeof(T) + 1));
    T* norms = factors + p.m;
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t j = 0; j < p.m; ++j) {
        int64_t at = r * p.m + j;
        if (p.pairs) at = j < r ? pairs_before(j, p.n) + r - j - 1 : pairs_before(r, p.n) + j - r - 1;
        const bool itself = p.pairs && j == r;
        norms[j] = itself ? T(0) : out[at];
        factors[j] = itself ? T(0) : N::factor(dout[at], norms[j]);
      }
      row_gradient<N>(dx1 + r * p.d, x1 + r * p.d, x2 + r / p.n * p.m * p.d, factors, norms, p);
    }
  });
}

template <class F>
void dispatch_norm(const DistancePlan& p, DType dtype, F&& f) {
  dispatch(Types<float, double>{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if (p.p == 1)
      f(t, Norm1<Vec<T>>{});
    else if (p.p == 2)
      f(t, Norm2<Vec<T>>{});
    else
      f(t, NormMax<Vec<T>>{});
  });
}

void distance(const LaunchContext&, const DistancePlan& p, const View& out, const View& x1, const View& x2) {
  dispatch_norm(p, out.dtype, [&](auto t, auto norm) {
    using T = typename decltype(t)::type;
    distances<decltype(norm)>(p, out.as<T>(), x1.as<T>(), x2.as<T>());
  });
}

void distance_backward(const LaunchContext&, const DistancePlan& p, const View& dx1, const View& dout,
                       const View& out, const View& x1, const View& x2) {
  dispatch_norm(p, out.dtype, [&](auto t, auto norm) {
    using T = typename decltype(t)::type;
    gradients<decltype(norm)>(p, dx1.as<T>(), dout.as<T>(), out.as<T>(), x1.as<T>(), x2.as<T>());
  });
}

}  // namespace

WT_KERNEL(distance, distance);
WT_KERNEL(distance_backward, distance_backward);

}  // namespace warptape::kernels::WARPTAPE_ISA
