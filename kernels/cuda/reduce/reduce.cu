// Sum, product, mean, norm, variance, log-sum-exp, any and all, largest and smallest: reducers for the driver
// of reduce.cuh.
#include "kernels/reduce/reduce.h"

#include "kernels/cuda/reduce/reduce.cuh"
#include "kernels/cuda/reduce/reducers.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

template <class F>
void dispatch_float(DType dtype, F&& f) {
  if (dtype == DType::Float64)
    f(Tag<double>{});
  else
    f(Tag<float>{});
}
// The type in which values of `dtype` are reduced.
template <class F>
void dispatch_compute(DType dtype, F&& f) {
  if (is_floating(dtype))
    dispatch_float(dtype, f);
  else
    f(Tag<int64_t>{});
}

struct Prod {
  template <class C> using Fast = Types<>;
  template <class C> WT_DEVICE C identity() const { return C(1); }
  template <class C> WT_DEVICE C map(C x) const { return x; }
  template <class C> WT_DEVICE C join(C a, C b) const { return a * b; }
  template <class C> WT_DEVICE C finish(C a) const { return a; }
};
// The smallest is the largest of what is turned round: one kernel does both.
struct Extreme {
  template <class C> using Fast = FastTypes<C>;
  bool least;
  template <class C> WT_DEVICE C turned(C x) const {
    if constexpr (kIsInteger<C>)
      return least ? ~x : x;
    else
      return least ? -x : x;
  }
  template <class C> WT_DEVICE C identity() const { return lowest<C>(); }
  template <class C> WT_DEVICE C map(C x) const { return turned(x); }
  template <class C> WT_DEVICE C join(C a, C b) const { return maximum(a, b); }
  template <class C> WT_DEVICE C finish(C a) const { return turned(a); }
};
struct SumSquares : Plus {
  template <class C> using Fast = FastTypes<C>;
  template <class C> WT_DEVICE C map(C x) const { return x * x; }
  template <class C> WT_DEVICE C finish(C a) const { return sqrt(a); }
};
// The norms that are asked for less often. p = 0: how many are not 0; infinite: largest or smallest |x|.
struct Norm {
  template <class C> using Fast = Types<>;
  double p;

  WT_DEVICE bool largest() const { return p == __builtin_inf(); }
  WT_DEVICE bool smallest() const { return p == -__builtin_inf(); }
  template <class C> WT_DEVICE C identity() const { return smallest() ? highest<C>() : C(0); }
  template <class C> WT_DEVICE C map(C x) const {
    if (p == 0) return x != C(0) ? C(1) : C(0);
    return p == 1 || largest() || smallest() ? abs(x) : pow(abs(x), C(p));
  }
  template <class C> WT_DEVICE C join(C a, C b) const {
    return largest() ? maximum(a, b) : smallest() ? minimum(a, b) : a + b;
  }
  template <class C> WT_DEVICE C finish(C a) const {
    return p == 0 || p == 1 || largest() || smallest() ? a : pow(a, C(1 / p));
  }
};

template <class Op>
void reduce_any_type(const LaunchContext& ctx, const char* name, const View& out, const View& in, Op op) {
  dispatch_compute(out.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    reduce(ctx, name, reduce_geometry(out, in), Folded<C, Op>{op, {out.data, out.dtype}});
  });
}
template <class Op>
void reduce_floats(const LaunchContext& ctx, const char* name, const View& out, const View& in, Op op) {
  dispatch_float(out.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    reduce(ctx, name, reduce_geometry(out, in), Folded<C, Op>{op, {out.data, out.dtype}});
  });
}

void sum(const LaunchContext& ctx, const View& out, const View& in) {
  reduce_any_type(ctx, "sum", out, in, Plus{});
}
void mean(const LaunchContext& ctx, const View& out, const View& in) {
  const ReduceGeometry g = reduce_geometry(out, in);
  reduce_floats(ctx, "mean", out, in, Plus{true, double(g.reduced_count)});
}
void prod(const LaunchContext& ctx, const View& out, const View& in) {
  reduce_any_type(ctx, "prod", out, in, Prod{});
}
void amax(const LaunchContext& ctx, const View& out, const View& in) {
  reduce_any_type(ctx, "amax", out, in, Extreme{false});
}
void amin(const LaunchContext& ctx, const View& out, const View& in) {
  reduce_any_type(ctx, "amin", out, in, Extreme{true});
}
void norm(const LaunchContext& ctx, const View& out, const View& in, double p) {
  if (p == 2)
    reduce_floats(ctx, "norm", out, in, SumSquares{});
  else
    reduce_floats(ctx, "norm", out, in, Norm{p});
}

void var(const LaunchContext& ctx, const View& out, const View& mean, const View& in, double correction,
         bool take_root) {
  const ReduceGeometry g = reduce_geometry(out, in);
  const double rest = double(g.reduced_count) - correction;
  dispatch_float(out.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    reduce(ctx, "var", g,
           Variance<C>{{},
                       {out.data, out.dtype},
                       {mean.data, mean.dtype},
                       g.reduced_count == 0 ? __builtin_nan("")
                       : rest > 0           ? rest
                                            : 0,
                       take_root});
  });
}

void logsumexp(const LaunchContext& ctx, const View& out, const View& in) {
  dispatch_float(out.dtype, [&](auto tag) {
    using C = typename decltype(tag)::type;
    reduce(ctx, "logsumexp", reduce_geometry(out, in), LogSumExp<C>{{out.data, out.dtype}});
  });
}

void any(const LaunchContext& ctx, const View& out, const View& in) {
  reduce(ctx, "any", reduce_geometry(out, in), Truth<false>{{out.data, out.dtype}});
}
void all(const LaunchContext& ctx, const View& out, const View& in) {
  reduce(ctx, "all", reduce_geometry(out, in), Truth<true>{{out.data, out.dtype}});
}

WT_KERNEL(sum, sum);
WT_KERNEL(mean, mean);
WT_KERNEL(prod, prod);
WT_KERNEL(amax, amax);
WT_KERNEL(amin, amin);
WT_KERNEL(norm, norm);
WT_KERNEL(var, var);
WT_KERNEL(logsumexp, logsumexp);
WT_KERNEL(any, any);
WT_KERNEL(all, all);

}  // namespace
}  // namespace warptape::kernels::cuda
