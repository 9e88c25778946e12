// Gather, scatter and advanced indexing. Operands have any strides; offsets are in elements.
#include "kernels/index/index.h"

#include "kernels/cpu/common/narrow_rows.h"
#include "kernels/cpu/common/scatter.h"
#include "kernels/slot.h"

namespace warptape::kernels::cpu {
namespace {

constexpr int64_t kPiece = 1024;  // indices that are looked at before they are followed

// Whether all of n indices are in [low, bound). The signs of the distances from both ends are gathered, which
// vectorises; the distances are unsigned, for they may wrap.
WT_INLINE bool all_within(const int64_t* p, int64_t n, int64_t step, int64_t low, int64_t bound) {
  uint64_t signs = 0;
  auto look = [&](int64_t i) {
    signs |= (uint64_t(i) - uint64_t(low)) | (uint64_t(bound) - 1 - uint64_t(i));
  };
  if (step == 1)
    for (int64_t j = 0; j < n; ++j) look(p[j]);
  else
    for (int64_t j = 0; j < n; ++j) look(p[j * step]);
  return int64_t(signs) >= 0;
}

// The same, and those that are not are reported.
WT_INLINE bool check_within(const LaunchContext& ctx, const int64_t* p, int64_t n, int64_t step,
                            int64_t bound, bool wraps) {
  if (all_within(p, n, step, wraps ? -bound : 0, bound)) return true;
  for (int64_t j = 0; j < n; ++j) {
    const int64_t i = p[j * step];
    if (i < (wraps ? -bound : 0) || i >= bound) report_index(ctx, i, bound);
  }
  return false;
}

struct GatherSteps {
  int64_t out, x, index, dim;
};
template <class T>
WT_INLINE void gather_run(T* o, const T* s, const int64_t* ix, int64_t n, GatherSteps step) {
  if (step.out == 1 && step.x == 0 && step.index == 1 && step.dim == 1)
    for (int64_t j = 0; j < n; ++j) o[j] = s[ix[j]];
  else if (step.out == 1 && step.x == 1 && step.index == 0)  // one index for the whole run: a copy
    std::memcpy(o, s + *ix * step.dim, n * sizeof(T));
  else
    for (int64_t j = 0; j < n; ++j) o[j * step.out] = s[j * step.x + ix[j * step.index] * step.dim];
}

// `valid`: the indices have been looked at.
template <class T>
void gather_typed(const LaunchContext& ctx, const View& out, const View& x, const View& index, int dim,
                  bool valid) {
  const Walk<3> w = indexed_walk(out, x, index, dim);
  const int64_t bound = x.ndim ? x.sizes[dim] : 1;
  const GatherSteps step{w.inner(0), w.inner(1), w.inner(2), x.ndim ? x.strides[dim] : 0};
  T* po = out.as<T>();
  const T* px = x.as<T>();
  const int64_t* pi = index.as<int64_t>();
  parallel_for(w.numel(), kWalkGrain, [&](int64_t begin, int64_t end) {
    walk(w, begin, end, [&](const int64_t (&at)[3], int64_t n, const int64_t*) {
      const int64_t piece = valid || step.index == 0 ? n : kPiece;
      for (int64_t j = 0; j < n; j += piece) {
        const int64_t m = n - j < piece ? n - j : piece;
        const int64_t* ix = pi + at[2] + j * step.index;
        if (valid || check_within(ctx, ix, step.index ? m : 1, step.index, bound, false))
          gather_run(po + at[0] + j * step.out, px + at[1] + j * step.x, ix, m, step);
      }
    });
  });
}

void gather(const LaunchContext& ctx, const View& out, const View& x, const View& index, int dim) {
  dispatch_size(MoveTypes{}, itemsize(x.dtype),
                [&](auto t) { gather_typed<typename decltype(t)::type>(ctx, out, x, index, dim, false); });
}

// Looked at before anything is written, so that a bad index leaves `self` as it was.
bool all_valid(const LaunchContext& ctx, const View& index, int64_t bound, bool wraps) {
  const Walk<1> w = make_walk<1>(index, 0, index.ndim, {&index});
  const int64_t step = w.inner(0);
  bool bad = false;
  parallel_for(w.numel(), kWalkGrain, [&](int64_t begin, int64_t end) {
    walk(w, begin, end, [&](const int64_t (&at)[1], int64_t n, const int64_t*) {
      if (!check_within(ctx, index.as<int64_t>() + at[0], step ? n : 1, step, bound, wraps))
        __atomic_store_n(&bad, true, __ATOMIC_RELAXED);
    });
  });
  return !bad;
}

void index_select(const LaunchContext& ctx, const View& out, const View& x, const View& index, int dim) {
  if (!all_valid(ctx, index, x.ndim ? x.sizes[dim] : 1, false)) return;
  SpreadIndex spread(out, index, dim);
  dispatch_size(MoveTypes{}, itemsize(x.dtype), [&](auto t) {
    gather_typed<typename decltype(t)::type>(ctx, out, x, spread.view, dim, true);
  });
}

// Float16 and BFloat16 are converted by the instructions of the machine.
Slot<ScatterNarrowFn> scatter_narrow_slot{"scatter_narrow"};
using WideTypes = Types<float, double, int64_t, int32_t, int16_t, int8_t, uint8_t, Bool>;
bool is_narrow(DType t) { return t == DType::Float16 || t == DType::BFloat16; }

// Complex numbers have sums and products, no order.
void scatter_complex(const View& self, const View& index, const View& src, int dim, ScatterMode mode) {
  dispatch(ComplexTypes{}, self.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if (mode == ScatterMode::Multiply) return scatter_typed<T>(self, index, src, dim, Multiply{});
    scatter_typed<T>(self, index, src, dim, Add{});
  });
}

void scatter(const LaunchContext& ctx, const View& self, const View& index, const View& src, int dim,
             ScatterMode mode) {
  if (!all_valid(ctx, index, self.ndim ? self.sizes[dim] : 1, false)) return;
  if (mode == ScatterMode::Assign) {
    dispatch_size(MoveTypes{}, itemsize(self.dtype), [&](auto t) {
      scatter_typed<typename decltype(t)::type>(self, index, src, dim, Assign{});
    });
    return;
  }
  if (is_complex(self.dtype)) return scatter_complex(self, index, src, dim, mode);
  if (is_narrow(self.dtype)) {
    if (mode == ScatterMode::Add || mode == ScatterMode::Multiply)
      return scatter_narrow_rows(ctx, self, index, src, dim, mode, 1.0);
    return scatter_narrow_slot(ctx, self, index, src, dim, mode);
  }
  dispatch(WideTypes{}, self.dtype,
           [&](auto t) { scatter_mode<typename decltype(t)::type>(self, index, src, dim, mode); });
}

void index_add(const LaunchContext& ctx, const View& self, const View& index, const View& src, int dim,
               double alpha) {
  if (!all_valid(ctx, index, self.ndim ? self.sizes[dim] : 1, false)) return;
  SpreadIndex spread(src, index, dim);
  if (is_complex(self.dtype)) return scatter_complex(self, spread.view, src, dim, ScatterMode::Add);
  if (is_narrow(self.dtype))
    return scatter_narrow_rows(ctx, self, spread.view, src, dim, ScatterMode::Add, alpha);
  dispatch(WideTypes{}, self.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if (alpha == 1)
      scatter_typed<T>(self, spread.view, src, dim, Add{});
    else
      scatter_typed<T>(self, spread.view, src, dim, AddScaled<double>{alpha});
  });
}

constexpr int64_t kShortRow = 32;  // elements

// The places in x that indices, all of the shape of the first, name.
struct Places {
  const View& x;
  const View* indices;
  int count;

  int64_t numel() const { return indices[0].numel(); }
  bool valid(const LaunchContext& ctx) const {
    for (int k = 0; k < count; ++k)
      if (!all_valid(ctx, indices[k], x.sizes[k], true)) return false;
    return true;
  }
  // Their offsets at the positions [begin, end), at most kPiece of them. The indices are valid.
  void offsets(int64_t begin, int64_t end, int64_t* to) const {
    for (int k = 0; k < count; ++k) {
      const Walk<1> w = make_walk<1>(indices[0], 0, indices[0].ndim, {&indices[k]});
      const int64_t step = w.inner(0), bound = x.sizes[k], stride = x.strides[k];
      int64_t* o = to;
      walk(w, begin, end, [&](const int64_t (&at)[1], int64_t n, const int64_t*) {
        const int64_t* p = indices[k].as<int64_t>() + at[0];
        for (int64_t j = 0; j < n; ++j) {
          const int64_t i = p[j * step], add = (i < 0 ? i + bound : i) * stride;
          o[j] = k ? o[j] + add : add;
        }
        o += n;
      });
    }
  }
};

// The slice of x at `s`, packed, to o.
template <class T>
WT_INLINE void get_slice(T* o, const T* s, const Walk<1>& rest, int64_t block) {
  const int64_t step = rest.inner(0);
  if (rest.ndim == 1 && step == 1 && block <= kShortRow) {  // a walk and a call of memcpy cost more than it
    for (int64_t j = 0; j < block; ++j) o[j] = s[j];
    return;
  }
  walk(rest, 0, block, [&](const int64_t (&at)[1], int64_t n, const int64_t*) {
    if (step == 1)
      std::memcpy(o, s + at[0], n * sizeof(T));
    else
      for (int64_t j = 0; j < n; ++j) o[j] = s[at[0] + j * step];
    o += n;
  });
}

void index_get(const LaunchContext& ctx, const View& out, const View& x, const View* indices, int count) {
  const Places places{x, indices, count};
  if (!places.valid(ctx)) return;
  const Walk<1> rest = make_walk<1>(x, count, x.ndim, {&x});
  const int64_t block = rest.numel();
  if (block == 0) return;
  dispatch_size(MoveTypes{}, itemsize(x.dtype), [&](auto t) {
    using T = typename decltype(t)::type;
    const T* px = x.as<T>();
    T* po = out.as<T>();
    parallel_for(places.numel(), kWalkGrain / block + 1, [&](int64_t begin, int64_t end) {
      int64_t offsets[kPiece];
      for (; begin < end; begin += kPiece) {
        const int64_t n = end - begin < kPiece ? end - begin : kPiece;
        places.offsets(begin, begin + n, offsets);
        T* o = po + begin * block;
        if (rest.ndim == 0)
          for (int64_t p = 0; p < n; ++p) o[p] = px[offsets[p]];
        else
          for (int64_t p = 0; p < n; ++p) get_slice(o + p * block, px + offsets[p], rest, block);
      }
    });
  });
}

// Positions are written in order; tasks are cut across the dims that are not indexed.
template <class T, class Op>
void put_typed(const View& self, const View& values, const Places& places, Op op) {
  const View& shape = places.indices[0];
  Walk<2> rest;
  for (int d = places.count; d < self.ndim; ++d) {
    rest.strides[0][rest.ndim] = self.strides[d];
    rest.strides[1][rest.ndim] = values.strides[shape.ndim + d - places.count];
    rest.add_dim(self.sizes[d]);
  }
  const Walk<1> outer = make_walk<1>(shape, 0, shape.ndim, {&values});
  const int64_t positions = shape.numel(), st = rest.inner(0), sv = rest.inner(1), step = outer.inner(0);
  T* pt = self.as<T>();
  const T* pv = values.as<T>();
  // All positions of one slice, or one position of all slices: what lies together is written together.
  auto by_slice = [&](const int64_t* o, const T* from, int64_t run, int64_t begin, int64_t end) {
    walk(rest, begin, end, [&](const int64_t (&at)[2], int64_t n, const int64_t*) {
      for (int64_t j = 0; j < n; ++j)
        for (int64_t i = 0; i < run; ++i)
          combine(pt[at[0] + j * st + o[i]], from[at[1] + j * sv + i * step], op);
    });
  };
  auto by_position = [&](const int64_t* o, const T* from, int64_t run, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < run; ++i)
      walk(rest, begin, end, [&](const int64_t (&at)[2], int64_t n, const int64_t*) {
        for (int64_t j = 0; j < n; ++j)
          combine(pt[o[i] + at[0] + j * st], from[at[1] + i * step + j * sv], op);
      });
  };
  const int64_t grain = kWalkGrain / (positions + 1) < 64 ? 64 : kWalkGrain / (positions + 1);
  parallel_for(rest.numel(), grain, [&](int64_t begin, int64_t end) {
    int64_t offsets[kPiece];
    for (int64_t p = 0; p < positions; p += kPiece) {
      if (p % (64 * kPiece) == 0) poll_interrupt();
      const int64_t last = p + kPiece < positions ? p + kPiece : positions;
      places.offsets(p, last, offsets);
      const int64_t* o = offsets;
      walk(outer, p, last, [&](const int64_t (&first)[1], int64_t run, const int64_t*) {
        if (st == 1)
          by_position(o, pv + first[0], run, begin, end);
        else
          by_slice(o, pv + first[0], run, begin, end);
        o += run;
      });
    }
  });
}

void add_narrow(const LaunchContext& ctx, const View& self, const View& values, const Places& places) {
  const View& shape = places.indices[0];
  const Walk<1> outer = make_walk<1>(shape, 0, shape.ndim, {&values});
  NarrowRows rows(ctx, places.numel());
  parallel_for(places.numel(), kPiece, [&](int64_t begin, int64_t end) {
    places.offsets(begin, end, rows.to() + begin);
    int64_t* from = rows.from() + begin;
    walk(outer, begin, end, [&](const int64_t (&at)[1], int64_t n, const int64_t*) {
      for (int64_t j = 0; j < n; ++j) *from++ = at[0] + j * outer.inner(0);
    });
  });
  const int rest = self.ndim - places.count;
  rows.combine({self.data, self.sizes + places.count, self.strides + places.count, rest, self.dtype},
               {values.data, self.sizes + places.count, values.strides + shape.ndim, rest, values.dtype},
               ScatterMode::Add, 1);
}

void index_put(const LaunchContext& ctx, const View& self, const View& values, const View* indices, int count,
               bool accumulate) {
  const Places places{self, indices, count};
  if (!places.valid(ctx)) return;
  if (accumulate && is_narrow(self.dtype)) return add_narrow(ctx, self, values, places);
  if (accumulate) {
    auto add = [&](auto t) { put_typed<typename decltype(t)::type>(self, values, places, Add{}); };
    if (!try_dispatch(AllTypes{}, self.dtype, add)) dispatch(ComplexTypes{}, self.dtype, add);
  } else {
    dispatch_size(MoveTypes{}, itemsize(self.dtype),
                  [&](auto t) { put_typed<typename decltype(t)::type>(self, values, places, Assign{}); });
  }
}

}  // namespace

WT_KERNEL(gather, gather);
WT_KERNEL(index_select, index_select);
WT_KERNEL(scatter, scatter);
WT_KERNEL(index_add, index_add);
WT_KERNEL(index_get, index_get);
WT_KERNEL(index_put, index_put);

}  // namespace warptape::kernels::cpu
