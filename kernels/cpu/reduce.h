// The reduction driver. A reducer has, on vectors, identity(), map(x, center) and combine(a, b); the driver
// walks any layout: along rows where the reduced dim is the fast one, down columns where a kept dim is. Both
// cut the work into blocks of fixed size and combine the blocks pairwise.
#pragma once

#include "kernels/cpu/convert.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vecmath.h"
#include "kernels/dispatch.h"
#include "kernels/reduce.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {

struct Dim {
  int64_t size;
  int64_t stride;  // of the input, in bytes
  int64_t to;      // of the output, in elements; 0 for reduced dims
};

// Kept and reduced dims, merged where both sides allow it, each list with at least one dim.
struct Geometry {
  const char* data;
  DType dtype;
  int64_t item;
  int kept_dims, reduced_dims;
  Dim kept[kMaxDims], reduced[kMaxDims];
  int64_t kept_count, reduced_count;
  int column;  // the kept dim to vectorise over, or -1 to go along rows
};
// `ordered` keeps the reduced dims in their order (for indices); else the fastest becomes the last.
Geometry geometry_of(const View& out, const View& in);

// Offset in bytes of kept element i; its place in the output goes to *to.
int64_t locate(const Dim* dims, int count, int64_t i, int64_t* to);

inline constexpr int64_t kRowBlock = 512;       // elements between two steps of the pairwise sum
inline constexpr int64_t kColumnRows = 64;      // likewise, rows of a column tile
inline constexpr int64_t kColumnTile = 256;     // columns of a tile
inline constexpr int64_t kReduceGrain = 32768;  // elements a worker takes at once
inline constexpr int64_t kSplitGrain = 65536;   // elements of one part of a long reduction
inline constexpr int64_t kSplitOutputs = 64;    // with fewer outputs than this, long reductions are split

// Sums of equally many blocks are combined with each other: the binary counter form of pairwise summation.
template <class Red, class T>
struct Cascade {
  Vec<T> stack[48];
  int depth = 0;
  uint64_t count = 0;

  WT_FN void add(Vec<T> v) {
    for (uint64_t c = count++; c & 1; c >>= 1) v = Red::combine(stack[--depth], v);
    stack[depth++] = v;
  }
  WT_FN Vec<T> total() {
    if (depth == 0) return Red::template identity<T>();
    Vec<T> v = stack[--depth];
    while (depth) v = Red::combine(stack[--depth], v);
    return v;
  }
};

// The lanes of v combined by halves.
template <class Red, class T>
WT_FN T across(Vec<T> v) {
  for (int half = Vec<T>::kLanes / 2; half; half /= 2) {
    Vec<T> w = v;
    for (int i = 0; i < half; ++i) w.v[i] = v.v[i + half];
    v = Red::combine(v, w);
  }
  return v.v[0];
}

template <class Red, class T>
WT_FN Vec<T> reduce_block(const T* p, int64_t n, Vec<T> center) {
  constexpr int L = Vec<T>::kLanes;
  const Vec<T> identity = Red::template identity<T>();
  Vec<T> a0 = identity, a1 = identity, a2 = identity, a3 = identity;
  for (; n >= 4 * L; n -= 4 * L, p += 4 * L) {
    a0 = Red::combine(a0, Red::map(Vec<T>::load(p), center));
    a1 = Red::combine(a1, Red::map(Vec<T>::load(p + L), center));
    a2 = Red::combine(a2, Red::map(Vec<T>::load(p + 2 * L), center));
    a3 = Red::combine(a3, Red::map(Vec<T>::load(p + 3 * L), center));
  }
  for (; n >= L; n -= L, p += L) a0 = Red::combine(a0, Red::map(Vec<T>::load(p), center));
  if (n > 0) {
    Vec<T> x = Red::map(load_partial<T>(p, int(n)), center);
    a1 = Red::combine(a1, select(mask_first<T>(int(n)), x, identity));
  }
  return Red::combine(Red::combine(a0, a1), Red::combine(a2, a3));
}

// Rows of the reduced space from linear index `begin` to `end`, as packed pieces of T of at most kRowBlock
// elements.
template <class T, class F>
WT_FN void for_each_piece(const Geometry& g, const char* base, int64_t begin, int64_t end, F&& f) {
  const Dim& row = g.reduced[g.reduced_dims - 1];
  const bool direct = g.dtype == dtype_of<T> && row.stride == g.item;
  ConvertFn* convert = converter(g.dtype, dtype_of<T>);
  alignas(64) T values[kRowBlock];
  alignas(64) char raw[kRowBlock * 8];
  int64_t ignored;
  while (begin < end) {
    const int64_t at = begin % row.size;
    int64_t n = row.size - at < end - begin ? row.size - at : end - begin;
    const char* p =
        base + locate(g.reduced, g.reduced_dims - 1, begin / row.size, &ignored) + at * row.stride;
    begin += n;
    for (; n > 0; n -= kRowBlock, p += kRowBlock * row.stride) {
      const int64_t m = n < kRowBlock ? n : kRowBlock;
      const T* piece = reinterpret_cast<const T*>(p);
      if (!direct) {
        const char* packed = p;
        if (row.stride != g.item) {
          gather(m, raw, p, row.stride, size_t(g.item));
          packed = raw;
        }
        convert(m, values, packed);
        piece = values;
      }
      f(piece, m);
    }
  }
}

template <class Red, class T>
T reduce_rows(const Geometry& g, const char* base, int64_t begin, int64_t end, T center) {
  const Dim& row = g.reduced[g.reduced_dims - 1];
  const Vec<T> c(center);
  if (g.dtype == dtype_of<T> && row.stride == g.item && g.reduced_dims == 1 && end - begin <= kRowBlock)
    return across<Red, T>(reduce_block<Red, T>(reinterpret_cast<const T*>(base) + begin, end - begin, c));
  Cascade<Red, T> sum;
  for_each_piece<T>(g, base, begin, end,
                    [&](const T* p, int64_t n) { sum.add(reduce_block<Red, T>(p, n, c)); });
  return across<Red, T>(sum.total());
}

// One tile: columns [0, n) at `base` over the reduced indices [begin, end).
template <class Red, class T>
void reduce_columns(const Geometry& g, const char* base, int64_t n, int64_t begin, int64_t end,
                    const T* center, T* result) {
  using V = Vec<T>;
  constexpr int L = V::kLanes;
  constexpr int64_t kVecs = kColumnTile / L;
  const int64_t vecs = (n + L - 1) / L;
  const bool direct = g.dtype == dtype_of<T> && g.kept[g.column].stride == g.item;
  const V identity = Red::template identity<T>();
  V centers[kVecs];
  for (int64_t v = 0; v < vecs; ++v) {
    const int64_t rest = n - v * L;
    centers[v] = !center     ? V(0)
                 : rest >= L ? V::load(center + v * L)
                             : load_partial<T>(center + v * L, int(rest));
  }
  Cascade<Red, T> sums[kVecs];
  const T* rows[kColumnRows];
  alignas(64) T values[kColumnRows / 4][kColumnTile];
  alignas(64) char raw[kColumnTile * 8];
  ConvertFn* convert = converter(g.dtype, dtype_of<T>);
  // Converted rows need room, so there are fewer of them in a block.
  const int64_t step = direct ? kColumnRows : kColumnRows / 4;
  const int64_t stride = g.kept[g.column].stride;
  int64_t ignored;
  for (; begin < end; begin += step) {
    const int64_t m = end - begin < step ? end - begin : step;
    for (int64_t r = 0; r < m; ++r) {
      const char* p = base + locate(g.reduced, g.reduced_dims, begin + r, &ignored);
      rows[r] = direct ? reinterpret_cast<const T*>(p) : values[r];
      if (direct) continue;
      if (stride != g.item) {
        gather(n, raw, p, stride, size_t(g.item));
        p = raw;
      }
      convert(n, values[r], p);
    }
    int64_t v = 0;
    for (; (v + 4) * L <= n; v += 4) {
      V a0 = identity, a1 = identity, a2 = identity, a3 = identity;
      for (int64_t r = 0; r < m; ++r) {
        const T* p = rows[r] + v * L;
        a0 = Red::combine(a0, Red::map(V::load(p), centers[v]));
        a1 = Red::combine(a1, Red::map(V::load(p + L), centers[v + 1]));
        a2 = Red::combine(a2, Red::map(V::load(p + 2 * L), centers[v + 2]));
        a3 = Red::combine(a3, Red::map(V::load(p + 3 * L), centers[v + 3]));
      }
      sums[v].add(a0);
      sums[v + 1].add(a1);
      sums[v + 2].add(a2);
      sums[v + 3].add(a3);
    }
    for (; v < vecs; ++v) {
      const int64_t rest = n - v * L;
      V a = identity;
      for (int64_t r = 0; r < m; ++r) {
        const T* p = rows[r] + v * L;
        a = Red::combine(a, Red::map(rest >= L ? V::load(p) : load_partial<T>(p, int(rest)), centers[v]));
      }
      sums[v].add(a);
    }
  }
  for (int64_t v = 0; v < vecs; ++v) {
    const int64_t rest = n - v * L;
    V total = sums[v].total();
    if (rest >= L)
      total.store(result + v * L);
    else
      store_partial(result + v * L, total, int(rest));
  }
}

// Kept elements in an order in which the column dim is the last: unit u of `tiles` per line is a tile of
// columns.
template <class Red, class T>
struct ColumnWork {
  const Geometry* g;
  const T* center;
  T* result;
  int64_t tiles;  // per line of columns
  Dim outer[kMaxDims];
  int outer_dims;

  ColumnWork(const Geometry& geometry, const T* c, T* r) : g(&geometry), center(c), result(r), outer_dims(0) {
    tiles = (g->kept[g->column].size + kColumnTile - 1) / kColumnTile;
    for (int d = 0; d < g->kept_dims; ++d)
      if (d != g->column) outer[outer_dims++] = g->kept[d];
  }
  int64_t units() const { return g->kept_count / g->kept[g->column].size * tiles; }
  void run(int64_t unit, int64_t begin, int64_t end, T* to) const {
    const Dim& column = g->kept[g->column];
    int64_t at = 0;
    const char* base = g->data + locate(outer, outer_dims, unit / tiles, &at);
    const int64_t first = unit % tiles * kColumnTile;
    const int64_t n = column.size - first < kColumnTile ? column.size - first : kColumnTile;
    at += first * column.to;
    base += first * column.stride;
    if (column.to == 1)
      return reduce_columns<Red, T>(*g, base, n, begin, end, center ? center + at : nullptr, to + at);
    T centers[kColumnTile] = {}, results[kColumnTile];
    for (int64_t i = 0; i < n; ++i) centers[i] = center ? center[at + i * column.to] : T(0);
    reduce_columns<Red, T>(*g, base, n, begin, end, center ? centers : nullptr, results);
    for (int64_t i = 0; i < n; ++i) to[at + i * column.to] = results[i];
  }
};

// Partial results of the parts [parts][outputs], combined pairwise into the outputs.
template <class Red, class T>
void combine_parts(const T* partial, int64_t parts, int64_t outputs, T* result) {
  for (int64_t i = 0; i < outputs; ++i) {
    Cascade<Red, T> sum;
    for (int64_t p = 0; p < parts; ++p) sum.add(Vec<T>(partial[p * outputs + i]));
    result[i] = sum.total().v[0];
  }
}

// result[i] (packed, in the output's order) = reduction of map(x, center[i]); center may be null.
template <class Red, class T>
void reduce_into(const LaunchContext& ctx, const Geometry& g, const T* center, T* result) {
  const int64_t outputs = g.kept_count, count = g.reduced_count;
  if (outputs == 0) return;
  const bool split = outputs < kSplitOutputs && count * outputs > 2 * kSplitGrain && count > 1;
  const int64_t per_part = split ? (kSplitGrain / (g.column >= 0 ? outputs : 1) + 1) : count;
  const int64_t parts = split ? (count + per_part - 1) / per_part : 1;
  T* to = split ? static_cast<T*>(ctx.scratch(size_t(parts * outputs) * sizeof(T))) : result;
  const int64_t cost = count < per_part ? count : per_part;
  if (g.column >= 0) {
    const ColumnWork<Red, T> work(g, center, result);
    const int64_t units = work.units(), width = outputs / units + 1;
    const int64_t grain = kReduceGrain / (cost * width + 1) + 1;
    cpu::parallel_for(units * parts, grain, [&](int64_t b, int64_t e) {
      for (int64_t u = b; u < e; ++u) {
        const int64_t part = u / units, first = part * per_part;
        const int64_t last = first + per_part < count ? first + per_part : count;
        work.run(u % units, first, last, to + part * outputs);
      }
    });
  } else {
    cpu::parallel_for(outputs * parts, kReduceGrain / (cost + 16) + 1, [&](int64_t b, int64_t e) {
      for (int64_t u = b; u < e; ++u) {
        const int64_t part = u / outputs, first = part * per_part;
        const int64_t last = first + per_part < count ? first + per_part : count;
        int64_t at;
        const char* base = g.data + locate(g.kept, g.kept_dims, u % outputs, &at);
        to[part * outputs + at] = reduce_rows<Red, T>(g, base, first, last, center ? center[at] : T(0));
      }
    });
  }
  if (split) combine_parts<Red, T>(to, parts, outputs, result);
}

// Calls f with memory for the results in T: the output itself, or scratch that is converted into it
// afterwards.
template <class T, class F>
WT_FN void with_results(const LaunchContext& ctx, const View& out, int64_t n, F&& f) {
  if (out.dtype == dtype_of<T>) return f(out.as<T>());
  T* results = static_cast<T*>(ctx.scratch(size_t(n) * sizeof(T)));
  f(results);
  converter(dtype_of<T>, out.dtype)(n, out.data, results);
}

// Calls f with a tag of the type in which values of `dtype` are reduced.
template <class F>
WT_FN void dispatch_compute(DType dtype, F&& f) {
  if (dtype == DType::Float64)
    f(Tag<double>{});
  else if (is_floating(dtype))
    f(Tag<float>{});
  else
    f(Tag<int64_t>{});
}

}  // namespace warptape::kernels::WARPTAPE_ISA
