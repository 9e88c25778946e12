// Gather, scatter and advanced indexing. Operands have any strides; offsets are in elements.
#include "kernels/index.h"

#include "kernels/cpu/common/walk.h"
#include "kernels/cpu/interrupt.h"
#include "kernels/dispatch.h"
#include "kernels/slot.h"

namespace warptape::kernels::cpu {
namespace {

// Makes `i` a valid position or reports it and returns false.
WT_INLINE bool resolve(const LaunchContext& ctx, int64_t& i, int64_t bound, bool wraps) {
  const int64_t found = i;
  if (wraps && i < 0) i += bound;
  if (i >= 0 && i < bound) return true;
  report_index(ctx, found, bound);
  return false;
}

// Shape of `index`; operands out, x (its stride along dim is the caller's to apply), index.
WT_INLINE Walk<3> indexed_walk(const View& out, const View& x, const View& index, int dim) {
  Walk<3> w = make_walk<3>(index, 0, index.ndim, {&out, &x, &index});
  if (w.ndim) w.strides[1][dim] = 0;
  return w;
}

template <class T>
void gather_typed(const LaunchContext& ctx, const View& out, const View& x, const View& index, int dim) {
  const Walk<3> w = indexed_walk(out, x, index, dim);
  const int64_t bound = x.ndim ? x.sizes[dim] : 1, step = x.ndim ? x.strides[dim] : 0;
  const int64_t so = w.inner(0), sx = w.inner(1), si = w.inner(2);
  T* po = out.as<T>();
  const T* px = x.as<T>();
  const int64_t* pi = index.as<int64_t>();
  parallel_for(w.numel(), kWalkGrain, [&](int64_t begin, int64_t end) {
    walk(w, begin, end, [&](const int64_t (&at)[3], int64_t n, const int64_t*) {
      T* o = po + at[0];
      const T* s = px + at[1];
      const int64_t* ix = pi + at[2];
      if (si == 0) {  // one index for the whole run: a copy
        int64_t i = *ix;
        if (!resolve(ctx, i, bound, false)) return;
        s += i * step;
        if (so == 1 && sx == 1)
          std::memcpy(o, s, n * sizeof(T));
        else
          for (int64_t j = 0; j < n; ++j) o[j * so] = s[j * sx];
        return;
      }
      for (int64_t j = 0; j < n; ++j) {
        int64_t i = ix[j * si];
        if (resolve(ctx, i, bound, false)) o[j * so] = s[j * sx + i * step];
      }
    });
  });
}

// `index`, one-dimensional, seen in the shape of `like` with all dims but `dim` broadcast.
struct SpreadIndex {
  View view;
  int64_t strides[kMaxDims];
  SpreadIndex(const View& like, const View& index, int dim) {
    view = index;
    for (int d = 0; d < like.ndim; ++d) strides[d] = d == dim && index.ndim ? index.strides[0] : 0;
    view.sizes = like.sizes;
    view.strides = strides;
    view.ndim = like.ndim;
  }
};

void gather(const LaunchContext& ctx, const View& out, const View& x, const View& index, int dim) {
  dispatch_size(MoveTypes{}, itemsize(x.dtype),
                [&](auto t) { gather_typed<typename decltype(t)::type>(ctx, out, x, index, dim); });
}

void index_select(const LaunchContext& ctx, const View& out, const View& x, const View& index, int dim) {
  SpreadIndex spread(out, index, dim);
  dispatch_size(MoveTypes{}, itemsize(x.dtype),
                [&](auto t) { gather_typed<typename decltype(t)::type>(ctx, out, x, spread.view, dim); });
}

struct Assign {
  template <class C>
  WT_INLINE C operator()(C, C b) const {
    return b;
  }
};
struct Multiply {
  template <class C>
  WT_INLINE C operator()(C a, C b) const {
    return C(a * b);
  }
};
struct Lesser {
  template <class C>
  WT_INLINE C operator()(C a, C b) const {
    return a != a || a < b ? a : b;
  }
};
struct Greater {
  template <class C>
  WT_INLINE C operator()(C a, C b) const {
    return a != a || a > b ? a : b;
  }
};
template <class A>
struct AddScaled {
  A alpha;
  template <class C>
  WT_INLINE C operator()(C a, C b) const {
    return C(a + C(C(alpha) * b));
  }
};
struct Add {
  template <class C>
  WT_INLINE C operator()(C a, C b) const {
    return C(a + b);
  }
};

template <class T, class Op>
WT_INLINE void combine(T& to, const T& from, Op op) {
  to = T(op(Compute<T>(to), Compute<T>(from)));
}

// Writes to one place keep the order of the indices: tasks are cut across `dim`, never along it.
template <class T, class Op>
void scatter_typed(const View& self, const View& index, const View& src, int dim, Op op) {
  const int64_t n = index.ndim ? index.sizes[dim] : 1;
  Walk<3> w = indexed_walk(src, self, index, dim);  // operands src, self, index; then without dim:
  for (int d = dim; d + 1 < w.ndim; ++d) {
    w.sizes[d] = w.sizes[d + 1];
    for (int k = 0; k < 3; ++k) w.strides[k][d] = w.strides[k][d + 1];
  }
  if (w.ndim) --w.ndim;
  const bool dim_is_last = dim == w.ndim;
  const int64_t bound = self.ndim ? self.sizes[dim] : 1, step = self.ndim ? self.strides[dim] : 0;
  const int64_t src_step = src.ndim ? src.strides[dim] : 0, index_step = index.ndim ? index.strides[dim] : 0;
  const int64_t ss = w.inner(0), st = w.inner(1), si = w.inner(2);
  const T* ps = src.as<T>();
  T* pt = self.as<T>();
  const int64_t* pi = index.as<int64_t>();
  auto one = [&](T* to, const T* from, const int64_t* ix) {
    int64_t i = *ix;
    combine(to[(i < 0 ? i + bound : i) * step], *from, op);
  };
  const int64_t grain = kWalkGrain / (n + 1) < 64 ? 64 : kWalkGrain / (n + 1);
  parallel_for(w.numel(), grain, [&](int64_t begin, int64_t end) {
    if (dim_is_last) {
      walk(w, begin, end, [&](const int64_t (&at)[3], int64_t run, const int64_t*) {
        for (int64_t j = 0; j < run; ++j)
          in_pieces(n, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i)
              one(pt + at[1] + j * st, ps + at[0] + j * ss + i * src_step,
                  pi + at[2] + j * si + i * index_step);
          });
      });
      return;
    }
    for (int64_t i = 0; i < n; ++i)
      walk(w, begin, end, [&](const int64_t (&at)[3], int64_t run, const int64_t*) {
        const T* from = ps + at[0] + i * src_step;
        const int64_t* ix = pi + at[2] + i * index_step;
        T* to = pt + at[1];
        if (si == 0 && st == 1 && ss == 1) {
          to += (*ix < 0 ? *ix + bound : *ix) * step;
          for (int64_t j = 0; j < run; ++j) combine(to[j], from[j], op);
        } else {
          for (int64_t j = 0; j < run; ++j) one(to + j * st, from + j * ss, ix + j * si);
        }
      });
  });
}

// Checked before anything is written, so that a bad index leaves `self` as it was.
bool all_valid(const LaunchContext& ctx, const View& index, int64_t bound, bool wraps) {
  const Walk<1> w = make_walk<1>(index, 0, index.ndim, {&index});
  const int64_t step = w.inner(0);
  bool bad = false;
  parallel_for(w.numel(), kWalkGrain, [&](int64_t begin, int64_t end) {
    walk(w, begin, end, [&](const int64_t (&at)[1], int64_t n, const int64_t*) {
      const int64_t* p = index.as<int64_t>() + at[0];
      if (step == 0) n = 1;
      for (int64_t j = 0; j < n; ++j) {
        int64_t i = p[j * step];
        if (!resolve(ctx, i, bound, wraps)) __atomic_store_n(&bad, true, __ATOMIC_RELAXED);
      }
    });
  });
  return !bad;
}

template <class T>
void scatter_mode(const View& self, const View& index, const View& src, int dim, ScatterMode mode) {
  switch (mode) {
    case ScatterMode::Assign:
      return scatter_typed<T>(self, index, src, dim, Assign{});
    case ScatterMode::Add:
      return scatter_typed<T>(self, index, src, dim, Add{});
    case ScatterMode::Multiply:
      return scatter_typed<T>(self, index, src, dim, Multiply{});
    case ScatterMode::AMin:
      return scatter_typed<T>(self, index, src, dim, Lesser{});
    case ScatterMode::AMax:
      return scatter_typed<T>(self, index, src, dim, Greater{});
  }
}

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
  dispatch(AllTypes{}, self.dtype,
           [&](auto t) { scatter_mode<typename decltype(t)::type>(self, index, src, dim, mode); });
}

void index_add(const LaunchContext& ctx, const View& self, const View& index, const View& src, int dim,
               double alpha) {
  if (!all_valid(ctx, index, self.ndim ? self.sizes[dim] : 1, false)) return;
  SpreadIndex spread(src, index, dim);
  if (is_complex(self.dtype)) return scatter_complex(self, spread.view, src, dim, ScatterMode::Add);
  dispatch(AllTypes{}, self.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if (alpha == 1)
      scatter_typed<T>(self, spread.view, src, dim, Add{});
    else
      scatter_typed<T>(self, spread.view, src, dim, AddScaled<double>{alpha});
  });
}

constexpr int64_t kShortRow = 32;  // elements

// Offset in x of every position of the index shape, or null after a fault.
int64_t* index_offsets(const LaunchContext& ctx, const View& x, const View* indices, int count) {
  const View& shape = indices[0];
  for (int k = 0; k < count; ++k)
    if (!all_valid(ctx, indices[k], x.sizes[k], true)) return nullptr;
  const int64_t positions = shape.numel();
  auto* offsets = static_cast<int64_t*>(ctx.scratch((positions + 1) * sizeof(int64_t)));
  for (int k = 0; k < count; ++k) {
    const Walk<1> w = make_walk<1>(shape, 0, shape.ndim, {&indices[k]});
    const int64_t step = w.inner(0), bound = x.sizes[k], stride = x.strides[k];
    parallel_for(positions, kWalkGrain, [&](int64_t begin, int64_t end) {
      int64_t* o = offsets + begin;
      walk(w, begin, end, [&](const int64_t (&at)[1], int64_t n, const int64_t*) {
        const int64_t* p = indices[k].as<int64_t>() + at[0];
        for (int64_t j = 0; j < n; ++j) {
          const int64_t i = p[j * step], add = (i < 0 ? i + bound : i) * stride;
          o[j] = k ? o[j] + add : add;
        }
        o += n;
      });
    });
  }
  return offsets;
}

void index_get(const LaunchContext& ctx, const View& out, const View& x, const View* indices, int count) {
  const int64_t* offsets = index_offsets(ctx, x, indices, count);
  if (!offsets) return;
  const Walk<1> rest = make_walk<1>(x, count, x.ndim, {&x});
  const int64_t block = rest.numel(), positions = indices[0].numel(), step = rest.inner(0);
  if (block == 0) return;
  dispatch_size(MoveTypes{}, itemsize(x.dtype), [&](auto t) {
    using T = typename decltype(t)::type;
    const T* px = x.as<T>();
    T* po = out.as<T>();
    parallel_for(positions, kWalkGrain / block + 1, [&](int64_t begin, int64_t end) {
      T* o = po + begin * block;
      for (int64_t p = begin; p < end; ++p) {
        if (rest.ndim == 0) {
          *o++ = px[offsets[p]];
          continue;
        }
        if (rest.ndim == 1 && step == 1 &&
            block <= kShortRow) {  // a walk and a call of memcpy cost more than the row
          const T* s = px + offsets[p];
          for (int64_t j = 0; j < block; ++j) *o++ = s[j];
          continue;
        }
        walk(rest, 0, block, [&](const int64_t (&at)[1], int64_t n, const int64_t*) {
          const T* s = px + offsets[p] + at[0];
          if (step == 1)
            std::memcpy(o, s, n * sizeof(T));
          else
            for (int64_t j = 0; j < n; ++j) o[j] = s[j * step];
          o += n;
        });
      }
    });
  });
}

// Positions are written in order; tasks are cut across the dims that are not indexed.
template <class T, class Op>
void put_typed(const View& self, const View& values, const View& shape, const int64_t* offsets, int count,
               Op op) {
  Walk<2> rest;
  for (int d = count; d < self.ndim; ++d) {
    rest.strides[0][rest.ndim] = self.strides[d];
    rest.strides[1][rest.ndim] = values.strides[shape.ndim + d - count];
    rest.add_dim(self.sizes[d]);
  }
  Walk<1> outer = make_walk<1>(shape, 0, shape.ndim, {&values});
  const int64_t positions = shape.numel(), st = rest.inner(0), sv = rest.inner(1),
                value_step = outer.inner(0);
  T* pt = self.as<T>();
  const T* pv = values.as<T>();
  const int64_t grain = kWalkGrain / (positions + 1) < 64 ? 64 : kWalkGrain / (positions + 1);
  parallel_for(rest.numel(), grain, [&](int64_t begin, int64_t end) {
    const int64_t* offset = offsets;
    walk(outer, 0, positions, [&](const int64_t (&first)[1], int64_t run, const int64_t*) {
      auto one = [&](int64_t i) {
        const T* from = pv + first[0] + i * value_step;
        T* to = pt + *offset++;
        if (rest.ndim == 0)
          combine(*to, *from, op);
        else
          walk(rest, begin, end, [&](const int64_t (&at)[2], int64_t n, const int64_t*) {
            for (int64_t j = 0; j < n; ++j) combine(to[at[0] + j * st], from[at[1] + j * sv], op);
          });
      };
      in_pieces(run, [&](int64_t b, int64_t e) {
        for (int64_t i = b; i < e; ++i) one(i);
      });
    });
  });
}

void index_put(const LaunchContext& ctx, const View& self, const View& values, const View* indices, int count,
               bool accumulate) {
  const int64_t* offsets = index_offsets(ctx, self, indices, count);
  if (!offsets) return;
  if (accumulate) {
    auto add = [&](auto t) {
      put_typed<typename decltype(t)::type>(self, values, indices[0], offsets, count, Add{});
    };
    if (!try_dispatch(AllTypes{}, self.dtype, add)) dispatch(ComplexTypes{}, self.dtype, add);
  } else {
    dispatch_size(MoveTypes{}, itemsize(self.dtype), [&](auto t) {
      put_typed<typename decltype(t)::type>(self, values, indices[0], offsets, count, Assign{});
    });
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
