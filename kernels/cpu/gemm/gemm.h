// The built-in matrix product of one thread: panels of A and B are packed so that the innermost kernel reads
// both in order, and blocked so that a panel of A stays in the L1 cache and a block of B in the L2 cache
// ("Anatomy of High-Performance Matrix Multiplication", section 4, with the roles of A and B exchanged for
// row-major C).
#pragma once

#include "kernels/cpu/gemm/gemm_tiles.h"

namespace warptape::kernels::WARPTAPE_ISA {

// k values of rows of A in panels of `width`, and of columns of B in panels of kCols.
template <class Kind>
void gemm_pack_a(typename Kind::Elem* dst, int64_t width, const typename Kind::Storage* src, int64_t is,
                 int64_t ks, int64_t rows, int64_t k) {
  if constexpr (kGemmTiles<Kind>)
    gemm_pack_rows(dst, gemm_depth<Kind>(k), gemm_depth<Kind>(k), src, is, ks, rows, k);
  else
    gemm_pack_panels<typename Kind::Storage, typename Kind::Elem>(dst, width, false, src, is, ks, rows, k);
}
template <class Kind>
void gemm_pack_b(typename Kind::Elem* dst, const typename Kind::Storage* src, int64_t js, int64_t ks,
                 int64_t cols, int64_t k) {
  gemm_pack_panels<typename Kind::Storage, typename Kind::Elem>(dst, Kind::kCols, true, src, js, ks, cols, k,
                                                                gemm_depth<Kind>(k));
}

template <class Elem, class Acc>
WT_INLINE GemmVec<Acc> gemm_madd(GemmVec<Elem> a, GemmVec<Elem> b, GemmVec<Acc> acc) {
#if defined(__AVX512F__)
  // Not an intrinsic: this file is compiled for AVX-512 without bf16, and the caller has asked the processor.
  if constexpr (sizeof(Acc) == 4 && GemmIsPair<Elem>) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
  } else
#endif
    return a * b + acc;
}

// In each lane of 32 bits the sum of two products of 16 bits.
WT_INLINE GemmVec<int32_t> gemm_pairs(GemmVec<int16_t> a, GemmVec<int16_t> b) {
#if defined(__AVX512F__)
  return (GemmVec<int32_t>)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (GemmVec<int32_t>)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  return (GemmVec<int32_t>)_mm_madd_epi16((__m128i)a, (__m128i)b);
#endif
}

// Where the innermost kernel puts its rows: c = (add ? c : 0) + bias + product, `cols` of them.
template <class Acc>
struct GemmTile {
  Acc* c;
  int64_t ldc;
  int64_t cols;
  const Acc* bias;
  bool add;
  int64_t lda = 0;  // for kAnyLda
};

inline constexpr int kAnyLda = -1;  // rows of A are where they are, GemmTile::lda apart

// The addresses of 14 rows that are equally far apart, as sums that a load computes: of two pointers and
// three distances, for there are not enough registers for a pointer to each.
template <class Elem>
class GemmRows {
 public:
  WT_INLINE GemmRows(const Elem* a, int64_t lda)
      : first_(reinterpret_cast<const char*>(a)), by_1_(lda * int64_t(sizeof(Elem))) {}
  WT_INLINE void next() { first_ += sizeof(Elem), sixth_ += sizeof(Elem); }
  // The compiler is not to see what stays the same from step to step, or it would keep it on the stack.
  WT_INLINE void forget() { asm("" : "+r"(first_), "+r"(sixth_), "+r"(by_1_), "+r"(by_3_), "+r"(by_5_)); }
  WT_INLINE Elem at(int row) const {
    const auto [pointer, by, times] = kSums[row];
    Elem x;
    __builtin_memcpy(&x,
                     (pointer ? sixth_ : first_) + times * (by == 1   ? by_1_
                                                            : by == 3 ? by_3_
                                                                      : by_5_),
                     sizeof(Elem));
    return x;
  }

 private:
  struct Sum {
    int pointer, by, times;
  };
  static constexpr Sum kSums[14] = {{0, 1, 0}, {0, 1, 1}, {0, 1, 2}, {0, 3, 1}, {0, 1, 4},
                                    {1, 1, 0}, {0, 3, 2}, {1, 1, 2}, {0, 1, 8}, {1, 1, 4},
                                    {0, 5, 2}, {1, 3, 2}, {0, 3, 4}, {1, 1, 8}};
  const char* first_;
  int64_t by_1_, by_3_ = 3 * by_1_, by_5_ = 5 * by_1_;
  const char* sixth_ = first_ + by_5_;
};

// R rows by NV vectors of C, summed in registers over k elements. a: packed, R values a step, or where Lda is
// not 0 rows of k, so far apart; b: `ldb` apart a step.
template <class Elem, class Acc, int R, int NV, int Lda = 0>
void gemm_micro(int64_t k, const Elem* a, const Elem* b, int64_t ldb, const GemmTile<Acc>& t) {
  constexpr int L = kGemmVecBytes / sizeof(Acc);
  if (t.add) {
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      __builtin_prefetch(t.c + i * t.ldc, 1);
      if (NV > 1) __builtin_prefetch(t.c + i * t.ldc + t.cols - 1, 1);
    }
  }
  GemmVec<Acc> acc[R][NV] = {};
  GemmRows<Elem> rows(a, t.lda);
  for (int64_t p = 0; p < k; ++p, a += Lda ? 1 : R, b += ldb, rows.next()) {
    if (Lda == kAnyLda) rows.forget();
    GemmVec<Elem> bv[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) bv[j] = gemm_load(b + j * L);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      GemmVec<Elem> av = gemm_splat(Lda == kAnyLda ? rows.at(i) : a[Lda ? i * Lda : i]);
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) acc[i][j] = gemm_madd<Elem, Acc>(av, bv[j], acc[i][j]);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) {
    int64_t n = j < NV - 1 ? L : t.cols - j * L;
    Acc* c = t.c + j * L;
    if (t.bias) {
      GemmVec<Acc> bias = gemm_load_n(t.bias + j * L, n);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) acc[i][j] += bias;
    }
    if (t.add) {
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) acc[i][j] += gemm_load_n(c + i * t.ldc, n);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) gemm_store_n(c + i * t.ldc, acc[i][j], n);
  }
}

template <class Elem, class Acc, int Lda, int... R>
struct GemmMicroTable {
  using Micro = void (*)(int64_t, const Elem*, const Elem*, int64_t, const GemmTile<Acc>&);
  static constexpr Micro kTable[][2] = {
      {gemm_micro<Elem, Acc, R, 1, Lda>, gemm_micro<Elem, Acc, R, 2, Lda>}...};
};
#if defined(__AVX512F__)
template <class E, class A, int Lda> using GemmMicros =
    GemmMicroTable<E, A, Lda, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;
#else
template <class E, class A, int Lda> using GemmMicros = GemmMicroTable<E, A, Lda, 1, 2, 3, 4, 5, 6>;
#endif

// Where memory holds Acc and alpha is 1 the kernel adds in place; else sums go through `partial` and are
// finished once.
template <class Kind>
inline constexpr bool kGemmInPlace = sizeof(typename Kind::Storage) == sizeof(typename Kind::Acc);

// Finishes rows of sums: `out` points at their first element.
template <class Kind>
void gemm_finish(const typename Kind::Acc* sums, int64_t ld, int64_t rows, int64_t cols,
                 const GemmOut<Kind>& out) {
  using S = typename Kind::Storage;
  using Acc = typename Kind::Acc;
  Acc alpha = Acc(out.alpha), beta = Acc(out.beta);
  for (int64_t i = 0; i < rows; ++i) {
    const Acc* s = sums + i * ld;
    S* c = out.c + i * out.ldc;
    if (alpha == 1 && beta == 0 && !out.bias) {
      for (int64_t j = 0; j < cols; ++j) c[j] = S(s[j]);
    } else {
      for (int64_t j = 0; j < cols; ++j) {
        Acc v = alpha * s[j];
        if (out.bias) v += Acc(out.bias[j]);
        if (beta != 0) v += beta * Acc(c[j]);
        c[j] = S(v);
      }
    }
  }
}

// Calls f with the kind that computes the floating dtype.
template <class F>
WT_INLINE void dispatch_gemm(DType dtype, F&& f, const char* kernel = __builtin_FUNCTION()) {
  switch (dtype) {
    case DType::Float32:
      return f(GemmF32{});
    case DType::Float64:
      return f(GemmF64{});
    case DType::Float16:
      return f(GemmHalf{});
    case DType::BFloat16:
#if defined(__AVX512F__)
      if (cpu::has_amx_bf16()) return f(GemmBf16Tile{});
      if (__builtin_cpu_supports("avx512bf16")) return f(GemmBf16Dot{});
#endif
      return f(GemmBf16{});
    default:
      unhandled_dtype(kernel, dtype);
  }
}

// How one product is blocked, and the scratch memory it needs.
template <class Kind>
struct GemmBlocking {
  int64_t depth;  // elements (of kPack) of k in all
  int64_t block_rows, block_cols, block_depth, panel_rows;
  bool in_place;    // no partial sums
  bool b_direct;    // B is read where it is
  int64_t lda = 0;  // in elements, for kAnyLda
  size_t a_bytes, b_bytes, partial_bytes;

  GemmBlocking(int64_t m, int64_t n, int64_t k, bool rows_of_b_contiguous, const GemmOut<Kind>& out) {
    using Elem = typename Kind::Elem;
    depth = gemm_depth<Kind>(k);
    panel_rows = gemm_even(m, Kind::kRows, 1);
    block_rows = gemm_even(m, Kind::kBlockRows, panel_rows);
    // On tiles whole strips.
    block_cols = gemm_even(n, Kind::kBlockCols,
                           kGemmTiles<Kind> && n > Kind::kBlockCols ? Kind::kBlockCols : Kind::kCols);
    block_depth = gemm_even(depth, Kind::kDepth, Kind::kSteps);
    in_place = kGemmInPlace<Kind> && out.alpha == 1 && (out.beta == 0 || out.beta == 1);
    // Packing pays when B is read often, or from many pages.
    b_direct = kGemmInPlace<Kind> && rows_of_b_contiguous && n >= Kind::kCols && m <= 2 * kGemmRows;
    if constexpr (kGemmTiles<Kind>)
      a_bytes = align(sizeof(Elem) * m * most_depth()), partial_bytes = tile_partial_bytes(m, n);
    else
      a_bytes = align(sizeof(Elem) * (block_rows * block_depth) + kGemmVecBytes);
    set_block_cols(m, block_cols);
  }
  // Other blocks of columns, and the scratch memory for them.
  void set_block_cols(int64_t m, int64_t cols) {
    block_cols = cols;
    b_bytes = align(sizeof(typename Kind::Elem) * block_cols * most_depth());
    if constexpr (kGemmTiles<Kind>) return;
    bool sums_stay = depth > block_depth;
    partial_bytes =
        in_place
            ? 0
            : align(sizeof(typename Kind::Acc) * (sums_stay ? m * block_cols : Kind::kRows * Kind::kCols));
  }
  // Elements of k that are packed at once.
  int64_t most_depth() const {
    if constexpr (kGemmTiles<Kind>) return depth < Kind::kPart ? depth : Kind::kPart;
    return block_depth;
  }
  size_t tile_partial_bytes(int64_t m, int64_t n) const {
    const int64_t strips = gemm_ceil(n, Kind::kBlockCols);
    return depth > most_depth() ? sizeof(float) * m * strips * Kind::kBlockCols : 0;
  }
  static size_t align(size_t n) { return (n + 63) & ~size_t{63}; }
  size_t bytes() const { return a_bytes + b_bytes + partial_bytes; }
};

// One block of A, packed or as rows (Lda), times one block of B.
template <class Kind, int Lda = 0>
struct GemmBlock {
  int64_t rows, cols, depth, panel_rows;
  const typename Kind::Elem* a;
  const typename Kind::Elem* b;       // packed: panels of kCols; direct: the block's first element
  int64_t ldb;                        // direct only, else 0
  const typename Kind::Elem* b_tail;  // direct only: the packed last columns; null: B may be read beyond
  bool first, last;                   // of the blocks along k
  typename Kind::Acc* partial;        // null when in place
  int64_t ld_partial;                 // 0: one tile, finished at once
  GemmOut<Kind> out;
  int64_t lda = 0;  // for kAnyLda

  void run() const {
    if constexpr (kGemmTiles<Kind>) {
      this->run_on_tiles();
    } else {
      for (int64_t i = 0; i < rows; i += panel_rows) {
        int64_t r = rows - i < panel_rows ? rows - i : panel_rows;
        for (int64_t j = 0; j < cols; j += Kind::kCols) {
          if (Lda == kAnyLda) fetch_panel(i + panel_rows, j);
          tile(i, r, j);
        }
      }
    }
  }

 private:
  // Its part of the rows from i on, which come next, for the tile at column j to fetch early.
  WT_INLINE void fetch_panel(int64_t i, int64_t j) const {
    const int64_t each = gemm_ceil(panel_rows, gemm_ceil(cols, Kind::kCols)), at = j / Kind::kCols * each;
    int64_t to = i + (at + each < panel_rows ? at + each : panel_rows);
    to = to < rows ? to : rows;
    for (int64_t row = i + at; row < to; ++row)
      for (int64_t p = 0; p < depth; p += 64 / int64_t(sizeof(typename Kind::Elem)))
        __builtin_prefetch(a + row * lda + p);
  }
  void tile(int64_t i, int64_t r, int64_t j) const {
    using Elem = typename Kind::Elem;
    using Acc = typename Kind::Acc;
    int64_t nc = cols - j < Kind::kCols ? cols - j : Kind::kCols;
    bool direct = ldb && (nc == Kind::kCols || !b_tail);
    const Elem* panel = direct ? b + j : ldb ? b_tail : b + j * depth;
    int64_t step = direct ? ldb : Kind::kCols;
    auto micro = GemmMicros<Elem, Acc, Lda>::kTable[r - 1][nc > Kind::kLanes];
    const Elem* rows_of_a = a + i * (Lda == kAnyLda ? lda : Lda ? Lda : depth);
    typename Kind::Storage* c = out.c + i * out.ldc + j;
    if constexpr (kGemmInPlace<Kind>) {
      if (!partial) {
        GemmTile<Acc> t{c,  out.ldc, nc, first && out.bias ? out.bias + j : nullptr, !first || out.beta != 0,
                        lda};
        return micro(depth, rows_of_a, panel, step, t);
      }
    }
    Acc* sums = ld_partial ? partial + i * ld_partial + j : partial;
    int64_t ld = ld_partial ? ld_partial : Kind::kCols;
    micro(depth, rows_of_a, panel, step, GemmTile<Acc>{sums, ld, nc, nullptr, !first, lda});
    if (last)
      gemm_finish<Kind>(sums, ld, r, nc,
                        {c, out.ldc, out.bias ? out.bias + j : nullptr, out.alpha, out.beta});
  }

#if defined(__AVX512F__)
  void run_on_tiles() const {
    const int64_t lda = Lda ? Lda : depth;
    int64_t shaped = rows < panel_rows ? rows : panel_rows;
    TileScope tiles(gemm_tile_shapes(shaped));
    for (int64_t i = 0; i < rows; i += panel_rows) {
      const int64_t r = rows - i < panel_rows ? rows - i : panel_rows;
      if (r != shaped) tiles.use(gemm_tile_shapes(shaped = r));
      for (int64_t j = 0; j < cols; j += Kind::kCols) {
        const int64_t nc = cols - j < Kind::kCols ? cols - j : Kind::kCols;
        alignas(64) float sums[Kind::kRows * Kind::kCols];
        gemm_tile(r, nc, {depth, a + i * lda, lda, b + j * depth}, {nullptr, sums, Kind::kCols});
        float* kept = partial + i * ld_partial + j;
        if (!first) gemm_add_rows(sums, Kind::kCols, kept, ld_partial, r, nc);
        if (last)
          gemm_finish_tiles(
              sums, Kind::kCols, r, nc,
              {out.c + i * out.ldc + j, out.ldc, out.bias ? out.bias + j : nullptr, out.alpha, out.beta});
        else
          gemm_copy_rows(sums, Kind::kCols, kept, ld_partial, r, nc);
      }
    }
  }
#endif
};

// Where the panel of column j in the block of depth at p lies when all of B is packed at once: blocks of
// depth one after the other, in each the panels of all columns. So it depends on neither m nor blocks of
// columns.
template <class Kind>
WT_INLINE int64_t gemm_shared_at(int64_t n, int64_t j, int64_t p, int64_t depth) {
  return gemm_ceil(n, Kind::kCols) * Kind::kCols * p + j * depth;
}

#if defined(__AVX512F__)
// Calls f(GemmTileRows) for all parts of k, with A's m rows packed. `a` holds GemmBlocking::a_bytes.
template <class Kind, class PackA, class F>
WT_INLINE void gemm_tile_parts(int64_t m, const GemmBlocking<Kind>& bl, PackA&& pack_a,
                               typename Kind::Elem* a, float* partial, F&& f) {
  const int64_t part = Kind::kPart / bl.block_depth * bl.block_depth;
  for (int64_t begin = 0; begin < bl.depth; begin += part) {
    const int64_t end = bl.depth - begin < part ? bl.depth : begin + part;
    if (begin) cpu::poll_interrupt();
    const typename Kind::Elem* packed = a;
    for (int64_t p = begin; p < end; p += bl.block_depth) {
      const int64_t depth = end - p < bl.block_depth ? end - p : bl.block_depth;
      if constexpr (std::is_void_v<decltype(pack_a(a, p, m, p, depth, p))>)
        pack_a(a + (p - begin) * m, 0, m, p, depth, bl.panel_rows);
      else if (p == begin)
        packed = pack_a(a, 0, m, p, depth, bl.panel_rows);
    }
    f(GemmTileRows{packed, m, bl.panel_rows, begin, end, bl.block_depth, partial, end == bl.depth});
  }
}

template <class Kind, class PackA, class PackB>
void gemm_serial_tiles(int64_t m, int64_t n, const GemmBlocking<Kind>& bl, PackA&& pack_a, PackB&& pack_b,
                       const GemmOut<Kind>& out, char* scratch) {
  using Elem = typename Kind::Elem;
  auto* a = reinterpret_cast<Elem*>(scratch);
  auto* b = reinterpret_cast<Elem*>(scratch + bl.a_bytes);
  auto* partial = reinterpret_cast<float*>(scratch + bl.a_bytes + bl.b_bytes);
  gemm_tile_parts(m, bl, pack_a, a, partial, [&](GemmTileRows rows) {
    for (int64_t j = 0; j < n; j += bl.block_cols) {
      const int64_t cols = n - j < bl.block_cols ? n - j : bl.block_cols,
                    wide = gemm_ceil(cols, Kind::kCols) * Kind::kCols;
      if (j) cpu::poll_interrupt();
      for (int64_t p = rows.begin; p < rows.end; p += bl.block_depth)
        pack_b(b + (p - rows.begin) * wide, j, cols, p,
               rows.end - p < bl.block_depth ? rows.end - p : bl.block_depth);
      rows.partial = partial + j * m;  // whole strips
      const auto panel = [&](int64_t c, int64_t p, int64_t depth) {
        return b + (p - rows.begin) * wide + c * depth;
      };
      GemmTileProduct{rows, cols, panel, gemm_from_col(out, j)}.run();
    }
  });
}
#endif

// Where the block of A is: packed to `a`, or there already.
template <class Elem, class PackA>
WT_INLINE const Elem* gemm_packed_a(PackA&& pack_a, Elem* a, int64_t i, int64_t rows, int64_t p,
                                    int64_t depth, int64_t width) {
  if constexpr (std::is_void_v<decltype(pack_a(a, i, rows, p, depth, width))>)
    return pack_a(a, i, rows, p, depth, width), a;
  else
    return pack_a(a, i, rows, p, depth, width);
}

// out = alpha * A B + beta * out + bias on this thread; `scratch` holds GemmBlocking::bytes(), aligned to 64.
// Packers give the operands: pack_a(elem*, i, rows, p, depth, panel_rows), pack_b(elem*, j, cols, p, depth),
// p and depth in elements of kPack; a pack_a that returns a pointer had packed that block before. b_rows: B
// itself where its rows are contiguous (`ldb` apart), else null.
template <class Kind, int Lda = 0, class PackA, class PackB>
WT_INLINE void gemm_serial(int64_t m, int64_t n, const GemmBlocking<Kind>& bl, PackA&& pack_a, PackB&& pack_b,
                           const typename Kind::Elem* b_rows, int64_t ldb, const GemmOut<Kind>& out,
                           char* scratch) {
  using Elem = typename Kind::Elem;
  if constexpr (kGemmTiles<Kind>) return gemm_serial_tiles(m, n, bl, pack_a, pack_b, out, scratch);
  Elem* a = reinterpret_cast<Elem*>(scratch);
  Elem* b = reinterpret_cast<Elem*>(scratch + bl.a_bytes);
  auto* partial = reinterpret_cast<typename Kind::Acc*>(scratch + bl.a_bytes + bl.b_bytes);
  for (int64_t j = 0; j < n; j += bl.block_cols) {
    int64_t cols = n - j < bl.block_cols ? n - j : bl.block_cols;
    int64_t whole = bl.b_direct ? cols / Kind::kCols * Kind::kCols : 0;
    for (int64_t p = 0; p < bl.depth; p += bl.block_depth) {
      int64_t depth = bl.depth - p < bl.block_depth ? bl.depth - p : bl.block_depth;
      if (p) cpu::poll_interrupt();
      if (whole < cols) pack_b(b, j + whole, cols - whole, p, depth);
      for (int64_t i = 0; i < m; i += bl.block_rows) {
        int64_t rows = m - i < bl.block_rows ? m - i : bl.block_rows;
        const Elem* panels = gemm_packed_a<Elem>(pack_a, a, i, rows, p, depth, bl.panel_rows);
        GemmBlock<Kind, Lda> block{rows,
                                   cols,
                                   depth,
                                   bl.panel_rows,
                                   panels,
                                   bl.b_direct ? b_rows + p * ldb + j : b,
                                   bl.b_direct ? ldb : 0,
                                   b,
                                   p == 0,
                                   p + depth == bl.depth,
                                   nullptr,
                                   0,
                                   out,
                                   bl.lda};
        block.out.c += i * out.ldc + j;
        if (out.bias) block.out.bias += j;
        if (!bl.in_place) {
          block.ld_partial = bl.depth > bl.block_depth ? bl.block_cols : 0;
          block.partial = partial + i * block.ld_partial;
        }
        block.run();
      }
    }
  }
}

// The scratch memory of gemm_with_shared for m rows, and the most columns it takes at a time.
template <class Kind>
struct GemmSharedSize {
  static constexpr int64_t kCols = (kGemmTiles<Kind> ? 4 : 6) * Kind::kBlockCols;
  int64_t m, n;
  GemmBlocking<Kind> bl;
  int64_t first = 0, all = n;  // columns [first, first + n) of all that were packed
  int64_t partial_cols =
      bl.depth > bl.block_depth ? (n < kCols ? gemm_ceil(n, Kind::kCols) * Kind::kCols : kCols) : 0;
  size_t a_bytes = kGemmTiles<Kind> ? bl.align(sizeof(typename Kind::Elem) * m * bl.depth) : bl.a_bytes;
  size_t partial_bytes = kGemmTiles<Kind> ? bl.tile_partial_bytes(m, n < kCols ? n : kCols)
                         : bl.in_place    ? 0
                                          : sizeof(typename Kind::Acc) *
                                                (partial_cols ? m * partial_cols : Kind::kRows * Kind::kCols);
  size_t bytes() const { return a_bytes + partial_bytes; }
};

#if defined(__AVX512F__)
// All of A is packed; then come blocks of columns whose partial sums stay in the L2 cache.
template <class Kind, class PackA>
void gemm_tiles_with_shared(const GemmSharedSize<Kind>& size, PackA&& pack_a, const typename Kind::Elem* b,
                            const GemmOut<Kind>& out, char* scratch) {
  const GemmBlocking<Kind>& bl = size.bl;
  auto* a = reinterpret_cast<typename Kind::Elem*>(scratch);
  auto* partial = reinterpret_cast<float*>(scratch + size.a_bytes);
  for (int64_t p = 0; p < bl.depth; p += bl.block_depth)
    pack_a(a + p * size.m, 0, size.m, p, bl.depth - p < bl.block_depth ? bl.depth - p : bl.block_depth,
           bl.panel_rows);
  const auto packed = [&](auto*, int64_t, int64_t, int64_t p, int64_t, int64_t) { return a + p * size.m; };
  for (int64_t j = 0; j < size.n; j += size.kCols)
    gemm_tile_parts(size.m, bl, packed, a, partial, [&](const GemmTileRows& rows) {
      const auto panel = [&](int64_t c, int64_t p, int64_t depth) {
        return b + gemm_shared_at<Kind>(size.all, size.first + j + c, p, depth);
      };
      GemmTileProduct{rows, size.n - j < size.kCols ? size.n - j : size.kCols, panel, gemm_from_col(out, j)}
          .run();
    });
}
#endif

// As gemm_serial for some rows of C, with all of B packed before (gemm_shared_at), for many tasks to read: A
// is packed once for many columns.
template <class Kind, int Lda = 0, class PackA>
WT_INLINE void gemm_with_shared(const GemmSharedSize<Kind>& size, PackA&& pack_a,
                                const typename Kind::Elem* b, const GemmOut<Kind>& out, char* scratch) {
  using Elem = typename Kind::Elem;
  const GemmBlocking<Kind>& bl = size.bl;
  if constexpr (kGemmTiles<Kind>) return gemm_tiles_with_shared(size, pack_a, b, out, scratch);
  Elem* a = reinterpret_cast<Elem*>(scratch);
  auto* partial = bl.in_place ? nullptr : reinterpret_cast<typename Kind::Acc*>(scratch + size.a_bytes);
  const int64_t step = size.kCols / Kind::kBlockCols * bl.block_cols;  // whole blocks, as B is packed
  for (int64_t j0 = 0; j0 < size.n; j0 += step) {
    int64_t j1 = size.n - j0 < step ? size.n : j0 + step;
    for (int64_t p = 0; p < bl.depth; p += bl.block_depth) {
      int64_t depth = bl.depth - p < bl.block_depth ? bl.depth - p : bl.block_depth;
      if (p) cpu::poll_interrupt();
      for (int64_t i = 0; i < size.m; i += bl.block_rows) {
        int64_t rows = size.m - i < bl.block_rows ? size.m - i : bl.block_rows;
        const Elem* panels = gemm_packed_a<Elem>(pack_a, a, i, rows, p, depth, bl.panel_rows);
        for (int64_t j = j0; j < j1; j += bl.block_cols) {
          int64_t cols = size.n - j < bl.block_cols ? size.n - j : bl.block_cols;
          auto* sums = partial && size.partial_cols ? partial + i * size.partial_cols + (j - j0) : partial;
          GemmBlock<Kind, Lda> block{rows,   cols,
                                     depth,  bl.panel_rows,
                                     panels, b + gemm_shared_at<Kind>(size.all, size.first + j, p, depth),
                                     0,      nullptr,
                                     p == 0, p + depth == bl.depth,
                                     sums,   size.partial_cols,
                                     out,    bl.lda};
          block.out.c += i * out.ldc + j;
          if (out.bias) block.out.bias += j;
          block.run();
        }
      }
    }
  }
}

}  // namespace warptape::kernels::WARPTAPE_ISA
