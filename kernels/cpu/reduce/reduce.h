// The reduction driver. A reducer has, on vectors, identity(), map(x, center) and combine(a, b); the driver
// walks any layout: along rows where the reduced dim is the fast one, down columns where a kept dim is. Both
// cut the work into blocks of fixed size and combine the blocks pairwise.
#pragma once

#include <utility>

#include "kernels/cpu/vector/vecmath.h"
#include "kernels/cpu/view/convert.h"
#include "kernels/dispatch.h"
#include "kernels/reduce/reduce.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/runtime/parallel.h"
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

inline constexpr int64_t kRowBlock = 1024;      // elements between two steps of the pairwise sum
inline constexpr int64_t kPollPieces = 64;      // pieces of a row or column between two looks for Ctrl-C
inline constexpr int64_t kColumnRows = 64;      // likewise, rows of a column tile
inline constexpr int64_t kConvertedRows = 8;    // likewise, where rows are converted first
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

// One round of the tree below: of a and b, lanes in runs of 2 kRun, the first halves of the runs combined
// with the second ones; a's results fill the even runs, b's the odd ones.
template <class Red, class T, int kRun, int... I>
WT_FN Vec<T> fold_pair(Vec<T> a, Vec<T> b, std::integer_sequence<int, I...>) {
  constexpr int L = Vec<T>::kLanes;
  using Index = IntRaw<T>;
  const Index first = {(I / kRun % 2 * L + I / (2 * kRun) * 2 * kRun + I % kRun)...};
  return Red::combine(Vec<T>(__builtin_shuffle(a.v, b.v, first)),
                      Vec<T>(__builtin_shuffle(a.v, b.v, first + kRun)));
}

// Lane i of the result is the combination of all lanes of x[i]: as many sums across as there are lanes, in
// one tree.
template <class Red, class T, int kRun = Vec<T>::kLanes / 2>
WT_FN Vec<T> across(Vec<T>* x) {
  for (int i = 0; i < kRun; ++i)
    x[i] = fold_pair<Red, T, kRun>(x[i], x[i + kRun], std::make_integer_sequence<int, Vec<T>::kLanes>{});
  if constexpr (kRun == 1)
    return x[0];
  else
    return across<Red, T, kRun / 2>(x);
}

// The same for many vectors side by side, which all have the same count; level by level, so that the lower
// levels, which are all that is ever touched, lie together.
template <class Red, class T, int64_t kVecs>
struct CascadeOf {
  Vec<T> levels[40][kVecs];
  uint64_t count = 0;

  WT_FN void add(int64_t at, Vec<T> v) {
    int level = 0;
    for (uint64_t c = count; c & 1; c >>= 1) v = Red::combine(levels[level++][at], v);
    levels[level][at] = v;
  }
  WT_FN Vec<T> total(int64_t at) const {
    Vec<T> v = Red::template identity<T>();
    int level = 0;
    for (uint64_t c = count; c; c >>= 1, ++level)
      if (c & 1) v = Red::combine(levels[level][at], v);
    return v;
  }
};

// S is how values are stored: T itself, or a narrow float that is widened as it is loaded.
template <class T, class S>
WT_FN Vec<T> load_as(const S* p) {
  if constexpr (std::is_same_v<T, S>)
    return Vec<T>::load(p);
  else
    return load_as_float(p);
}
template <class T, class S>
WT_FN Vec<T> load_partial_as(const S* p, int64_t n) {
  if constexpr (std::is_same_v<T, S>) {
    return load_partial<T>(p, int(n));
  } else {
    S values[Vec<T>::kLanes] = {};
    for (int64_t i = 0; i < n; ++i) values[i] = p[i];
    return load_as_float(values);
  }
}

template <class Red, class T, class S>
WT_FN Vec<T> reduce_block(const S* p, int64_t n, Vec<T> center) {
  constexpr int L = Vec<T>::kLanes;
  const Vec<T> identity = Red::template identity<T>();
  Vec<T> a0 = identity, a1 = identity, a2 = identity, a3 = identity;
  for (; n >= 4 * L; n -= 4 * L, p += 4 * L) {
    a0 = Red::combine(a0, Red::map(load_as<T>(p), center));
    a1 = Red::combine(a1, Red::map(load_as<T>(p + L), center));
    a2 = Red::combine(a2, Red::map(load_as<T>(p + 2 * L), center));
    a3 = Red::combine(a3, Red::map(load_as<T>(p + 3 * L), center));
  }
  for (; n >= L; n -= L, p += L) a0 = Red::combine(a0, Red::map(load_as<T>(p), center));
  if (n > 0) {
    Vec<T> x = Red::map(load_partial_as<T>(p, n), center);
    a1 = Red::combine(a1, select(mask_first<T>(int(n)), x, identity));
  }
  return Red::combine(Red::combine(a0, a1), Red::combine(a2, a3));
}

// Rows of the reduced space from linear index `begin` to `end`, as packed pieces of S of at most kRowBlock
// elements.
template <class S, class F>
WT_FN void for_each_piece(const Geometry& g, const char* base, int64_t begin, int64_t end, F&& f) {
  const Dim& row = g.reduced[g.reduced_dims - 1];
  const bool same = g.dtype == dtype_of<S>, packed = row.stride == g.item;
  ConvertFn* convert = same ? nullptr : converter(g.dtype, dtype_of<S>);
  alignas(64) S values[kRowBlock];
  alignas(64) char raw[kRowBlock * 8];
  int64_t ignored, pieces = 0;
  while (begin < end) {
    const int64_t line = begin / row.size, at = begin - line * row.size;
    int64_t n = row.size - at < end - begin ? row.size - at : end - begin;
    const char* p = base + locate(g.reduced, g.reduced_dims - 1, line, &ignored) + at * row.stride;
    begin += n;
    for (; n > 0; n -= kRowBlock, p += kRowBlock * row.stride) {
      if (++pieces % kPollPieces == 0) cpu::poll_interrupt();
      const int64_t m = n < kRowBlock ? n : kRowBlock;
      const char* piece = p;
      if (!packed) {
        gather(m, raw, p, row.stride, size_t(g.item));
        piece = raw;
      }
      if (!same) {
        convert(m, values, piece);
        piece = reinterpret_cast<const char*>(values);
      }
      f(reinterpret_cast<const S*>(piece), m);
    }
  }
}

// The result is spread over the lanes of a vector.
template <class Red, class T, class S>
WT_FN Vec<T> reduce_rows(const Geometry& g, const char* base, int64_t begin, int64_t end, T center) {
  const Dim& row = g.reduced[g.reduced_dims - 1];
  const Vec<T> c(center);
  if (g.dtype == dtype_of<S> && row.stride == g.item && g.reduced_dims == 1 && end - begin <= kRowBlock)
    return reduce_block<Red, T>(reinterpret_cast<const S*>(base) + begin, end - begin, c);
  Cascade<Red, T> sum;
  for_each_piece<S>(g, base, begin, end,
                    [&](const S* p, int64_t n) { sum.add(reduce_block<Red, T>(p, n, c)); });
  return sum.total();
}

// Adds up to kColumnRows rows, eight at a time, into acc.
template <class Red, class T, class S>
WT_FN void add_rows(const S* const* rows, int64_t count, int64_t n, const Vec<T>* centers, Vec<T>* acc) {
  using V = Vec<T>;
  constexpr int L = V::kLanes;
  const int64_t vecs = (n + L - 1) / L;
  for (int64_t v = 0; v < vecs; ++v) acc[v] = Red::template identity<T>();
  int64_t r = 0;
  const int64_t full = n / L;
  for (; r + 8 <= count; r += 8) {
    const S* const* p = rows + r;
    for (int64_t v = 0; v < full; ++v) {
      auto x = [&](int k)
                   __attribute__((always_inline)) { return Red::map(load_as<T>(p[k] + v * L), centers[v]); };
      const V low = Red::combine(Red::combine(x(0), x(1)), Red::combine(x(2), x(3)));
      const V high = Red::combine(Red::combine(x(4), x(5)), Red::combine(x(6), x(7)));
      acc[v] = Red::combine(acc[v], Red::combine(low, high));
    }
    if (full == vecs) continue;
    for (int k = 0; k < 8; ++k)
      acc[full] =
          Red::combine(acc[full], Red::map(load_partial_as<T>(p[k] + full * L, n - full * L), centers[full]));
  }
  for (; r < count; ++r) {
    for (int64_t v = 0; v < full; ++v)
      acc[v] = Red::combine(acc[v], Red::map(load_as<T>(rows[r] + v * L), centers[v]));
    if (full == vecs) continue;
    acc[full] = Red::combine(acc[full],
                             Red::map(load_partial_as<T>(rows[r] + full * L, n - full * L), centers[full]));
  }
}

// One tile: columns [0, n) at `base` over the reduced indices [begin, end).
template <class Red, class T, class S>
void reduce_columns(const Geometry& g, const char* base, int64_t n, int64_t begin, int64_t end,
                    const T* center, T* result) {
  using V = Vec<T>;
  constexpr int L = V::kLanes;
  constexpr int64_t kVecs = kColumnTile / L;
  const int64_t vecs = (n + L - 1) / L;
  const int64_t stride = g.kept[g.column].stride;
  const bool same = g.dtype == dtype_of<S>, packed = stride == g.item;
  ConvertFn* convert = same ? nullptr : converter(g.dtype, dtype_of<S>);
  V centers[kVecs], acc[kVecs];
  for (int64_t v = 0; v < vecs; ++v) {
    const int64_t rest = n - v * L;
    centers[v] = !center     ? V(0)
                 : rest >= L ? V::load(center + v * L)
                             : load_partial<T>(center + v * L, int(rest));
  }
  CascadeOf<Red, T, kVecs> sums;
  const S* rows[kColumnRows];
  alignas(64) char values[kConvertedRows][kColumnTile * sizeof(S)];
  alignas(64) char raw[kColumnTile * 8];
  const int64_t step = same && packed ? kColumnRows : kConvertedRows;
  int64_t ignored;
  for (int64_t pieces = 0; begin < end; begin += step) {
    if (++pieces % kPollPieces == 0) cpu::poll_interrupt();
    const int64_t m = end - begin < step ? end - begin : step;
    for (int64_t r = 0; r < m; ++r) {
      const char* p = base + (g.reduced_dims == 1 ? (begin + r) * g.reduced[0].stride
                                                  : locate(g.reduced, g.reduced_dims, begin + r, &ignored));
      if (!packed) {
        char* to = same ? values[r] : raw;
        gather(n, to, p, stride, size_t(g.item));
        p = to;
      }
      if (!same) {
        convert(n, values[r], p);
        p = values[r];
      }
      rows[r] = reinterpret_cast<const S*>(p);
    }
    add_rows<Red, T, S>(rows, m, n, centers, acc);
    for (int64_t v = 0; v < vecs; ++v) sums.add(v, acc[v]);
    ++sums.count;
  }
  for (int64_t v = 0; v < vecs; ++v) {
    const int64_t rest = n - v * L;
    V total = sums.total(v);
    if (rest >= L)
      total.store(result + v * L);
    else
      store_partial(result + v * L, total, int(rest));
  }
}

// Kept elements in an order in which the column dim is the last: unit u of `tiles` per line is a tile of
// columns.
template <class Red, class T, class S>
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
      return reduce_columns<Red, T, S>(*g, base, n, begin, end, center ? center + at : nullptr, to + at);
    T centers[kColumnTile] = {}, results[kColumnTile];
    if (center)
      for (int64_t i = 0; i < n; ++i) centers[i] = center[at + i * column.to];
    reduce_columns<Red, T, S>(*g, base, n, begin, end, center ? centers : nullptr, results);
    for (int64_t i = 0; i < n; ++i) to[at + i * column.to] = results[i];
  }
};

// Kept pairs that lie together, as the parts of complex numbers do: rows of both parts are reduced as one, of
// whose lanes every other one is of the second part. Units as in RowWork.
template <class Red> inline constexpr bool kReducesPairs = false;  // only those that need it
template <class Red, class T, class S>
struct PairWork {
  Geometry g;
  T* to;
  int64_t per_part;

  static bool fits(const Geometry& g) {
    const Dim &pair = g.kept[g.kept_dims - 1], &row = g.reduced[g.reduced_dims - 1];
    return pair.size == 2 && pair.stride == g.item && pair.to == 1 && row.stride == 2 * g.item &&
           g.column < 0;
  }
  PairWork(const Geometry& pairs, T* results, int64_t reals_per_part)
      : g(pairs), to(results), per_part(reals_per_part) {
    g.kept_count /= 2;
    if (--g.kept_dims == 0) g.kept[g.kept_dims++] = {1, 0, 2};
    Dim& row = g.reduced[g.reduced_dims - 1];
    row = {2 * row.size, g.item, 0};
    g.reduced_count *= 2;
  }
  template <int kStep = Vec<T>::kLanes / 2, int... I>
  WT_FN static Vec<T> fold(Vec<T> v, std::integer_sequence<int, I...> lanes) {
    if constexpr (kStep == 1)
      return v;
    else
      return fold<kStep / 2>(Red::combine(v, Vec<T>(__builtin_shuffle(v.v, IntRaw<T>{(I ^ kStep)...}))),
                             lanes);
  }
  void run(int64_t begin, int64_t end) const {
    for (; begin < end; ++begin) {
      const int64_t part = begin / g.kept_count, first = part * per_part;
      const int64_t last = first + per_part < g.reduced_count ? first + per_part : g.reduced_count;
      int64_t at;
      const char* base = g.data + locate(g.kept, g.kept_dims, begin - part * g.kept_count, &at);
      const Vec<T> sums = fold(reduce_rows<Red, T, S>(g, base, first, last, T(0)),
                               std::make_integer_sequence<int, Vec<T>::kLanes>{});
      for (int k = 0; k < 2; ++k) to[part * 2 * g.kept_count + at + k] = sums.v[k];
    }
  }
};

// Partial results of the parts [parts][outputs], combined pairwise into the outputs.
template <class Red, class T>
void combine_parts(const T* partial, int64_t parts, int64_t outputs, T* result) {
  constexpr int L = Vec<T>::kLanes;
  for (int64_t i = 0; i < outputs; i += L) {
    const int n = outputs - i < L ? int(outputs - i) : L;
    Cascade<Red, T> sum;
    for (int64_t p = 0; p < parts; ++p) {
      const T* from = partial + p * outputs + i;
      sum.add(n == L ? Vec<T>::load(from) : load_partial<T>(from, n));
    }
    if (n == L)
      sum.total().store(result + i);
    else
      store_partial(result + i, sum.total(), n);
  }
}

// Outputs in the order of g.kept, unit by unit: (part of the reduced space, output).
template <class Red, class T, class S>
struct RowWork {
  const Geometry* g;
  const T* center;
  T* to;
  int64_t per_part;

  void run(int64_t begin, int64_t end) const {
    constexpr int L = Vec<T>::kLanes;
    const int64_t outputs = g->kept_count;
    for (; begin < end; begin += L) {
      const int n = end - begin < L ? int(end - begin) : L;
      Vec<T> sums[L];
      int64_t places[L];
      for (int i = 0; i < n; ++i) {
        const int64_t part = per_part >= g->reduced_count ? 0 : (begin + i) / outputs,
                      first = part * per_part;
        const int64_t last = first + per_part < g->reduced_count ? first + per_part : g->reduced_count;
        int64_t at;
        const char* base = g->data + locate(g->kept, g->kept_dims, (begin + i) - part * outputs, &at);
        sums[i] = reduce_rows<Red, T, S>(*g, base, first, last, center ? center[at] : T(0));
        places[i] = part * outputs + at;
      }
      for (int i = n; i < L; ++i) sums[i] = Red::template identity<T>();
      const Vec<T> all = across<Red, T>(sums);
      if (n == L && places[L - 1] - places[0] == L - 1 && g->kept_dims == 1)
        all.store(to + places[0]);
      else
        for (int i = 0; i < n; ++i) to[places[i]] = all.v[i];
    }
  }
};

template <class Red, class T>
void reduce_into(const LaunchContext& ctx, const Geometry& g, const T* center, T* result);

// Few packed columns: several rows are taken as one wide row, whose sums are combined afterwards.
template <class Red, class T>
void reduce_folded(const LaunchContext& ctx, const Geometry& g, int64_t fold, const T* center, T* result) {
  const int64_t n = g.kept_count, rows = g.reduced_count / fold;
  T* sums = static_cast<T*>(ctx.scratch(size_t((fold + 1) * n) * sizeof(T)));
  Geometry wide = g;
  wide.kept[0].size = wide.kept_count = fold * n;
  wide.reduced[0] = {rows, fold * g.reduced[0].stride, 0};
  wide.reduced_count = rows;
  const T* centers = nullptr;
  if (center) {
    T* c = static_cast<T*>(ctx.scratch(size_t(fold * n) * sizeof(T)));
    for (int64_t i = 0; i < fold * n; ++i) c[i] = center[i % n];
    centers = c;
  }
  reduce_into<Red, T>(ctx, wide, centers, sums);
  Geometry rest = g;
  rest.data += rows * wide.reduced[0].stride;
  rest.reduced[0].size = rest.reduced_count = g.reduced_count - rows * fold;
  if (rest.reduced_count > 0) reduce_into<Red, T>(ctx, rest, center, sums + fold * n);
  combine_parts<Red, T>(sums, fold + (rest.reduced_count > 0), n, result);
}

// result[i] (packed, in the output's order) = reduction of map(x, center[i]); center may be null.
template <class Red, class T, class S>
void reduce_stored(const LaunchContext& ctx, const Geometry& g, const T* center, T* result) {
  const int64_t outputs = g.kept_count, count = g.reduced_count;
  if (outputs == 0) return;
  const bool columns = g.column >= 0;
  if (columns && outputs <= kColumnTile / 4 && g.kept_dims == 1 && g.reduced_dims == 1 &&
      g.kept[0].stride == g.item && g.reduced[0].stride == outputs * g.item &&
      count >= 2 * (kColumnTile / 2 / outputs))
    return reduce_folded<Red, T>(ctx, g, kColumnTile / 2 / outputs, center, result);
  const bool few = columns ? outputs < 16 * kColumnTile : outputs < kSplitOutputs;
  const bool split = few && count * outputs > 2 * kSplitGrain && count > 2 * kRowBlock;
  // Parts begin where blocks do, and where vectors are aligned.
  const int64_t per_part =
      split ? (kSplitGrain / (columns ? outputs : 1) / kRowBlock + 1) * kRowBlock : count;
  const int64_t parts = split ? (count + per_part - 1) / per_part : 1;
  T* to = split ? static_cast<T*>(ctx.scratch(size_t(parts * outputs) * sizeof(T))) : result;
  const int64_t cost = count < per_part ? count : per_part;
  if constexpr (kReducesPairs<Red>)
    if (PairWork<Red, T, S>::fits(g)) {
      const PairWork<Red, T, S> work(g, to, 2 * per_part);
      cpu::parallel_for(work.g.kept_count * parts, split ? 1 : kReduceGrain / (2 * cost + 16) + 1,
                        [&](int64_t b, int64_t e) { work.run(b, e); });
      if (split) combine_parts<Red, T>(to, parts, outputs, result);
      return;
    }
  if (columns) {
    const ColumnWork<Red, T, S> work(g, center, result);
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
    const RowWork<Red, T, S> work{&g, center, to, per_part};
    // A multiple of every lane count, so that groups do not depend on the cut.
    const int64_t grain = (kReduceGrain / (cost + 16) / 16 + 1) * 16;
    cpu::parallel_for(outputs * parts, split ? 1 : grain, [&](int64_t b, int64_t e) { work.run(b, e); });
  }
  if (split) combine_parts<Red, T>(to, parts, outputs, result);
}
template <class Red, class T>
void reduce_into(const LaunchContext& ctx, const Geometry& g, const T* center, T* result) {
  if constexpr (std::is_same_v<T, float>) {
    if (g.dtype == DType::BFloat16) return reduce_stored<Red, T, BFloat16>(ctx, g, center, result);
#if defined(__F16C__)
    if (g.dtype == DType::Float16) return reduce_stored<Red, T, Half>(ctx, g, center, result);
#endif
  }
  reduce_stored<Red, T, T>(ctx, g, center, result);
}

// Calls f with memory for the results in T: the output itself, or scratch that is converted into it
// afterwards.
template <class T, class F>
WT_FN void with_results(const LaunchContext& ctx, const View& out, int64_t n, F&& f) {
  if (out.dtype == dtype_of<T>) return f(out.as<T>());
  T* results = static_cast<T*>(ctx.scratch(size_t(n) * sizeof(T)));
  f(results);
  ConvertFn* convert = converter(dtype_of<T>, out.dtype);
  char* to = static_cast<char*>(out.data);
  const int64_t item = int64_t(itemsize(out.dtype));
  cpu::parallel_for(n, kReduceGrain,
                    [&](int64_t b, int64_t e) { convert(e - b, to + b * item, results + b); });
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
