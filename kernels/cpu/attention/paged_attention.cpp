// Paged attention on the CPU. Keys lie across the lanes of scores, and the head size across those of outputs,
// so that what a row sums has the same order whether it is computed alone or beside others. Row: one query of
// one query head. The heads that share a key head are rows of one tile: a decoding step reads each key once.
#include "kernels/attention/paged_attention.h"

#include "kernels/cpu/vector/rows.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

using cpu::parallel_for;
using V = VFloat;

constexpr int kL = V::kLanes, kPage = int(kPagedTokens), kParts = kPage / kL;
constexpr int kRows = kL == 16 ? 8 : 4;  // that share what they load; their sums stay in registers
constexpr int64_t kTileRows = 64;        // that share a block in the second cache
constexpr int64_t kSplitBlocks = kPagedSplit / kPagedTokens;
constexpr float kLowest = -__builtin_inff();

WT_FN V load_float(const int8_t* p, AllLanes) {
#if defined(__AVX512F__)
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
#elif defined(__AVX2__)
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)))};
#else
  return {_mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_loadu_si32(p)))};
#endif
}
WT_FN V load_float(const int8_t* p, FirstLanes part) {
  V r(0);
  for (int i = 0; i < part.n; ++i) r.v[i] = float(p[i]);
  return r;
}
template <class T, class Lanes> WT_FN V load_float(const T* p, Lanes lanes) { return load(p, lanes); }

WT_FN float exp_of(float x) { return exp_below(V(x)).v[0]; }
WT_FN int64_t whole_vectors(int64_t n) { return (n + kL - 1) / kL * kL; }

// The keys of a block that a row sees.
struct Range {
  int first, last;
  bool operator==(const Range&) const = default;
};

// The page of a block, or a copy of it as float.
template <class T>
struct Block {
  const T *keys, *values;                  // [D][kPage], [kPage][D]
  const float *key_scales, *value_scales;  // [kPage], or null
  const T* next_keys = nullptr;            // of the block after it
  bool cold = false;                       // not read yet
};

// ---- products of R rows with a block ----

// Pages lie anywhere, so the processor cannot guess what comes next: each product asks for that, a part of a
// block with each step, where it is the first to read this one.
template <class T>
WT_FN void fetch(const T* next, int64_t step) {
  if (!next) return;
  __builtin_prefetch(next + step * kPage, 0, 2);
  if constexpr (sizeof(T) == 4) __builtin_prefetch(next + step * kPage + kPage / 2, 0, 2);
}

// scores [R][kPage] = q keys; q: rows of `wide`.
template <class T, int R>
void score_rows(const float* q, int64_t wide, int64_t d, const T* keys, float* scores, const T* next) {
  for (int part = 0; part < kPage; part += 2 * kL) {
    V sum[R][2];
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = V(0);
    const T* column = keys + part;
    for (int64_t i = 0; i < d; ++i, column += kPage) {
      if (part == 0) fetch(next, i);
      const V a = load_float(column, AllLanes{}), b = load_float(column + kL, AllLanes{});
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const V x(q[r * wide + i]);
        sum[r][0] = fma(x, a, sum[r][0]);
        sum[r][1] = fma(x, b, sum[r][1]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int half = 0; half < 2; ++half) sum[r][half].store(scores + r * kPage + part + half * kL);
  }
}

// out [R][wide] = out * shrink + p values, over the keys of the range alone: what the others hold does not
// matter, not even a NaN.
template <class T, int R>
void weigh_rows(const float* p, Range range, const T* values, int64_t d, const float* shrink, float* out,
                int64_t wide, const T* next) {
  int64_t step = 0;
  auto columns = [&](int64_t at, auto lanes, auto count) {
    constexpr int kCount = decltype(count)::value;
    V sum[R][kCount];
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < kCount; ++c) sum[r][c] = V::load(out + r * wide + at + c * kL) * V(shrink[r]);
    const T* row = values + range.first * d + at;
    for (int j = range.first; j < range.last; ++j, row += d) {
      V v[kCount];
      for (int c = 0; c < kCount; ++c) v[c] = load_float(row + c * kL, lanes);
      if (step < d) fetch(next, step++);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const V x(p[r * kPage + j]);
        for (int c = 0; c < kCount; ++c) sum[r][c] = fma(x, v[c], sum[r][c]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < kCount; ++c) sum[r][c].store(out + r * wide + at + c * kL);
  };
  constexpr std::integral_constant<int, 1> one{};
  int64_t i = 0;
  for (; i + 2 * kL <= d; i += 2 * kL) columns(i, AllLanes{}, std::integral_constant<int, 2>{});
  if (i + kL <= d) columns(i, AllLanes{}, one), i += kL;
  if (i < d) columns(i, FirstLanes{int(d - i)}, one);
}

template <class T, int... R>
struct Micros {
  static constexpr decltype(&score_rows<T, 1>) kScore[] = {score_rows<T, R>...};
  static constexpr decltype(&weigh_rows<T, 1>) kWeigh[] = {weigh_rows<T, R>...};
};
#if defined(__AVX512F__)
template <class T> using MicrosOf = Micros<T, 1, 2, 3, 4, 5, 6, 7, 8>;
#else
template <class T> using MicrosOf = Micros<T, 1, 2, 3, 4>;
#endif

// ---- a tile: rows of one sequence that share a key head ----

// Softmax-weighted sums over some keys: out has still to be divided by sum. A row that saw none has sum 0.
struct Sums {
  float *top, *sum, *out;  // [rows], [rows], [rows][wide]
  static int64_t floats(int64_t rows, int64_t wide) { return rows * (wide + 2); }
  Sums(float* memory, int64_t rows) : top(memory), sum(memory + rows), out(memory + 2 * rows) {}
};

// Scores of one row become exp(score - top); top and sum (kL partial sums) follow. Returns by how much what
// was summed before shrinks. Outlined: one piece of code for all tiles and types, in which the compiler
// contracts sums to fma in one way.
WT_FN_OUTLINED float softmax_row(const float* key_scales, const float* value_scales, float cap, Range range,
                                 float* scores, float* top, float* sum) {
  V x[kParts], found(kLowest);
  const bool whole = range == Range{0, kPage};
  for (int i = 0; i < kParts; ++i) {
    x[i] = V::load(scores + i * kL);
    if (key_scales) x[i] *= V::load(key_scales + i * kL);
    if (cap > 0) x[i] = tanh(x[i] / V(cap)) * V(cap);
    auto below = [&](int n) {
      return mask_first<float>(n <= i * kL ? 0 : n < (i + 1) * kL ? n - i * kL : kL);
    };
    if (!whole) x[i] = select(below(range.last) & !below(range.first), x[i], V(kLowest));
    found = max_or_b(x[i], found);
  }
  float shrink = 1;
  if (any(found > V(*top))) {
    const float now = across_lanes(found, [](V a, V b) { return max_or_b(a, b); });
    shrink = exp_of(*top - now);
    *top = now;
  }
  const V shift(*top == kLowest ? 0 : *top);
  V total = V::load(sum) * V(shrink);
  for (int i = 0; i < kParts; ++i) {
    V p = exp_below(x[i] - shift);
    total += p;
    if (value_scales) p *= V::load(value_scales + i * kL);
    p.store(scores + i * kL);
  }
  total.store(sum);
  return shrink;
}

// Adds the sums of later keys of one row.
WT_FN_OUTLINED void merge_row(const Sums& into, const Sums& from, int64_t r, int64_t wide) {
  float* a = into.out + r * wide;
  const float* b = from.out + r * wide;
  if (from.sum[r] == 0) return;
  if (into.sum[r] == 0) {
    into.top[r] = from.top[r];
    into.sum[r] = from.sum[r];
    std::memcpy(a, b, sizeof(float) * size_t(wide));
    return;
  }
  const float top = into.top[r] > from.top[r] ? into.top[r] : from.top[r];
  const V old(exp_of(into.top[r] - top)), added(exp_of(from.top[r] - top));
  for (int64_t i = 0; i < wide; i += kL) fma(V::load(b + i), added, V::load(a + i) * old).store(a + i);
  into.sum[r] = fma(V(from.sum[r]), added, V(into.sum[r]) * old).v[0];
  into.top[r] = top;
}

struct Tile {
  const PagedAttentionPlan& plan;
  int64_t sequence, head;  // of keys
  int64_t query, queries;  // the first of the call's, and how many
  int64_t position;        // of the first
  int64_t group, d, wide;

  // Queries [first, first + count) of a sequence.
  Tile(const PagedAttentionPlan& p, int64_t r, int64_t h, int64_t first, int64_t count)
      : plan(p),
        sequence(r),
        head(h),
        query(p.starts[r] + first),
        queries(count),
        position(p.lengths[r] - (p.starts[r + 1] - p.starts[r]) + first),
        group(p.q.sizes[1] / p.cache.keys.sizes[1]),
        d(p.q.sizes[2]),
        wide(whole_vectors(d)) {}

  int64_t rows() const { return queries * group; }
  Range seen(int64_t row, int64_t block) const {
    const int64_t last = position + row / group + 1 - block * kPage, first = last - plan.window;
    return {int(first > 0 ? (first < kPage ? first : kPage) : 0),
            int(last < kPage ? (last > 0 ? last : 0) : kPage)};
  }
  int64_t first_block() const { return position < plan.window ? 0 : (position + 1 - plan.window) / kPage; }
  int64_t end_block() const { return (position + queries - 1) / kPage + 1; }
  int64_t first_split() const { return first_block() / kSplitBlocks; }
  int64_t end_split() const { return (end_block() - 1) / kSplitBlocks + 1; }

  int64_t place(int64_t b) const {
    return plan.page_table[sequence * plan.max_pages + b] * plan.cache.keys.sizes[1] + head;
  }
  template <class T>
  Block<T> block(int64_t b) const {
    const PagedCacheView& c = plan.cache;
    const int64_t at = place(b);
    auto scales = [&](const View& v) { return v.data ? v.as<float>() + at * kPage : nullptr; };
    return {c.keys.as<T>() + at * d * kPage,
            c.values.as<T>() + at * d * kPage,
            scales(c.key_scales),
            scales(c.value_scales),
            b + 1 < end_block() ? c.keys.as<T>() + place(b + 1) * d * kPage : nullptr,
            true};
  }

  // Calls f(row, its place in x) for x [N, H, D], q or the output.
  template <class T, class F>
  void each_row(const View& x, F&& f) const {
    for (int64_t r = 0; r < rows(); ++r)
      f(r, x.as<T>() + (query + r / group) * x.strides[0] + (head * group + r % group) * x.strides[1]);
  }
  // What sums are multiplied by: 1 / weights, a sink's among them.
  float factor(const Sums& s, int64_t r) const {
    if (s.sum[r] == 0) return 0;
    if (!plan.sinks) return 1 / s.sum[r];
    const float sink = plan.sinks[head * group + r % group], top = sink > s.top[r] ? sink : s.top[r];
    const float weight = exp_of(s.top[r] - top);
    return weight / fma(V(s.sum[r]), V(weight), V(exp_of(sink - top))).v[0];
  }
  template <class Q>
  void store(const View& out, const Sums& s) const {
    each_row<Q>(out, [&](int64_t r, Q* to) {
      const V inverse(factor(s, r));
      for_vectors<float>(d, [&](int64_t i, auto l) {
        // A zero has no sign, or it could tell of keys that weigh nothing.
        WARPTAPE_ISA::store(to + i, V::load(s.out + r * wide + i) * inverse + V(0), l);
      });
    });
  }
};

// The work of one thread on a tile.
template <class Q, class T>
struct Attend {
  const Tile& tile;
  float *q, *sums, *scores, *copy;  // [rows][wide], [rows][kL], [kRows][kPage], one block

  static int64_t floats(int64_t rows, int64_t wide) {
    return rows * (wide + kL) + kRows * kPage + 2 * kPage * wide;
  }
  Attend(const Tile& t, float* memory)
      : tile(t),
        q(memory),
        sums(q + t.rows() * t.wide),
        scores(sums + t.rows() * kL),
        copy(scores + kRows * kPage) {
    const V factor(t.plan.scale);
    t.template each_row<const Q>(t.plan.q, [&](int64_t r, const Q* from) {
      for_vectors<float>(
          t.d, [&](int64_t i, auto l) { store(q + r * t.wide + i, load(from + i, l) * factor, l); });
    });
  }

  // Rows [r0, r0 + n), n <= kRows, take a block in. A row that sees none of it stays as it is.
  template <class E>
  void rows(const Block<E>& block, int64_t index, int64_t r0, int n, const Sums& out) const {
    Range range[kRows];
    int begin = n, end = 0;
    for (int i = 0; i < n; ++i) {
      range[i] = tile.seen(r0 + i, index);
      if (range[i].first >= range[i].last) continue;
      if (begin == n) begin = i;
      end = i + 1;
    }
    if (begin >= end) return;
    using M = MicrosOf<E>;
    M::kScore[end - begin - 1](q + (r0 + begin) * tile.wide, tile.wide, tile.d, block.keys,
                               scores + begin * kPage, r0 == 0 && block.cold ? block.values : nullptr);
    float shrink[kRows];
    for (int i = begin; i < end; ++i)
      shrink[i] = softmax_row(block.key_scales, block.value_scales, float(tile.plan.cap), range[i],
                              scores + i * kPage, out.top + r0 + i, sums + (r0 + i) * kL);
    for (int i = begin, next; i < end; i = next) {
      for (next = i + 1; next < end && range[next] == range[i];) ++next;
      M::kWeigh[next - i - 1](scores + i * kPage, range[i], block.values, tile.d, shrink + i,
                              out.out + (r0 + i) * tile.wide, tile.wide,
                              r0 + i == begin ? block.next_keys : nullptr);
    }
  }

  template <class E>
  void all_rows(const Block<E>& block, int64_t index, const Sums& out) const {
    for (int64_t r = 0; r < tile.rows(); r += kRows)
      rows(block, index, r, int(tile.rows() - r < kRows ? tile.rows() - r : kRows), out);
  }

  // The same numbers as float, which many rows read.
  Block<float> as_float(const Block<T>& block) const {
    const int64_t n = tile.d * kPage;
    for_vectors<float>(n, [&](int64_t i, auto l) { store(copy + i, load_float(block.keys + i, l), l); });
    for_vectors<float>(n,
                       [&](int64_t i, auto l) { store(copy + n + i, load_float(block.values + i, l), l); });
    return {copy, copy + n, block.key_scales, block.value_scales};
  }

  void split(int64_t s, const Sums& out) const {
    const int64_t rows = tile.rows();
    for (int64_t r = 0; r < rows; ++r) out.top[r] = kLowest;
    std::memset(out.out, 0, sizeof(float) * size_t(rows * tile.wide));
    std::memset(sums, 0, sizeof(float) * size_t(rows * kL));
    const int64_t begin = tile.first_block(), end = tile.end_block();
    const int64_t first = s * kSplitBlocks > begin ? s * kSplitBlocks : begin;
    const int64_t last = (s + 1) * kSplitBlocks < end ? (s + 1) * kSplitBlocks : end;
    for (int64_t b = first; b < last; ++b, cpu::poll_interrupt()) {
      const Block<T> block = tile.block<T>(b);
      if constexpr (std::is_same_v<T, float>)
        all_rows(block, b, out);
      else if (rows > 2 * kRows)
        all_rows(as_float(block), b, out);
      else
        all_rows(block, b, out);
    }
    for (int64_t r = 0; r < rows; ++r) out.sum[r] = sum_lanes(V::load(sums + r * kL));
  }
};

// ---- the call ----

// A sequence's part of the work: a task is a tile of a head, or where there is one tile a split of it.
struct Work {
  int64_t first_task, per_head;
  int64_t tile_queries;
  float* partial;  // sums of each task, where these are splits
};

struct Call {
  const LaunchContext& ctx;
  const View& out;
  const PagedAttentionPlan& plan;
  Work* work;  // [R + 1]
  int64_t heads = plan.cache.keys.sizes[1], wide = whole_vectors(plan.q.sizes[2]);
  int64_t most_rows = 0, scored = 0;
  bool splits = false;

  Call(const LaunchContext& c, const View& o, const PagedAttentionPlan& p)
      : ctx(c), out(o), plan(p), work(static_cast<Work*>(c.scratch(sizeof(Work) * size_t(p.sequences + 1)))) {
    const int64_t group = p.q.sizes[1] / heads, most = kTileRows / group > 1 ? kTileRows / group : 1;
    int64_t tasks = 0;
    for (int64_t r = 0; r < p.sequences; ++r) {
      const int64_t queries = p.starts[r + 1] - p.starts[r];
      work[r] = {tasks, queries == 0 ? 0 : (queries + most - 1) / most, most, nullptr};
      if (work[r].per_head == 1) {
        const Tile all(p, r, 0, 0, queries);
        work[r].per_head = all.end_split() - all.first_split();
        work[r].tile_queries = queries;
        if (work[r].per_head > 1) {
          const int64_t size = Sums::floats(all.rows(), wide);
          work[r].partial =
              static_cast<float*>(c.scratch(sizeof(float) * size_t(size * work[r].per_head * heads)));
          splits = true;
        }
      }
      const int64_t rows = work[r].tile_queries * group;
      if (queries && rows > most_rows) most_rows = rows;
      scored += queries * p.q.sizes[1] * p.lengths[r];
      tasks += heads * work[r].per_head;
    }
    work[p.sequences].first_task = tasks;
  }
  int64_t tasks() const { return work[plan.sequences].first_task; }

  int64_t sequence_of(int64_t task) const {
    int64_t low = 0, high = plan.sequences;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (work[middle].first_task <= task ? low : high) = middle;
    }
    return low;
  }
  Sums partial(int64_t r, int64_t index, int64_t rows) const {
    return {work[r].partial + index * Sums::floats(rows, wide), rows};
  }

  template <class Q, class T>
  void run(int64_t task) const {
    const int64_t r = sequence_of(task), index = task - work[r].first_task, count = work[r].per_head;
    const int64_t first = work[r].partial ? 0 : index % count * work[r].tile_queries;
    const int64_t rest = plan.starts[r + 1] - plan.starts[r] - first;
    const Tile tile(plan, r, index / count, first, rest < work[r].tile_queries ? rest : work[r].tile_queries);
    const int64_t rows = tile.rows(), each = Sums::floats(rows, wide);
    auto* memory = static_cast<float*>(
        cpu::thread_scratch(sizeof(float) * size_t(2 * each + Attend<Q, T>::floats(rows, wide))));
    const Attend<Q, T> attend(tile, memory + 2 * each);
    if (work[r].partial) return attend.split(tile.first_split() + index % count, partial(r, index, rows));
    const Sums total(memory, rows), part(memory + each, rows);
    attend.split(tile.first_split(), total);
    for (int64_t s = tile.first_split() + 1; s < tile.end_split(); ++s) {
      attend.split(s, part);
      for (int64_t i = 0; i < rows; ++i) merge_row(total, part, i, wide);
    }
    tile.template store<Q>(out, total);
  }

  // The splits of a head, which were tasks of their own.
  template <class Q>
  void join(int64_t r, int64_t head) const {
    const Tile tile(plan, r, head, 0, work[r].tile_queries);
    const int64_t rows = tile.rows(), first = head * work[r].per_head;
    const Sums total = partial(r, first, rows);
    for (int64_t s = 1; s < work[r].per_head; ++s)
      for (int64_t i = 0; i < rows; ++i) merge_row(total, partial(r, first + s, rows), i, wide);
    tile.template store<Q>(out, total);
  }

  template <class Q, class T>
  void all() const {
    if (tasks() == 0) return;
    parallel_for(tasks(), row_grain(scored * wide / tasks()), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) run<Q, T>(i);
    });
    if (!splits) return;
    parallel_for(plan.sequences * heads, row_grain(wide), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        if (work[i / heads].partial) join<Q>(i / heads, i % heads);
    });
  }
};

void paged_attention(const LaunchContext& ctx, const View& out, const PagedAttentionPlan& plan) {
  const Call call(ctx, out, plan);
  dispatch(Types<float, BFloat16>{}, plan.q.dtype, [&](auto t) {
    using Q = typename decltype(t)::type;
    if (plan.cache.keys.dtype == DType::Int8)
      call.all<Q, int8_t>();
    else
      call.all<Q, Q>();
  });
}

// ---- storing ----

// x [D] as values of T; the scale for int8.
template <class Q, class T>
float quantise(const Q* x, int64_t d, T* to) {
  if constexpr (std::is_same_v<Q, T>) {
    std::memcpy(to, x, sizeof(T) * size_t(d));
    return 1;
  } else {
    float most = 0;
    for (int64_t i = 0; i < d; ++i) {
      const float a = __builtin_fabsf(float(x[i]));
      most = a > most || a != a ? a : most;
    }
    // What cannot be scaled, infinite or NaN, makes the scale a NaN and so whoever reads it.
    const float factor = most > 0 ? 127 / most : 0;
    for (int64_t i = 0; i < d; ++i) {
      const float y = __builtin_rintf(float(x[i]) * factor);
      to[i] = T(y >= -127 && y <= 127 ? y : 0);
    }
    return most < __builtin_inff() ? most / 127 : __builtin_nanf("");
  }
}

template <class Q, class T>
void store_token(const PagedCacheView& cache, const View& k, const View& v, int64_t slot, int64_t n,
                 int64_t head, T* row) {
  const int64_t d = k.sizes[2], place = slot % kPage;
  const int64_t at = slot / kPage * k.sizes[1] + head;
  const float scale = quantise(k.as<Q>() + n * k.strides[0] + head * k.strides[1], d, row);
  T* keys = cache.keys.as<T>() + at * d * kPage + place;
  for (int64_t i = 0; i < d; ++i) keys[i * kPage] = row[i];
  const float value_scale = quantise(v.as<Q>() + n * v.strides[0] + head * v.strides[1], d,
                                     cache.values.as<T>() + (at * kPage + place) * d);
  if (!cache.key_scales.data) return;
  cache.key_scales.as<float>()[at * kPage + place] = scale;
  cache.value_scales.as<float>()[at * kPage + place] = value_scale;
}

void paged_store(const LaunchContext&, const PagedCacheView& cache, const View& k, const View& v,
                 const View& slots) {
  const int64_t n = k.sizes[0], heads = k.sizes[1], d = k.sizes[2];
  auto all = [&](auto q, auto t) {
    using Q = decltype(q);
    using T = decltype(t);
    // Head by head: threads write to lines of their own.
    parallel_for(n * heads, row_grain(d), [&](int64_t begin, int64_t end) {
      T* row = static_cast<T*>(cpu::thread_scratch(sizeof(T) * size_t(d)));
      for (int64_t i = begin; i < end; ++i)
        store_token<Q, T>(cache, k, v, slots.as<int64_t>()[i % n], i % n, i / n, row);
    });
  };
  dispatch(Types<float, BFloat16>{}, k.dtype, [&](auto t) {
    using Q = typename decltype(t)::type;
    if (cache.keys.dtype == DType::Int8)
      all(Q{}, int8_t{});
    else
      all(Q{}, Q{});
  });
}

}  // namespace

WT_KERNEL(paged_attention, paged_attention);
WT_KERNEL(paged_store, paged_store);

}  // namespace warptape::kernels::WARPTAPE_ISA
