// Combining values into places that indices name, for index.cpp, and for the kernels of each instruction set
// that do it on narrow floats: in the namespace of theirs, without external linkage.
#pragma once

#include "kernels/cpu/common/walk.h"
#include "kernels/dispatch.h"
#include "kernels/index/index.h"
#include "kernels/runtime/interrupt.h"

#if defined(WARPTAPE_ISA)
namespace warptape::kernels::WARPTAPE_ISA {
#else
namespace warptape::kernels::cpu {
#endif
namespace {

using namespace cpu;  // walk.h

// Shape of `index`; operands out, x (its stride along dim is the caller's to apply), index.
WT_INLINE Walk<3> indexed_walk(const View& out, const View& x, const View& index, int dim) {
  Walk<3> w = make_walk<3>(index, 0, index.ndim, {&out, &x, &index});
  if (w.ndim) w.strides[1][dim] = 0;
  return w;
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
template <class T, class Op>
WT_INLINE void combine_row(T* to, const T* from, int64_t n, Op op) {
  if constexpr (requires { op.row(to, from, n); })
    op.row(to, from, n);
  else
    for (int64_t i = 0; i < n; ++i) combine(to[i], from[i], op);
}

// A line along the indexed dim, whose steps are those of the operands.
struct LineSteps {
  int64_t to, from, index;
};
template <class T, class Op>
WT_INLINE void combine_line(T* to, const T* from, const int64_t* ix, int64_t n, LineSteps step, Op op) {
  if (step.to == 1 && step.from == 1 && step.index == 1)
    for (int64_t i = 0; i < n; ++i) combine(to[ix[i]], from[i], op);
  else
    for (int64_t i = 0; i < n; ++i) combine(to[ix[i * step.index] * step.to], from[i * step.from], op);
}

// Writes to one place keep the order of the indices: tasks are cut across `dim`, never along it. All indices
// are valid.
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
  const int64_t step = self.ndim ? self.strides[dim] : 0;
  const int64_t src_step = src.ndim ? src.strides[dim] : 0, index_step = index.ndim ? index.strides[dim] : 0;
  const int64_t ss = w.inner(0), st = w.inner(1), si = w.inner(2);
  const T* ps = src.as<T>();
  T* pt = self.as<T>();
  const int64_t* pi = index.as<int64_t>();
  const int64_t grain = kWalkGrain / (n + 1) < 64 ? 64 : kWalkGrain / (n + 1);
  parallel_for(w.numel(), grain, [&](int64_t begin, int64_t end) {
    if (dim_is_last) {
      walk(w, begin, end, [&](const int64_t (&at)[3], int64_t run, const int64_t*) {
        for (int64_t j = 0; j < run; ++j)
          in_pieces(n, [&](int64_t first, int64_t last) {
            combine_line(pt + at[1] + j * st, ps + at[0] + j * ss + first * src_step,
                         pi + at[2] + j * si + first * index_step, last - first,
                         LineSteps{step, src_step, index_step}, op);
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
          combine_row(to + *ix * step, from, run, op);
        } else {
          for (int64_t j = 0; j < run; ++j) combine(to[j * st + ix[j * si] * step], from[j * ss], op);
        }
      });
  });
}

template <class T, class Sum = Add>
void scatter_mode(const View& self, const View& index, const View& src, int dim, ScatterMode mode) {
  switch (mode) {
    case ScatterMode::Assign:
      return scatter_typed<T>(self, index, src, dim, Assign{});
    case ScatterMode::Add:
      return scatter_typed<T>(self, index, src, dim, Sum{});
    case ScatterMode::Multiply:
      return scatter_typed<T>(self, index, src, dim, Multiply{});
    case ScatterMode::AMin:
      return scatter_typed<T>(self, index, src, dim, Lesser{});
    case ScatterMode::AMax:
      return scatter_typed<T>(self, index, src, dim, Greater{});
  }
}

}  // namespace
}  // namespace warptape::kernels::(WARPTAPE_ISA or cpu)
