// Largest and smallest values, their places, and the truth of any and all.

#include "kernels/cpu/reduce/reduce.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

template <class T> inline constexpr T kLowest = -T(__builtin_inf());
template <> inline constexpr int64_t kLowest<int64_t> = INT64_MIN;
template <class T> inline constexpr T kHighest = T(__builtin_inf());
template <> inline constexpr int64_t kHighest<int64_t> = INT64_MAX;

struct Max {
  static constexpr bool kLargest = true;
  template <class T> WT_FN static Vec<T> identity() { return Vec<T>(kLowest<T>); }
  template <class V> WT_FN static V map(V x, V) { return x; }
  template <class V> WT_FN static V combine(V a, V b) { return maximum(a, b); }
  template <class T> WT_FN static bool better(T a, T b) { return a > b; }
};
struct Min {
  static constexpr bool kLargest = false;
  template <class T> WT_FN static Vec<T> identity() { return Vec<T>(kHighest<T>); }
  template <class V> WT_FN static V map(V x, V) { return x; }
  template <class V> WT_FN static V combine(V a, V b) { return minimum(a, b); }
  template <class T> WT_FN static bool better(T a, T b) { return a < b; }
};
struct Any : Max {  // of 0 and 1
  template <class T> WT_FN static Vec<T> identity() { return Vec<T>(T(0)); }
  template <class V> WT_FN static V map(V x, V) { return select(x != V(0), V(1), V(0)); }
};
struct All : Min {
  template <class T> WT_FN static Vec<T> identity() { return Vec<T>(T(1)); }
  template <class V> WT_FN static V map(V x, V) { return select(x != V(0), V(1), V(0)); }
};

// What no integer of the type is below, or above.
template <class T> inline constexpr T kLeast = std::is_signed_v<T> ? T(T(1) << (8 * sizeof(T) - 1)) : T(0);
template <class Red, class T> inline constexpr T kIdentity = Red::kLargest ? kLeast<T> : T(~kLeast<T>);

// Integers of less than eight bytes are compared in their own type, by loops that the compiler vectorises;
// the order of comparisons has no effect.
template <class Red, class T>
struct NarrowWork {
  const Geometry* g;
  T* to;

  WT_FN static T best(T a, T b) { return Red::better(b, a) ? b : a; }
  static bool by_columns(const Geometry& g) {
    return g.column >= 0 && g.kept[g.column].stride == g.item && g.kept[g.column].to == 1;
  }
  T of_row(const char* base, int64_t begin, int64_t end) const {
    const Dim& row = g->reduced[g->reduced_dims - 1];
    T found = kIdentity<Red, T>;
    int64_t ignored;
    for (int64_t lines = 1; begin < end; ++lines) {
      if (lines % kPollPieces == 0) cpu::poll_interrupt();
      const int64_t line = g->reduced_dims == 1 ? 0 : begin / row.size, at = begin - line * row.size;
      const int64_t n = row.size - at < end - begin ? row.size - at : end - begin;
      const auto* p = reinterpret_cast<const T*>(
          base + locate(g->reduced, g->reduced_dims - 1, line, &ignored) + at * row.stride);
      const int64_t step = row.stride / g->item;
      if (step == 1)
        for (int64_t i = 0; i < n; ++i) found = best(found, p[i]);
      else
        for (int64_t i = 0; i < n; ++i) found = best(found, p[i * step]);
      begin += n;
    }
    return found;
  }
  // Columns [0, n) at `base`, at most kColumnTile.
  void of_columns(const char* base, int64_t n, T* result) const {
    T found[kColumnTile];
    int64_t ignored;
    for (int64_t i = 0; i < kColumnTile; ++i) found[i] = kIdentity<Red, T>;
    for (int64_t r = 0; r < g->reduced_count; ++r) {
      if (r % kColumnTile == kColumnTile - 1) cpu::poll_interrupt();
      const auto* p = reinterpret_cast<const T*>(base + locate(g->reduced, g->reduced_dims, r, &ignored));
      for (int64_t i = 0; i < n; ++i) found[i] = best(found[i], p[i]);
    }
    std::memcpy(result, found, size_t(n) * sizeof(T));
  }
  void columns() const {
    const int64_t size = g->kept[g->column].size, tiles = (size + kColumnTile - 1) / kColumnTile;
    const int64_t cost = g->reduced_count * (size < kColumnTile ? size : kColumnTile);
    cpu::parallel_for(g->kept_count / size * tiles, kReduceGrain / (cost + 1) + 1, [&](int64_t b, int64_t e) {
      for (int64_t u = b; u < e; ++u) {
        const int64_t first = u % tiles * kColumnTile;
        int64_t at;
        const char* base = g->data + locate(g->kept, g->kept_dims, u / tiles * size + first, &at);
        of_columns(base, size - first < kColumnTile ? size - first : kColumnTile, to + at);
      }
    });
  }
  // Long rows are cut into parts.
  void rows(const LaunchContext& ctx) const {
    const int64_t outputs = g->kept_count, count = g->reduced_count;
    const int64_t parts = outputs < kSplitOutputs ? count / kSplitGrain + 1 : 1, per_part = count / parts + 1;
    T* found = parts > 1 ? static_cast<T*>(ctx.scratch(size_t(parts * outputs) * sizeof(T))) : to;
    const int64_t cost = count < per_part ? count : per_part;
    cpu::parallel_for(outputs * parts, kReduceGrain / (cost + 16) + 1, [&](int64_t b, int64_t e) {
      for (int64_t u = b; u < e; ++u) {
        const int64_t part = parts == 1 ? 0 : u / outputs, first = part * per_part;
        int64_t at;
        const char* base = g->data + locate(g->kept, g->kept_dims, u - part * outputs, &at);
        found[part * outputs + at] = of_row(base, first, first + per_part < count ? first + per_part : count);
      }
    });
    if (parts == 1) return;
    for (int64_t i = 0; i < outputs; ++i) {
      to[i] = found[i];
      for (int64_t part = 1; part < parts; ++part) to[i] = best(to[i], found[part * outputs + i]);
    }
  }
};

// False where another way is right: of other types, and down few long columns.
template <class Red>
bool reduce_narrow(const LaunchContext& ctx, const View& out, const View& in) {
  const Geometry g = geometry_of(out, in);
  auto run = [&](auto tag) {
    using T = typename decltype(tag)::type;
    const NarrowWork<Red, T> work{&g, out.as<T>()};
    work.by_columns(g) ? work.columns() : work.rows(ctx);
  };
  if (g.column >= 0 && g.kept_count < kSplitOutputs && g.reduced_count > kSplitGrain) return false;
  if (in.dtype == DType::Bool) return run(Tag<uint8_t>{}), true;
  return try_dispatch(Types<int32_t, int16_t, int8_t, uint8_t>{}, in.dtype, run);
}

template <class Red>
void reduce_order(const LaunchContext& ctx, const View& out, const View& in) {
  if constexpr (std::is_same_v<Red, Max> || std::is_same_v<Red, Min>)
    if (reduce_narrow<Red>(ctx, out, in)) return;
  const Geometry g = geometry_of(out, in);
  dispatch_compute(in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_results<T>(ctx, out, g.kept_count, [&](T* r) { reduce_into<Red, T>(ctx, g, nullptr, r); });
  });
}

// Packed bytes are looked at eight at a time, until the answer is known.
WT_FN bool any_byte(const uint8_t* p, int64_t n) {
  for (; n >= 64; n -= 64, p += 64) {
    uint64_t w[8];
    std::memcpy(w, p, 64);
    if (w[0] | w[1] | w[2] | w[3] | w[4] | w[5] | w[6] | w[7]) return true;
  }
  for (int64_t i = 0; i < n; ++i)
    if (p[i]) return true;
  return false;
}

template <class Red, bool kAll>
void truth(const LaunchContext& ctx, const View& out, const View& in) {
  if (itemsize(in.dtype) == 1 && out.numel() == 1 && in.contiguous()) {
    const int64_t n = in.numel();
    const uint8_t* p = in.as<const uint8_t>();
    *out.as<Bool>() = kAll ? n == 0 || __builtin_memchr(p, 0, size_t(n)) == nullptr : any_byte(p, n);
    return;
  }
  if (in.dtype == DType::Bool || in.dtype == DType::UInt8 || in.dtype == DType::Int8) {
    View bytes = in, result = out;
    bytes.dtype = result.dtype = DType::UInt8;
    const bool some = in.numel() > 0;
    if (some && (kAll ? reduce_narrow<Min>(ctx, result, bytes) : reduce_narrow<Max>(ctx, result, bytes))) {
      uint8_t* r = out.as<uint8_t>();
      for (int64_t i = 0, n = out.numel(); i < n; ++i) r[i] = r[i] != 0;
      return;
    }
  }
  reduce_order<Red>(ctx, out, in);
}

// ---- with the place of the value ----

template <class T>
struct Best {
  T value;
  int64_t index;  // along the reduced dim; -1 before the first value
};

// Whether v beats b: better, or the first NaN, or anything before there is a value.
template <class Red, class T>
WT_FN bool beats(T v, const Best<T>& b) {
  if (b.index < 0) return true;
  if (b.value != b.value) return false;
  return v != v || Red::better(v, b.value);
}

// Blocks are reduced by vectors; only a block that beats the best one is searched.
template <class Red, class T>
Best<T> best_of_row(const Geometry& g, const char* base) {
  Best<T> best{T(0), -1};
  int64_t start = 0;
  for_each_piece<T>(g, base, 0, g.reduced_count, [&](const T* p, int64_t n) {
    Vec<T> lanes[Vec<T>::kLanes];
    lanes[0] = reduce_block<Red, T>(p, n, Vec<T>(T(0)));
    for (int k = 1; k < Vec<T>::kLanes; ++k) lanes[k] = lanes[0];
    const T v = across<Red, T>(lanes).v[0];
    if (beats<Red>(v, best)) {
      int64_t i = 0;
      while (!(p[i] == v || (p[i] != p[i] && v != v))) ++i;
      best = {v, start + i};
    }
    start += n;
  });
  return best;
}

// Columns side by side: rows are gone through in order, so the first of equal values stays.
template <class Red, class T>
void best_of_columns(const Geometry& g, const char* base, int64_t n, T* values, int64_t* indices) {
  ConvertFn* convert = converter(g.dtype, dtype_of<T>);
  const int64_t stride = g.kept[g.column].stride;
  const bool direct = g.dtype == dtype_of<T> && stride == g.item;
  alignas(64) T row[kRowBlock];
  alignas(64) char raw[kRowBlock * 8];
  for (int64_t r = 0; r < g.reduced_count; ++r) {
    if (r % kPollPieces == kPollPieces - 1) cpu::poll_interrupt();
    const char* p = base + r * g.reduced[0].stride;
    const T* x = reinterpret_cast<const T*>(p);
    if (!direct) {
      if (stride != g.item) {
        gather(n, raw, p, stride, size_t(g.item));
        p = raw;
      }
      convert(n, row, p);
      x = row;
    }
    for (int64_t i = 0; i < n; ++i) {
      const bool take =
          (r == 0) | ((values[i] == values[i]) & (Red::better(x[i], values[i]) | (x[i] != x[i])));
      values[i] = take ? x[i] : values[i];
      indices[i] = take ? r : indices[i];
    }
  }
}

template <class Red, class T>
void best_along(const Geometry& g, T* values, int64_t* indices) {
  if (g.column < 0 || g.kept[g.column].to != 1 || g.reduced_dims != 1) {
    cpu::parallel_for(g.kept_count, kReduceGrain / (g.reduced_count + 16) + 1, [&](int64_t b, int64_t e) {
      for (int64_t i = b; i < e; ++i) {
        int64_t at;
        const char* base = g.data + locate(g.kept, g.kept_dims, i, &at);
        const Best<T> best = best_of_row<Red, T>(g, base);
        if (values) values[at] = best.value;
        if (indices) indices[at] = best.index;
      }
    });
    return;
  }
  // The column dim is the last one of the output, so tiles are packed there.
  const int64_t columns = g.kept[g.column].size, tiles = (columns + kRowBlock - 1) / kRowBlock;
  cpu::parallel_for(g.kept_count / columns * tiles, 1, [&](int64_t b, int64_t e) {
    for (int64_t u = b; u < e; ++u) {
      const int64_t first = u % tiles * kRowBlock;
      const int64_t n = columns - first < kRowBlock ? columns - first : kRowBlock;
      int64_t at;
      const char* base = g.data + locate(g.kept, g.kept_dims, u / tiles * columns + first, &at);
      best_of_columns<Red, T>(g, base, n, values + at, indices + at);
    }
  });
}

template <class Red>
void value_index(const LaunchContext& ctx, const View& values, const View& indices, const View& in, int) {
  Geometry g = geometry_of(indices, in);
  dispatch_compute(in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* v = static_cast<T*>(values.data);
    const bool own = values.data && values.dtype == dtype_of<T>;
    if (!own) v = static_cast<T*>(ctx.scratch(size_t(g.kept_count) * sizeof(T)));
    best_along<Red, T>(g, v, indices.as<int64_t>());
    if (!own && values.data) converter(dtype_of<T>, values.dtype)(g.kept_count, values.data, v);
  });
}

template <class Red>
void arg_reduce(const LaunchContext& ctx, const View& out, const View& in, int dim) {
  value_index<Red>(ctx, View{}, out, in, dim);
}

WT_KERNEL(amax, reduce_order<Max>);
WT_KERNEL(amin, reduce_order<Min>);
void any(const LaunchContext& ctx, const View& out, const View& in) { truth<Any, false>(ctx, out, in); }
void all(const LaunchContext& ctx, const View& out, const View& in) { truth<All, true>(ctx, out, in); }
WT_KERNEL(any, any);
WT_KERNEL(all, all);
WT_KERNEL(argmax, arg_reduce<Max>);
WT_KERNEL(argmin, arg_reduce<Min>);
WT_KERNEL(max_dim, value_index<Max>);
WT_KERNEL(min_dim, value_index<Min>);

}  // namespace
}  // namespace warptape::kernels::WARPTAPE_ISA
