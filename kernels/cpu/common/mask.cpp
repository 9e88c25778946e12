// Kernels whose output is chosen by position or by truth: nonzero, masked_select, masked_scatter, tril, triu,
// flip, bincount. What depends on a count of earlier elements is done in two passes over blocks of fixed
// size.
#include "kernels/cpu/common/walk.h"
#include "kernels/dispatch.h"
#include "kernels/index/index.h"
#include "kernels/slot.h"

namespace warptape::kernels::cpu {
namespace {

inline constexpr int64_t kBlock = 32768;
inline constexpr int64_t kFound = 512;  // elements whose truth is looked at before they are written

template <class T>
WT_INLINE bool is_set(T v) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
    return uint16_t(v.bits << 1) != 0;  // both zeros are unset; converting costs more
  else
    return Compute<T>(v) != Compute<T>(0);
}

// Bytes are counted in bytes, as many as cannot overflow.
template <class T>
WT_INLINE int64_t count_packed(const T* s, int64_t n) {
  int64_t count = 0, j = 0;
  if constexpr (sizeof(T) == 1)
    for (; j + 128 <= n; j += 128) {
      uint8_t some = 0;
      for (int64_t k = 0; k < 128; ++k) some = uint8_t(some + is_set(s[j + k]));
      count += some;
    }
  for (; j < n; ++j) count += is_set(s[j]);
  return count;
}

template <class T>
int64_t count_range(const Walk<1>& w, const T* p, int64_t begin, int64_t end) {
  int64_t total = 0;
  const int64_t step = w.inner(0);
  walk(w, begin, end, [&](const int64_t (&at)[1], int64_t n, const int64_t*) {
    const T* s = p + at[0];
    if (step == 1)
      total += count_packed(s, n);
    else
      for (int64_t j = 0; j < n; ++j) total += is_set(s[j * step]);
  });
  return total;
}

// before[b]: how many elements are set before block b; before[blocks]: in all.
template <class T>
int64_t* count_blocks(const LaunchContext& ctx, const Walk<1>& w, const T* p) {
  const int64_t numel = w.numel(), blocks = (numel + kBlock - 1) / kBlock;
  auto* before = static_cast<int64_t*>(ctx.scratch((blocks + 1) * sizeof(int64_t)));
  parallel_for(blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b)
      before[b] = count_range(w, p, b * kBlock, (b + 1) * kBlock < numel ? (b + 1) * kBlock : numel);
  });
  int64_t sum = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t count = before[b];
    before[b] = sum;
    sum += count;
  }
  before[blocks] = sum;
  return before;
}

// Calls f(block's begin, end, number of set elements before it, and up to its end) for every block, in
// parallel.
template <class T, class F>
void for_set_blocks(const LaunchContext& ctx, const View& x, F&& f) {
  const Walk<1> w = make_walk<1>(x, 0, x.ndim, {&x});
  const int64_t* before = count_blocks(ctx, w, x.as<T>());
  const int64_t numel = w.numel();
  parallel_for((numel + kBlock - 1) / kBlock, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b)
      f(b * kBlock, (b + 1) * kBlock < numel ? (b + 1) * kBlock : numel, before[b], before[b + 1]);
  });
}

void count_nonzero(const LaunchContext& ctx, const View& out, const View& x) {
  dispatch(AllTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Walk<1> w = make_walk<1>(x, 0, x.ndim, {&x});
    *out.as<int64_t>() = count_blocks(ctx, w, x.as<T>())[(w.numel() + kBlock - 1) / kBlock];
  });
}

void nonzero(const LaunchContext& ctx, const View& out, const View& x) {
  dispatch(AllTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Walk<1> w = make_walk<1>(x, 0, x.ndim, {&x});
    const int64_t step = w.inner(0), dims = x.ndim;
    for_set_blocks<T>(ctx, x, [&](int64_t begin, int64_t end, int64_t before, int64_t) {
      int64_t* o = out.as<int64_t>() + before * dims;
      walk(w, begin, end, [&](const int64_t (&at)[1], int64_t n, const int64_t* coordinates) {
        const T* s = x.as<T>() + at[0];
        for (int64_t j = 0; j < n; j += kFound) {
          const int64_t m = n - j < kFound ? n - j : kFound;
          int32_t found[kFound];
          int64_t count = 0;
          for (int64_t i = 0; i < m; ++i) {  // without a branch, which could not be predicted
            found[count] = int32_t(i);
            count += is_set(s[(j + i) * step]);
          }
          for (int64_t i = 0; i < count; ++i, o += dims) {
            for (int64_t d = 0; d < dims; ++d) o[d] = coordinates[d];
            if (dims) o[dims - 1] += j + found[i];
          }
        }
      });
    });
  });
}

void masked_select(const LaunchContext& ctx, const View& out, const View& x, const View& mask) {
  dispatch_size(MoveTypes{}, itemsize(x.dtype), [&](auto t) {
    using T = typename decltype(t)::type;
    const Walk<2> w = make_walk<2>(mask, 0, mask.ndim, {&x, &mask});
    const int64_t sx = w.inner(0), sm = w.inner(1);
    for_set_blocks<Bool>(ctx, mask, [&](int64_t begin, int64_t end, int64_t before, int64_t after) {
      T* o = out.as<T>() + before;
      const T* last = out.as<T>() + after;
      walk(w, begin, end, [&](const int64_t (&at)[2], int64_t n, const int64_t*) {
        const T* s = x.as<T>() + at[0];
        const Bool* m = mask.as<Bool>() + at[1];
        for (int64_t j = 0; j < n && o != last; ++j) {  // without a branch on the mask
          *o = s[j * sx];
          o += is_set(m[j * sm]);
        }
      });
    });
  });
}

void masked_scatter(const LaunchContext& ctx, const View& self, const View& mask, const View& src) {
  dispatch_size(MoveTypes{}, itemsize(self.dtype), [&](auto t) {
    using T = typename decltype(t)::type;
    const Walk<2> w = make_walk<2>(mask, 0, mask.ndim, {&self, &mask});
    const int64_t st = w.inner(0), sm = w.inner(1);
    for_set_blocks<Bool>(ctx, mask, [&](int64_t begin, int64_t end, int64_t before, int64_t) {
      const T* s = src.as<T>() + before;
      walk(w, begin, end, [&](const int64_t (&at)[2], int64_t n, const int64_t*) {
        T* o = self.as<T>() + at[0];
        const Bool* m = mask.as<Bool>() + at[1];
        for (int64_t j = 0; j < n; ++j)
          if (m[j * sm]) o[j * st] = *s++;
      });
    });
  });
}

WT_INLINE int64_t clamp(int64_t v, int64_t low, int64_t high) { return v < low ? low : v > high ? high : v; }

// Row r keeps columns [0, r + diagonal] (tril) or [r + diagonal, cols) (triu).
template <bool Upper>
void triangle(const LaunchContext&, const View& out, const View& x, int64_t diagonal) {
  const int64_t cols = x.sizes[x.ndim - 1], rows = x.sizes[x.ndim - 2];
  if (out.numel() == 0) return;
  const Walk<1> w = make_walk<1>(x, 0, x.ndim - 1, {&x});  // a position is a row
  const int64_t step = x.strides[x.ndim - 1];
  dispatch_size(MoveTypes{}, itemsize(x.dtype), [&](auto t) {
    using T = typename decltype(t)::type;
    parallel_for(w.numel(), kWalkGrain / cols + 1, [&](int64_t begin, int64_t end) {
      int64_t row = begin;
      walk(w, begin, end, [&](const int64_t (&at)[1], int64_t n, const int64_t*) {
        for (int64_t k = 0; k < n; ++k, ++row) {
          const int64_t r = row % rows;
          const int64_t first = Upper ? clamp(r + diagonal, 0, cols) : 0;
          const int64_t last = Upper ? cols : clamp(r + diagonal + 1, 0, cols);
          T* o = out.as<T>() + row * cols;
          const T* s = x.as<T>() + at[0] + k * w.inner(0);
          for (int64_t j = 0; j < first; ++j) o[j] = T(0);
          for (int64_t j = first; j < last; ++j) o[j] = s[j * step];
          for (int64_t j = last; j < cols; ++j) o[j] = T(0);
        }
      });
    });
  });
}

void flip(const LaunchContext&, const View& out, const View& x, uint32_t dims) {
  Walk<1> w = make_walk<1>(x, 0, x.ndim, {&x});
  int64_t start = 0;
  for (int d = 0; d < x.ndim; ++d) {
    if (!(dims >> d & 1)) continue;
    start += (x.sizes[d] - 1) * x.strides[d];
    w.strides[0][d] = -x.strides[d];
  }
  const int64_t step = w.inner(0);
  dispatch_size(MoveTypes{}, itemsize(x.dtype), [&](auto t) {
    using T = typename decltype(t)::type;
    parallel_for(w.numel(), kWalkGrain, [&](int64_t begin, int64_t end) {
      T* o = out.as<T>() + begin;
      walk(w, begin, end, [&](const int64_t (&at)[1], int64_t n, const int64_t*) {
        const T* s = x.as<T>() + start + at[0];
        if (step == 1)
          std::memcpy(o, s, n * sizeof(T));
        else if (step == -1)  // a loop of its own, which vectorises
          for (int64_t j = 0; j < n; ++j) o[j] = s[-j];
        else
          for (int64_t j = 0; j < n; ++j) o[j] = s[j * step];
        o += n;
      });
    });
  });
}

void bincount(const LaunchContext& ctx, const View& out, const View& x, const View& weights) {
  const int64_t bins = out.numel(), n = x.numel();
  std::memset(out.data, 0, bins * itemsize(out.dtype));
  auto add = [&](auto* o, auto weight) {
    dispatch(IntTypes{}, x.dtype, [&](auto t) {
      const auto* p = x.as<typename decltype(t)::type>();
      for (int64_t i = 0; i < n; ++i) {
        const int64_t bin = p[i];
        if (bin < 0 || bin >= bins) return report_index(ctx, bin, bins);
        o[bin] += weight(i);
      }
    });
  };
  if (!weights.data) return add(out.as<int64_t>(), [](int64_t) { return int64_t{1}; });
  dispatch(Types<float, double>{}, out.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    add(out.as<T>(), [w = weights.as<T>()](int64_t i) { return w[i]; });
  });
}

}  // namespace

WT_KERNEL(count_nonzero, count_nonzero);
WT_KERNEL(nonzero, nonzero);
WT_KERNEL(masked_select, masked_select);
WT_KERNEL(masked_scatter, masked_scatter);
WT_KERNEL(tril, triangle<false>);
WT_KERNEL(triu, triangle<true>);
WT_KERNEL(flip, flip);
WT_KERNEL(bincount, bincount);

}  // namespace warptape::kernels::cpu
