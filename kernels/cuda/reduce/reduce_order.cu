// The place of the largest or smallest value along a dim, with the value or without.
#include "kernels/cuda/reduce/reduce.cuh"
#include "kernels/cuda/reduce/reducers.cuh"
#include "kernels/reduce/reduce.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

template <class C>
struct Candidate {
  C value;
  int64_t index;  // along the reduced dim; -1 before the first value
};

// Which of two candidates wins does not depend on their order: a NaN, then the better value, then the first.
template <class C>
struct Best {
  using Value = C;
  using State = Candidate<C>;
  using Center = NoCenter;
  using Fast = FastTypes<C>;
  static constexpr int kInputs = 1;
  static constexpr bool kIndexed = true;
  Output values, indices;
  bool least;

  WT_DEVICE Center center(int64_t) const { return {}; }
  WT_DEVICE State identity() const { return {C(0), -1}; }
  WT_DEVICE bool better(C a, C b) const { return least ? a < b : a > b; }
  WT_DEVICE State join(const State& a, const State& b) const {
    if (a.index < 0) return b;
    if (b.index < 0) return a;
    const bool nan_a = isnan(a.value), nan_b = isnan(b.value);
    if (nan_a != nan_b) return nan_a ? a : b;
    if (!nan_a && a.value != b.value) return better(a.value, b.value) ? a : b;
    return a.index < b.index ? a : b;
  }
  // Indices rise within a thread.
  WT_DEVICE void one(State& s, const Value (&x)[1], int64_t index, Center) const {
    const C v = x[0];
    const bool takes = s.index < 0 || (!isnan(s.value) && (isnan(v) || better(v, s.value)));
    s.value = takes ? v : s.value;
    s.index = takes ? index : s.index;
  }
  WT_DEVICE void store(const State& s, int64_t to) const {
    values.put(s.value, to);
    indices.put(s.index, to);
  }
};

void best(const LaunchContext& ctx, const char* name, const View& values, const View& indices, const View& in,
          bool least) {
  const ReduceGeometry g = reduce_geometry(indices, in);
  auto run = [&](auto tag) {
    using C = typename decltype(tag)::type;
    reduce(ctx, name, g, Best<C>{{values.data, values.dtype}, {indices.data, indices.dtype}, least});
  };
  if (in.dtype == DType::Float64)
    run(Tag<double>{});
  else if (is_floating(in.dtype))
    run(Tag<float>{});
  else
    run(Tag<int64_t>{});
}

void argmax(const LaunchContext& ctx, const View& out, const View& in, int) {
  best(ctx, "argmax", View{}, out, in, false);
}
void argmin(const LaunchContext& ctx, const View& out, const View& in, int) {
  best(ctx, "argmin", View{}, out, in, true);
}
void max_dim(const LaunchContext& ctx, const View& values, const View& indices, const View& in, int) {
  best(ctx, "max", values, indices, in, false);
}
void min_dim(const LaunchContext& ctx, const View& values, const View& indices, const View& in, int) {
  best(ctx, "min", values, indices, in, true);
}

WT_KERNEL(argmax, argmax);
WT_KERNEL(argmin, argmin);
WT_KERNEL(max_dim, max_dim);
WT_KERNEL(min_dim, min_dim);

}  // namespace
}  // namespace warptape::kernels::cuda
