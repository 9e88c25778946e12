// Products of groups. All of A is packed first, once; then a task multiplies one group's rows with a block of
// its matrix's columns, which it packs for itself: a matrix that a few hundred rows meet is read once, and
// its panels never leave the cache. (A product each would pack every matrix for all threads, and wait twice.)
#include "kernels/linalg/grouped_mm.h"

#include <cstring>

#include "kernels/cpu/gemm/gemm_plan.h"
#include "kernels/cpu/index/fault.h"
#include "kernels/dispatch.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int64_t kMostRows = 1024;  // of a part: many enough to pay for packing the matrix again
constexpr int64_t kPackedAtOnce = int64_t{1} << 23;  // elements of A, so that they stay in a large cache
constexpr int64_t kNotPacked = -1;

// Rows of a group, or along k a whole one.
struct GroupPart {
  int64_t group, first, count;
  int64_t at;    // where its packed A begins; kNotPacked for one that is too large
  int64_t task;  // its first one
};

template <class Kind>
class GroupedProduct {
  using S = typename Kind::Storage;
  using Elem = typename Kind::Elem;

 public:
  GroupedProduct(const LaunchContext& ctx, const GroupedMmPlan& p) : ctx_(ctx), p_(p) {
    // Each row of a [k, n] is on pages of its own: blocks that are twice as wide meet half as many.
    const int64_t wide = p.along_k || p.b_transposed ? 1 : 2;
    cols_ = gemm_even(p.n, wide * Kind::kBlockCols, Kind::kCols);
    across_ = gemm_ceil(p.n, cols_);
  }

  void run() {
    if (!find_parts()) return;
    int64_t most = 0;
    for (int64_t i = 0; i < count_; ++i) most += is_packed(parts_[i]) ? elements(parts_[i]) : 0;
    if (most > kPackedAtOnce) most = kPackedAtOnce;
    if (most) packed_ = static_cast<Elem*>(ctx_.scratch(sizeof(Elem) * size_t(most) + kGemmVecBytes));
    for (int64_t begin = 0, end; begin < count_; begin = end) {
      int64_t packed = 0;
      for (end = begin; end < count_; ++end) {
        const int64_t size = is_packed(parts_[end]) ? elements(parts_[end]) : 0;
        if (packed + size > kPackedAtOnce) break;
        parts_[end].at = size ? packed : kNotPacked;
        packed += size;
      }
      run_wave(begin, end);
    }
  }

 private:
  // Also what is in no group gets its zeros here.
  bool find_parts() {
    const int64_t cut = p_.cut();
    int64_t most = 0, before = 0;
    for (int64_t g = 0; g < p_.groups; ++g) {
      const int64_t end = p_.ends[g];
      if (end < before || end > cut) {
        cpu::report_index(ctx_, end < before ? end - before : end, cut);
        return false;
      }
      most += p_.along_k ? 1 : gemm_ceil(end - before, kMostRows);
      before = end;
    }
    parts_ = static_cast<GroupPart*>(ctx_.scratch(sizeof(GroupPart) * size_t(most + 1)));
    auto* c = static_cast<S*>(p_.c);
    int64_t first = 0;
    for (int64_t g = 0; g < p_.groups; first = p_.ends[g++]) {
      const int64_t rows = p_.ends[g] - first;
      if (p_.along_k && rows == 0) std::memset(c + g * p_.m * p_.n, 0, sizeof(S) * size_t(p_.m * p_.n));
      if (rows == 0) continue;
      const int64_t each = p_.along_k ? rows : gemm_even(rows, kMostRows, 1);
      for (int64_t i = 0; i < rows; i += each)
        parts_[count_++] = {g, first + i, rows - i < each ? rows - i : each, 0, 0};
    }
    if (!p_.along_k && first < p_.m)
      std::memset(c + first * p_.n, 0, sizeof(S) * size_t((p_.m - first) * p_.n));
    return true;
  }

  int64_t elements(const GroupPart& part) const {
    const MatmulPlan plan = plan_of(part);
    return plan.m * gemm_depth<Kind>(plan.k);
  }
  bool is_packed(const GroupPart& part) const { return elements(part) <= kPackedAtOnce; }

  MatmulPlan plan_of(const GroupPart& part) const {
    MatmulPlan plan{};
    plan.dtype = p_.dtype;
    plan.batch[0] = plan.batch[1] = 1;
    plan.m = p_.along_k ? p_.m : part.count, plan.n = p_.n, plan.k = p_.along_k ? part.count : p_.k;
    auto at = [](const void* x, int64_t i) { return const_cast<S*>(static_cast<const S*>(x) + i); };
    plan.c = {at(p_.c, p_.along_k ? part.group * p_.m * p_.n : part.first * p_.n), p_.n, 1, {0, 0}};
    if (p_.along_k) {
      plan.a = {at(p_.a, part.first * p_.m), 1, p_.m, {0, 0}};
      plan.b = {at(p_.b, part.first * p_.n), p_.n, 1, {0, 0}};
    } else {
      plan.a = {at(p_.a, part.first * p_.k), p_.k, 1, {0, 0}};
      void* b = at(p_.b, part.group * p_.n * p_.k);
      plan.b = p_.b_transposed ? MatrixRef{b, 1, p_.k, {0, 0}} : MatrixRef{b, p_.n, 1, {0, 0}};
    }
    return plan;
  }

  // Blocks of A's rows are tasks when it is packed, blocks of B's columns when it is multiplied.
  template <class Each, class Run>
  void in_tasks(int64_t begin, int64_t end, Each&& tasks_of, Run&& run) {
    int64_t tasks = 0;
    for (int64_t i = begin; i < end; ++i) parts_[i].task = tasks, tasks += tasks_of(parts_[i]);
    cpu::parallel_for(tasks, 1, [&](int64_t from, int64_t to) {
      int64_t i = begin;
      for (int64_t t = from; t < to; ++t) {
        while (i + 1 < end && parts_[i + 1].task <= t) ++i;
        run(parts_[i], t - parts_[i].task);
      }
    });
  }

  void run_wave(int64_t begin, int64_t end) {
    auto blocks = [&](const GroupPart& part) {
      const MatmulPlan plan = plan_of(part);
      return part.at == kNotPacked ? int64_t{0} : gemm_ceil(plan.m, blocking(plan).block_rows);
    };
    in_tasks(begin, end, blocks, [&](const GroupPart& part, int64_t t) { pack(part, t); });
    in_tasks(
        begin, end, [&](const GroupPart&) { return across_; },
        [&](const GroupPart& part, int64_t t) { multiply(part, t * cols_); });
  }

  GemmBlocking<Kind> blocking(const MatmulPlan& plan) const {
    return Part<Kind>(plan, matrices<S>(plan, 0), 0, 0).blocking(plan.m, plan.n, true);
  }

  // Block t of rows, of all k: as gemm_serial asks for its blocks, depth by depth.
  void pack(const GroupPart& part, int64_t t) const {
    const MatmulPlan plan = plan_of(part);
    const Part<Kind> whole(plan, matrices<S>(plan, 0), 0, 0);
    const GemmBlocking<Kind> bl = whole.blocking(plan.m, plan.n, true);
    const int64_t i = t * bl.block_rows, rows = plan.m - i < bl.block_rows ? plan.m - i : bl.block_rows;
    for (int64_t at = 0; at < bl.depth; at += bl.block_depth) {
      const int64_t depth = bl.depth - at < bl.block_depth ? bl.depth - at : bl.block_depth;
      whole.pack_a()(packed_ + part.at + at * plan.m + i * depth, i, rows, at, depth, bl.panel_rows);
    }
  }

  void multiply(const GroupPart& group, int64_t j) const {
    const MatmulPlan plan = plan_of(group);
    const Part<Kind> part(plan, matrices<S>(plan, 0), 0, j);
    const int64_t cols = p_.n - j < cols_ ? p_.n - j : cols_;
    // The rows of its blocks are those that pack() had: they do not depend on the columns.
    GemmBlocking<Kind> bl = part.blocking(plan.m, cols, true);
    bl.set_block_cols(plan.m, gemm_ceil(cols, Kind::kCols) * Kind::kCols);
    char* scratch = static_cast<char*>(cpu::thread_scratch(bl.bytes()));
    auto* b = reinterpret_cast<const Elem*>(part.b);
    if (group.at == kNotPacked)
      return gemm_serial<Kind>(plan.m, cols, bl, part.pack_a(), part.pack_b(), b, plan.b.row_stride, part.out,
                               scratch);
    auto there = [&](Elem*, int64_t i, int64_t, int64_t at, int64_t depth, int64_t) {
      return packed_ + group.at + at * plan.m + i * depth;
    };
    gemm_serial<Kind>(plan.m, cols, bl, there, part.pack_b(), b, plan.b.row_stride, part.out, scratch);
  }

  const LaunchContext& ctx_;
  const GroupedMmPlan& p_;
  int64_t cols_, across_;
  GroupPart* parts_ = nullptr;
  Elem* packed_ = nullptr;
  int64_t count_ = 0;
};

void grouped_mm(const LaunchContext& ctx, const GroupedMmPlan& p) {
  dispatch_gemm(p.dtype, [&](auto kind) { GroupedProduct<decltype(kind)>(ctx, p).run(); });
}

}  // namespace

WT_KERNEL(grouped_mm, grouped_mm);

}  // namespace warptape::kernels::WARPTAPE_ISA
