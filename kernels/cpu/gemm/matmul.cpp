// Matrix product. Floating types: packed and blocked (gemm.h), cut into tiles for the pool; few rows: dot
// products that read the larger operand once where it is.
#include "kernels/linalg/matmul.h"

#include <cstring>

#include "kernels/cpu/fused/chain_parts.h"
#include "kernels/cpu/gemm/gemm_dot.h"
#include "kernels/cpu/gemm/gemm_plan.h"
#include "kernels/dispatch.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

// Rows and columns of C in one task, by size alone: few enough for the caches, enough tasks for the threads,
// and tasks that are worth a thread (about 2 million multiplications).
struct Tiles {
  int64_t rows, cols, down, across;
  // `speed`: how many times faster than vector instructions the product is computed.
  WT_INLINE Tiles(int64_t m, int64_t n, int64_t k, int64_t batch, int64_t speed)
      : rows(m), cols(n), down(1), across(1) {
    double work = double(m) * double(n) * double(k) / double(speed);
    int64_t wanted = work > 8e6 ? 8 : int64_t(work / 1e6);
    while (down * across * batch < wanted || rows > 256 * speed || cols > 512 * speed) {
      if (rows <= 32 && cols <= 64) break;
      if (rows > 32 && (2 * rows >= cols || cols <= 64))
        down *= 2;
      else
        across *= 2;
      rows = gemm_ceil(m, down);
      cols = gemm_ceil(gemm_ceil(n, across), 64) * 64;
    }
    down = gemm_ceil(m, rows);
    across = gemm_ceil(n, cols);
  }
};

// Rows [i, i + m) and the columns from j on.
template <class Kind>
Part<Kind> part_of(const MatmulPlan& p, const Matrices<typename Kind::Storage>& x, int64_t i, int64_t m,
                   int64_t j) {
  using S = typename Kind::Storage;
  if (!p.prologue) return Part<Kind>(p, x, i, j);
  const auto* rows = static_cast<const S*>(p.prologue->make(p.prologue->self, i, i + m));
  return Part<Kind>(p, Matrices<S>{rows, x.b, x.c + i * p.c.row_stride}, 0, j);
}

template <class Kind>
void multiply_tile(const MatmulPlan& p, const Matrices<typename Kind::Storage>& x, int64_t i0, int64_t m,
                   int64_t j0, int64_t n) {
  const Part<Kind> part = part_of<Kind>(p, x, i0, m, j0);
  GemmBlocking<Kind> bl = part.blocking(m, n, true);
  char* scratch = static_cast<char*>(cpu::thread_scratch(bl.bytes()));
  const auto* b = reinterpret_cast<const typename Kind::Elem*>(part.b);
  part.with_a(bl, [&](auto lda, auto&& pack_a) {
    gemm_serial<Kind, lda.value>(m, n, bl, pack_a, part.pack_b(), b, p.b.row_stride, part.out, scratch);
  });
}

// Rows of a task that multiplies them with all of B. On tiles they are as many as fit into half of the L2
// cache, if there are two tasks for each thread.
template <class Kind>
int64_t rows_of_task(const MatmulPlan& p) {
  if (!kGemmTiles<Kind> || p.m < 512) return gemm_ceil(p.m, p.m >= 512 ? gemm_ceil(p.m, 128) : 4);
  const int64_t most = p.k <= 512 ? 512 : 256;
  const int64_t shared = gemm_ceil(p.m, 2 * cpu::num_threads());
  return gemm_even(p.m, shared < 128 ? 128 : shared < most ? shared : most, 1);
}

// Many rows: B is packed once, by all threads, then every task multiplies its rows with all of it. C's first
// row is `first` of all batches'.
template <class Kind>
void multiply_shared(const LaunchContext& ctx, const MatmulPlan& p, const Matrices<typename Kind::Storage>& x,
                     int64_t first, const ChainParts* epilogue) {
  using Elem = typename Kind::Elem;
  Part<Kind> whole(p, x, 0, 0);
  int64_t rows = rows_of_task<Kind>(p);
  GemmBlocking<Kind> bl = whole.blocking(rows, p.n, false);
  const Elem* b = gemm_pack_shared<Kind>(ctx, whole, bl);
  cpu::parallel_for(gemm_ceil(p.m, rows), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      int64_t i = t * rows, m = p.m - i < rows ? p.m - i : rows;
      const Part<Kind> part = part_of<Kind>(p, x, i, m, 0);
      GemmSharedSize<Kind> size{m, p.n, part.blocking(m, p.n, false)};
      char* scratch = static_cast<char*>(cpu::thread_scratch(size.bytes()));
      part.with_a(size.bl, [&](auto lda, auto&& pack_a) {
        gemm_with_shared<Kind, lda.value>(size, pack_a, b, part.out, scratch);
      });
      if (epilogue) epilogue->run((first + i) * p.n, (first + i + m) * p.n);
    }
  });
}

// Whether B is worth packing once for all: it would be packed often, and fits.
template <class Kind>
WT_INLINE bool suits_shared(const MatmulPlan& p, int64_t batch) {
  double work = double(p.m) * double(p.n) * double(p.k);
  double bytes = double(p.n) * double(p.k) * sizeof(typename Kind::Elem) / Kind::kPack;
  // On tiles a product takes hardly longer than fetching from memory what others packed there.
  if (kGemmTiles<Kind> && bytes > (p.m < 512 ? 4e6 : 16e6)) return false;
  return p.m >= 112 && work >= 8e6 && bytes <= 64e6 && (batch < 4 || work >= 64e6);
}

// Kinds whose B may be packed before: those that take no more memory for it than B itself. On tiles a product
// takes hardly longer than fetching what was packed.
template <class Kind>
inline constexpr bool kKeepsPacked =
    !kGemmTiles<Kind> && sizeof(typename Kind::Elem) == sizeof(typename Kind::Storage) * Kind::kPack;

// B was packed before. A task is some columns of many rows, whose A stays in the L2 cache, so that B comes
// from memory once; the sums are those of all other ways.
template <class Kind>
class PackedProduct {
  using Elem = typename Kind::Elem;
  using S = typename Kind::Storage;
  static constexpr int64_t kMostRows = 256, kBlockRows = 22 * 6;  // of a task, of a block
  static constexpr double kTask = 4e6;                            // multiplications that are worth one

 public:
  PackedProduct(const LaunchContext& ctx, const MatmulPlan& p)
      : p_(p), x_(matrices<S>(p, 0)), rows_(gemm_even(p.m, kMostRows, 1)), down_(gemm_ceil(p.m, rows_)) {
    const double work = double(p.m) * double(p.n) * double(p.k) / kTask;
    const int64_t wanted = gemm_ceil(work > 16 ? 16 : int64_t(work) + 1, down_);
    int64_t across = p.n / 64;
    across = across < 1 ? 1 : across < wanted ? across : wanted;
    cols_ = gemm_even(p.n, gemm_ceil(p.n, across), Kind::kCols);
    across_ = gemm_ceil(p.n, cols_);
    const Part<Kind> whole(p, x_, 0, 0);
    GemmBlocking<Kind> bl = blocking(whole, p.m, p.n);
    whole.with_a(bl, [&](auto lda, auto&&) { in_place_ = lda.value != 0; });
    if (!in_place_ && across_ > 1) pack_a(ctx, whole);
  }

  void run() const {
    cpu::parallel_for(down_ * across_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) task(t / across_ * rows_, t % across_ * cols_);
    });
  }

 private:
  static GemmBlocking<Kind> blocking(const Part<Kind>& part, int64_t m, int64_t n) {
    GemmBlocking<Kind> bl = part.blocking(m, n, false);
    bl.block_rows = gemm_even(m, kBlockRows, bl.panel_rows);
    bl.a_bytes = bl.align(sizeof(Elem) * (bl.block_rows * bl.block_depth) + kGemmVecBytes);
    return bl;
  }
  int64_t rows_at(int64_t i) const { return p_.m - i < rows_ ? p_.m - i : rows_; }

  // All of A, where its rows are not read in place and more than one task has them: task by task, in each
  // block of depth by block of depth the blocks of rows.
  void pack_a(const LaunchContext& ctx, const Part<Kind>& whole) {
    const int64_t all = gemm_depth<Kind>(p_.k);
    auto* a = static_cast<Elem*>(ctx.scratch(sizeof(Elem) * size_t(p_.m * all) + kGemmVecBytes));
    const int64_t deep = gemm_ceil(all, blocking(whole, p_.m, p_.n).block_depth);
    cpu::parallel_for(down_ * deep, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t i = t / deep * rows_, m = rows_at(i);
        const GemmBlocking<Kind> bl = blocking(whole, m, p_.n);
        const int64_t at = t % deep * bl.block_depth;
        const int64_t depth = bl.depth - at < bl.block_depth ? bl.depth - at : bl.block_depth;
        for (int64_t r = 0; r < m; r += bl.block_rows)
          whole.pack_a()(a + i * all + at * m + r * depth, i + r,
                         m - r < bl.block_rows ? m - r : bl.block_rows, at, depth, bl.panel_rows);
      }
    });
    a_ = a;
  }

  void task(int64_t i, int64_t j) const {
    const int64_t m = rows_at(i), n = p_.n - j < cols_ ? p_.n - j : cols_;
    const Part<Kind> part(p_, x_, i, j);
    GemmSharedSize<Kind> size{m, n, blocking(part, m, n), j, p_.n};
    const auto* b = static_cast<const Elem*>(p_.packed);
    char* scratch = static_cast<char*>(cpu::thread_scratch(size.bytes()));
    if (a_) {
      const Elem* a = a_ + i * size.bl.depth;
      const auto there = [a, m](Elem*, int64_t r, int64_t, int64_t at, int64_t depth, int64_t) {
        return a + at * m + r * depth;
      };
      return gemm_with_shared<Kind>(size, there, b, part.out, scratch);
    }
    part.with_a(size.bl, [&](auto lda, auto&& pack) {
      gemm_with_shared<Kind, lda.value>(size, pack, b, part.out, scratch);
    });
  }

  const MatmulPlan& p_;
  Matrices<S> x_;
  int64_t rows_, down_, cols_, across_;
  bool in_place_ = false;
  const Elem* a_ = nullptr;  // packed
};

// Returns whether the epilogue ran, too.
template <class Kind>
bool multiply(const LaunchContext& ctx, const MatmulPlan& p, const ChainParts* epilogue) {
  using S = typename Kind::Storage;
  int64_t batch = p.batch[0] * p.batch[1];
  if constexpr (kKeepsPacked<Kind>) {
    // Epilogues of many rows, and rows that are made, want tasks that have whole rows.
    if (p.packed && !p.prologue && (!epilogue || p.m < 512)) {
      PackedProduct<Kind>(ctx, p).run();
      return false;
    }
  }
  if (suits_shared<Kind>(p, batch)) {
    for (int64_t i = 0; i < batch; ++i) multiply_shared<Kind>(ctx, p, matrices<S>(p, i), i * p.m, epilogue);
    return true;
  }
  Tiles tiles(p.m, p.n, p.k, batch, Kind::kSpeed);
  if (tiles.across > 1) epilogue = nullptr;  // no task has whole rows
  double work = double(tiles.rows) * double(tiles.cols) * double(p.k) / Kind::kSpeed;
  int64_t grain = work < 1e6 ? int64_t(1e6 / (work + 1e3)) + 1 : 1;
  int64_t each = tiles.down * tiles.across;
  cpu::parallel_for(batch * each, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      int64_t i = t % each / tiles.across * tiles.rows, j = t % each % tiles.across * tiles.cols;
      int64_t rows = p.m - i < tiles.rows ? p.m - i : tiles.rows;
      int64_t cols = p.n - j < tiles.cols ? p.n - j : tiles.cols;
      Matrices<S> x = matrices<S>(p, t / each);
      multiply_tile<Kind>(p, x, i, rows, j, cols);
      const int64_t row = t / each * p.m + i;
      if (epilogue) epilogue->run(row * p.n, (row + rows) * p.n);
    }
  });
  return epilogue;
}

// Few rows of A, all vectors along k contiguous: every column of B is read once.
template <class S>
void multiply_few_rows(const MatmulPlan& p, bool swapped) {
  int64_t batch = p.batch[0] * p.batch[1];
  int64_t n = swapped ? p.m : p.n;
  int64_t bytes = p.k * int64_t(sizeof(S)) + 16;
  int64_t grain = gemm_ceil(65536, bytes * 4) * 4;  // columns that make about 64 KB
  int64_t cuts = gemm_ceil(n, grain);
  int64_t together = n * bytes < 16384 ? 65536 / (n * bytes) : 1;
  cpu::parallel_for(batch * cuts, together, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      Matrices<S> x = matrices<S>(p, t / cuts);
      GemmDot<S> d{x.a,
                   x.b,
                   x.c,
                   static_cast<const S*>(p.bias),
                   p.m,
                   p.k,
                   p.a.row_stride,
                   p.b.col_stride,
                   p.c.row_stride,
                   1,
                   0,
                   1,
                   p.alpha,
                   p.beta};
      if (swapped)
        d = {x.b, x.a, x.c,     d.bias, p.n, p.k, p.b.col_stride, p.a.row_stride, 1, p.c.row_stride,
             1,   0,   p.alpha, p.beta};
      int64_t j = t % cuts * grain;
      d.columns(j, n - j < grain ? n : j + grain);
    }
  });
}

// Whether m rows are few enough for dot products: their sums across lanes must be rare, and tiles packed for
// more rows would take longer.
template <class Kind>
WT_INLINE bool few(int64_t m, int64_t n, int64_t k) {
  return m == 1 || (m <= (kGemmTiles<Kind> ? kFewRows / 2 : kFewRows) && k >= 256 && n >= m);
}

// Whether a task multiplies whole rows of A, and no other task these.
template <class Kind>
bool takes_rows(const MatmulPlan& p) {
  if (p.k == 0 || p.batch[0] * p.batch[1] != 1) return false;
  if (p.b.row_stride == 1 && (few<Kind>(p.m, p.n, p.k) || few<Kind>(p.n, p.m, p.k))) return false;
  return suits_shared<Kind>(p, 1) || Tiles(p.m, p.n, p.k, 1, Kind::kSpeed).across == 1;
}

template <class Kind>
bool matmul_blocked(const LaunchContext& ctx, const MatmulPlan& p, const ChainParts* epilogue) {
  using S = typename Kind::Storage;
  bool along_k = p.a.col_stride == 1 && p.b.row_stride == 1;
  bool few_rows = along_k && few<Kind>(p.m, p.n, p.k), few_columns = along_k && few<Kind>(p.n, p.m, p.k);
  if constexpr (!std::is_integral_v<typename Kind::Acc>) {
    if (few_rows || few_columns) {
      multiply_few_rows<S>(p, !few_rows);
      return false;
    }
  }
  return multiply<Kind>(ctx, p, epilogue);
}

// beta * C + bias, for k = 0.
template <class Kind>
void without_product(const MatmulPlan& p) {
  using S = typename Kind::Storage;
  typename Kind::Acc zero[64] = {};
  for (int64_t t = 0; t < p.batch[0] * p.batch[1]; ++t)
    for (int64_t j = 0; j < p.n; j += 64) {
      const S* bias = p.bias ? static_cast<const S*>(p.bias) + j : nullptr;
      GemmOut<Kind> out{matrices<S>(p, t).c + j, p.c.row_stride, bias, p.alpha, p.beta};
      gemm_finish<Kind>(zero, 0, p.m, p.n - j < 64 ? p.n - j : 64, out);
    }
}

template <class Kind>
bool matmul_of(const LaunchContext& ctx, const MatmulPlan& p, const ChainParts* epilogue) {
  if (p.k != 0) return matmul_blocked<Kind>(ctx, p, epilogue);
  without_product<Kind>(p);
  return false;
}

void matmul_with_epilogue(const LaunchContext& ctx, const MatmulPlan& p) {
  const ChainParts epilogue(ctx, *p.epilogue);
  bool done = false;
  dispatch_gemm(p.dtype, [&](auto kind) { done = matmul_of<decltype(kind)>(ctx, p, &epilogue); });
  if (!done) epilogue.run_all();
}

void matmul(const LaunchContext& ctx, const MatmulPlan& p);

// The product of what the prologue makes, as a whole where the kernel does not take it by rows.
void matmul_with_prologue(const LaunchContext& ctx, const MatmulPlan& p) {
  const int64_t row = p.k * int64_t(itemsize(p.dtype)), rows = row < 65536 ? 65536 / (row + 1) + 1 : 1;
  auto* a = static_cast<char*>(ctx.scratch(size_t(p.m * row) + 1));
  cpu::parallel_for(p.m, rows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += rows) {
      const int64_t last = i + rows < end ? i + rows : end;
      std::memcpy(a + i * row, p.prologue->make(p.prologue->self, i, last), size_t((last - i) * row));
    }
  });
  MatmulPlan whole = p;
  whole.prologue = nullptr;
  whole.a.data = a;
  matmul(ctx, whole);
}

void matmul(const LaunchContext& ctx, const MatmulPlan& p) {
  if (p.m == 0 || p.n == 0 || p.batch[0] == 0 || p.batch[1] == 0) return;
  if (p.prologue) {
    bool by_rows = false;
    dispatch_gemm(p.dtype, [&](auto kind) { by_rows = takes_rows<decltype(kind)>(p); });
    if (!by_rows) return matmul_with_prologue(ctx, p);
  }
  if (p.epilogue) return matmul_with_epilogue(ctx, p);
  if (is_floating(p.dtype))
    return dispatch_gemm(p.dtype, [&](auto kind) { matmul_of<decltype(kind)>(ctx, p, nullptr); });
  dispatch(IntTypes{}, p.dtype,
           [&](auto t) { matmul_of<GemmInt<typename decltype(t)::type>>(ctx, p, nullptr); });
}

int64_t matmul_pack(const LaunchContext&, const MatmulPlan& p, void* packed) {
  int64_t bytes = 0;
  dispatch_gemm(p.dtype, [&](auto kind) {
    using Kind = decltype(kind);
    using Elem = typename Kind::Elem;
    if constexpr (kKeepsPacked<Kind>) {
      bytes = int64_t(sizeof(Elem)) * gemm_shared_elements<Kind>(p);
      if (!packed || !bytes) return;
      const Part<Kind> whole(p, matrices<typename Kind::Storage>(p, 0), 0, 0);
      gemm_pack_shared_to(static_cast<Elem*>(packed), whole, whole.blocking(kFewRows, p.n, false));
    }
  });
  return bytes;
}

}  // namespace

WT_KERNEL(matmul, matmul);
WT_KERNEL(matmul_pack, matmul_pack);

}  // namespace warptape::kernels::WARPTAPE_ISA
