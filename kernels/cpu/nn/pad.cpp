// Padding, row by row. For padding with the input's own elements one table per dim says where an output index
// comes from; the range of a row in which the input stands as it is, is moved as a whole.
#include "kernels/nn/pad.h"

#include "kernels/cpu/vector/rows.h"
#include "kernels/cpu/view/convert.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int kRow = kPaddedDims - 1;

// Where output index i of a dim comes from.
WT_FN int64_t source(const PadPlan& p, int dim, int64_t i) {
  const int64_t n = p.in[dim], before = p.before[dim], after = p.after[dim];
  int64_t j = i - before;
  switch (p.mode) {
    case PadMode::Reflect:
      if (j < 0) j = -j;
      return j < n ? j : 2 * (n - 1) - j;
    case PadMode::Replicate:
      return j < 0 ? 0 : j < n ? j : n - 1;
    case PadMode::Circular:
    case PadMode::Constant:
      break;
  }
  // What negative padding took away does not come back around the other end.
  const int64_t first = before < 0 ? -before : 0, last = after < 0 ? n + after : n;
  const int64_t turn = (j - first) % (last - first);
  return turn < 0 ? turn + last : turn + first;
}

struct Tables {
  const int64_t* from[kPaddedDims];
  int64_t copied, count;  // output elements [copied, copied + count) of a row come one after the other

  Tables(const LaunchContext& ctx, const PadPlan& p) {
    for (int d = 0; d < kPaddedDims; ++d) {
      int64_t* table = static_cast<int64_t*>(ctx.scratch(size_t(p.out[d]) * sizeof(int64_t)));
      for (int64_t i = 0; i < p.out[d]; ++i) table[i] = source(p, d, i);
      from[d] = table;
    }
    const int64_t row = p.out[kRow], before = p.before[kRow], after = p.after[kRow];
    copied = before <= 0 ? 0 : before < row ? before : row;
    count = row - copied - (after > 0 ? after : 0);
    if (count < 0) count = 0;
  }
  // Where the input row of output row (i, j) of a plane begins.
  WT_FN int64_t row(const PadPlan& p, int64_t plane, int64_t i, int64_t j) const {
    return ((plane * p.in[0] + from[0][i]) * p.in[1] + from[1][j]) * p.in[kRow];
  }
};

WT_FN int64_t plane_grain(const PadPlan& p) { return row_grain(p.out[0] * p.out[1] * p.out[kRow]); }

void pad_constant(const LaunchContext&, const View& out, const View& x, const PadPlan& p, const void* value) {
  const int64_t skipped = p.before[kRow] < 0 ? -p.before[kRow] : 0;
  const int64_t left = p.before[kRow] > 0 ? p.before[kRow] : 0;
  const int64_t kept = p.in[kRow] - skipped + (p.after[kRow] < 0 ? p.after[kRow] : 0);
  dispatch_size(MoveTypes{}, itemsize(p.dtype), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T fill;
    std::memcpy(&fill, value, sizeof(T));
    cpu::parallel_for(p.planes, plane_grain(p), [&](int64_t begin, int64_t end) {
      T* to = out.as<T>() + begin * p.out[0] * p.out[1] * p.out[kRow];
      for (int64_t plane = begin; plane < end; ++plane)
        for (int64_t i = -p.before[0]; i < p.out[0] - p.before[0]; ++i)
          for (int64_t j = -p.before[1]; j < p.out[1] - p.before[1]; ++j, to += p.out[kRow]) {
            const bool inside = i >= 0 && i < p.in[0] && j >= 0 && j < p.in[1] && kept > 0;
            const int64_t at = ((plane * p.in[0] + i) * p.in[1] + j) * p.in[kRow] + skipped;
            if (inside) std::memcpy(to + left, x.as<T>() + at, size_t(kept) * sizeof(T));
            const int64_t first = inside ? left : p.out[kRow];
            for (int64_t k = 0; k < first; ++k) to[k] = fill;
            for (int64_t k = first + kept; k < p.out[kRow]; ++k) to[k] = fill;
          }
    });
  });
}

void pad(const LaunchContext& ctx, const View& out, const View& x, const PadPlan& p) {
  const Tables t(ctx, p);
  const int64_t* from = t.from[kRow];
  dispatch_size(MoveTypes{}, itemsize(p.dtype), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cpu::parallel_for(p.planes, plane_grain(p), [&](int64_t begin, int64_t end) {
      T* to = out.as<T>() + begin * p.out[0] * p.out[1] * p.out[kRow];
      for (int64_t plane = begin; plane < end; ++plane)
        for (int64_t i = 0; i < p.out[0]; ++i)
          for (int64_t j = 0; j < p.out[1]; ++j, to += p.out[kRow]) {
            const T* row = x.as<T>() + t.row(p, plane, i, j);
            for (int64_t k = 0; k < t.copied; ++k) to[k] = row[from[k]];
            if (t.count > 0) std::memcpy(to + t.copied, row + from[t.copied], size_t(t.count) * sizeof(T));
            for (int64_t k = t.copied + t.count; k < p.out[kRow]; ++k) to[k] = row[from[k]];
          }
    });
  });
}

template <class T, class C>
WT_FN void add_row(C* to, const T* g, int64_t n) {
  for_vectors<C>(
      n, [&](int64_t k, auto lanes) { store(to + k, load(to + k, lanes) + load(g + k, lanes), lanes); });
}
template <class T>
WT_FN void add_row(Complex<T>* to, const Complex<T>* g, int64_t n) {
  add_row(&to->re, &g->re, 2 * n);
}

// C adds; T is how the gradients are stored.
template <class T, class C>
void add_back(const PadPlan& p, const Tables& t, C* dx, const T* dout) {
  const int64_t* from = t.from[kRow];
  const int64_t plane_in = p.in[0] * p.in[1] * p.in[kRow], plane_out = p.out[0] * p.out[1] * p.out[kRow];
  cpu::parallel_for(p.planes, plane_grain(p), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      std::memset(static_cast<void*>(dx + plane * plane_in), 0, size_t(plane_in) * sizeof(C));
      const T* g = dout + plane * plane_out;
      for (int64_t i = 0; i < p.out[0]; ++i)
        for (int64_t j = 0; j < p.out[1]; ++j, g += p.out[kRow]) {
          C* row = dx + t.row(p, plane, i, j);
          for (int64_t k = 0; k < t.copied; ++k) row[from[k]] = row[from[k]] + C(g[k]);
          if (t.count > 0) add_row(row + from[t.copied], g + t.copied, t.count);
          for (int64_t k = t.copied + t.count; k < p.out[kRow]; ++k) row[from[k]] = row[from[k]] + C(g[k]);
        }
    }
  });
}

void pad_backward(const LaunchContext& ctx, const View& dx, const View& dout, const PadPlan& p) {
  const Tables t(ctx, p);
  const auto add = [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Compute<T>;
    if constexpr (std::is_same_v<T, C>) {
      add_back(p, t, dx.as<C>(), dout.as<const T>());
    } else {
      const int64_t n = p.planes * p.in[0] * p.in[1] * p.in[kRow];
      C* wide = static_cast<C*>(ctx.scratch(size_t(n) * sizeof(C)));
      add_back(p, t, wide, dout.as<const T>());
      converter(dtype_of<C>, p.dtype)(n, dx.data, wide);
    }
  };
  if (!try_dispatch(ComplexTypes{}, p.dtype, add)) dispatch(FloatTypes{}, p.dtype, add);
}

}  // namespace

WT_KERNEL(pad_constant, pad_constant);
WT_KERNEL(pad, pad);
WT_KERNEL(pad_backward, pad_backward);

}  // namespace warptape::kernels::WARPTAPE_ISA
