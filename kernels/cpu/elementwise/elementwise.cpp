// The elementwise driver. Contiguous operands of the compute type are used in place and scalars are read
// once; operands of another dtype or with other strides pass, a block at a time, through buffers that stay in
// the first cache level.

#include "kernels/cpu/elementwise/elementwise.h"

#include "kernels/cpu/vector/tile.h"
#include "kernels/runtime/parallel.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int64_t kBlockBytes = 4096;  // of one operand that pass through the buffers at once
constexpr int64_t kBlock = kBlockBytes / 8;
constexpr int64_t kGrain = 32768;  // elements a worker takes at once
constexpr int64_t kLongRow =
    256;  // bytes; from here on rows are taken one at a time, below it blocks span rows

struct Job {
  const LaunchContext* ctx;
  LoopFn* loop;
  bool check_divisor;
  TileWalk<ElementwisePlan> tiles;
};

union alignas(16) ScalarSlot {
  char bytes[16];
};

WT_FN DType wanted_type(const ElementwisePlan& plan, const Loops& loops, int k) {
  return (k == 0 && loops.predicate) || (k == 1 && loops.mask_first) ? DType::Bool : plan.compute;
}

WT_FN LoopFn* loop_or_null(const Loops& loops, DType compute) {
  switch (compute) {
    case DType::Float32:
      return loops.f32;
    case DType::Float64:
      return loops.f64;
    case DType::Complex64:
      return loops.c64;
    case DType::Complex128:
      return loops.c128;
    default:
      return loops.i64;
  }
}
WT_FN LoopFn* loop_for(const Loops& loops, DType compute) {
  LoopFn* loop = loop_or_null(loops, compute);
  if (__builtin_expect(!loop, 0)) refuse_compute_dtype(compute);
  return loop;
}

// ---- one dimension, everything direct or scalar: nearly every call ----
struct FlatJob {
  LoopFn* loop;
  int inputs;
  unsigned scalar_mask;
  const LaunchContext* checked;  // when divisors are to be looked at
  char* out;
  int64_t out_item;
  const char* in[kMaxOperands - 1];
  int64_t in_item[kMaxOperands - 1];  // 0 for scalars
};

WT_FN void run_flat(const FlatJob& job, int64_t begin, int64_t end) {
  const void* in[kMaxOperands - 1] = {};
  for (int k = 0; k < job.inputs; ++k) in[k] = job.in[k] + begin * job.in_item[k];
  if (__builtin_expect(job.checked != nullptr, 0))
    check_divisor(*job.checked, static_cast<const int64_t*>(in[1]), end - begin, job.scalar_mask & 2);
  job.loop(end - begin, job.out + begin * job.out_item, in, job.scalar_mask);
}

bool try_flat(const LaunchContext& ctx, const ElementwisePlan& plan, const Loops& loops, LoopFn* loop) {
  if (plan.ndim > 1) return false;
  const int64_t n = plan.numel;
  const int last = 0;
  FlatJob job;
  ScalarSlot slots[kMaxOperands - 1];
  job.loop = loop;
  job.inputs = plan.count - 1;
  job.scalar_mask = 0;
  job.checked = loops.divides_integers && plan.compute == DType::Int64 ? &ctx : nullptr;
  const Operand& out = plan.operands[0];
  const DType out_type = wanted_type(plan, loops, 0);
  job.out = out.data;
  job.out_item = int64_t(itemsize(out_type));
  if (out.dtype != out_type || (n != 1 && out.strides[last] != job.out_item)) return false;
  for (int k = 0; k < job.inputs; ++k) {
    const Operand& op = plan.operands[k + 1];
    const DType type = wanted_type(plan, loops, k + 1);
    const int64_t item = int64_t(itemsize(type));
    job.in[k] = op.data;
    job.in_item[k] = item;
    if (op.host_scalar || n == 1 || op.strides[last] == 0) {
      job.in_item[k] = 0;
      job.scalar_mask |= 1u << k;
      if (op.dtype != type) {
        converter(op.dtype, type)(1, slots[k].bytes, op.data);
        job.in[k] = slots[k].bytes;
      }
    } else if (op.dtype != type || op.strides[last] != item) {
      return false;
    }
  }
  if (n == 1) job.scalar_mask = 0;  // one element is a vector's tail: nothing to spread
  if (n <= kGrain)
    run_flat(job, 0, n);
  else
    cpu::parallel_for(n, kGrain, [&](int64_t b, int64_t e) { run_flat(job, b, e); });
  return true;
}

// ---- any layout ----
struct Buffers {
  alignas(64) char values[kMaxOperands][kBlockBytes];  // of the wanted type
  alignas(64) char raw[kBlockBytes];                   // gathered, before conversion
};

void run_range(const Job& job, int64_t begin, int64_t end) {
  const auto& tiles = job.tiles;
  const bool direct_out = tiles.operands[0].access == Access::kDirect;
  Buffers buffers;
  walk(tiles, begin, end, end - begin, buffers.values[0],
       [&](const auto& at, char* const* places, int64_t n, const void* const* in, unsigned scalar_mask) {
         if (job.check_divisor)
           check_divisor(*job.ctx, static_cast<const int64_t*>(in[1]), n, scalar_mask & 2);
         job.loop(n, direct_out ? places[0] : buffers.values[0], in, scalar_mask);
         if (!direct_out) finish_output(tiles, 0, at, n, buffers.values[0]);
       });
}

Job job_of(const LaunchContext& ctx, const ElementwisePlan& plan, const Loops& loops, LoopFn* loop) {
  Job job;
  job.ctx = &ctx;
  job.loop = loop;
  job.check_divisor = loops.divides_integers && plan.compute == DType::Int64;
  auto& tiles = job.tiles;
  tiles.plan = &plan;
  tiles.outputs = 1;
  tiles.rows = plan.ndim == 1 || plan.sizes[plan.ndim - 1] * int64_t(itemsize(plan.compute)) >= kLongRow;
  tiles.blocks = false;
  tiles.block = kBlock;
  tiles.raw = offsetof(Buffers, raw);
  for (int k = 0; k < plan.count; ++k) {
    OperandPlan& how = tiles.operands[k];
    how = plan_operand(plan, plan.operands[k], wanted_type(plan, loops, k), k == 0, tiles.rows);
    how.buffer = uint32_t(k * kBlockBytes);
    if (itemsize(plan.operands[k].dtype) > 8 || how.wanted_item > 8) tiles.block = kBlock / 2;
    tiles.blocks |= how.access == Access::kConvert || how.access == Access::kGather;
  }
  return job;
}

void run_general(const LaunchContext& ctx, const ElementwisePlan& plan, const Loops& loops, LoopFn* loop) {
  const Job job = job_of(ctx, plan, loops, loop);
  cpu::parallel_for(plan.numel, kGrain, [&](int64_t b, int64_t e) { run_range(job, b, e); });
}

// A plan without dims as a row of one.
ElementwisePlan as_row(const ElementwisePlan& plan) {
  ElementwisePlan row = plan;
  row.ndim = 1;
  row.sizes[0] = 1;
  for (int k = 0; k < row.count; ++k) row.operands[k].strides[0] = int64_t(itemsize(row.operands[k].dtype));
  return row;
}

}  // namespace

void check_divisor(const LaunchContext& ctx, const int64_t* divisor, int64_t n, bool scalar) {
  bool zero = false;
  for (int64_t i = 0; i < (scalar ? 1 : n); ++i) zero |= divisor[i] == 0;
  if (zero && ctx.fault) __atomic_store_n(&ctx.fault->set, true, __ATOMIC_RELAXED);
}

void run_with_loop(const LaunchContext& ctx, const ElementwisePlan& plan, const Loops& loops, LoopFn* loop) {
  if (plan.numel == 0 || try_flat(ctx, plan, loops, loop)) return;
  if (plan.ndim > 0) return run_general(ctx, plan, loops, loop);
  run_general(ctx, as_row(plan), loops, loop);  // one value of another dtype
}

// The dtype of all operands but a predicate's result and a mask, if scalars are numbers of it, too.
DType common_dtype(const ElementwisePlan& plan, const Loops& loops) {
  const int first = loops.predicate ? 1 : 0;
  DType found = DType::Int64;
  for (int pass = 0; pass < 2; ++pass)
    for (int k = first; k < plan.count; ++k) {
      const Operand& op = plan.operands[k];
      if (k == 1 && loops.mask_first) {
        if (op.dtype != DType::Bool || op.host_scalar) return DType::Int64;
      } else if (!op.host_scalar) {
        if (found == DType::Int64) found = op.dtype;
        if (op.dtype != found) return DType::Int64;
      } else if (pass) {
        int64_t value, back;
        ScalarSlot narrow;
        converter(op.dtype, DType::Int64)(1, &value, op.data);
        converter(DType::Int64, found)(1, narrow.bytes, &value);
        converter(found, DType::Int64)(1, &back, narrow.bytes);
        if (value != back) return DType::Int64;
      }
    }
  return found;
}

// Whether it was run in the integers' own width.
bool run_narrow(const LaunchContext& ctx, const ElementwisePlan& plan, const Loops& loops) {
  const DType dtype = common_dtype(plan, loops);
  LoopFn* loop = dtype == DType::UInt8   ? loops.u8
                 : dtype == DType::Bool  ? loops.b8
                 : dtype == DType::Int32 ? loops.i32
                                         : nullptr;
  if (!loop) return false;
  ElementwisePlan narrow = plan;
  narrow.compute = dtype;
  run_with_loop(ctx, narrow, loops, loop);
  return true;
}

void run_elementwise(const LaunchContext& ctx, const ElementwisePlan& plan, const Loops& loops) {
  if (plan.compute == DType::Int64 && loops.i32 && run_narrow(ctx, plan, loops)) return;
  run_with_loop(ctx, plan, loops, loop_for(loops, plan.compute));
}

double sum_elementwise(const LaunchContext& ctx, const ElementwisePlan& given, const Loops& loops) {
  if (given.ndim == 0) return sum_elementwise(ctx, as_row(given), loops);
  if (given.numel == 0) return 0;
  const Job job = job_of(ctx, given, loops, loop_for(loops, given.compute));
  // Short tiles, so that little is added up before it reaches a double.
  auto sum_range = [&](int64_t begin, int64_t end) {
    double sum = 0;
    Buffers buffers;
    walk(job.tiles, begin, end, 2 * kBlock, buffers.values[0],
         [&](const auto&, char* const*, int64_t n, const void* const* in, unsigned scalar_mask) {
           job.loop(n, &sum, in, scalar_mask);
         });
    return sum;
  };
  if (given.numel <= kGrain) return sum_range(0, given.numel);
  const int64_t parts = (given.numel + kGrain - 1) / kGrain;
  double* sums = static_cast<double*>(ctx.scratch(size_t(parts) * sizeof(double)));
  cpu::parallel_for(given.numel, kGrain, [&](int64_t b, int64_t e) { sums[b / kGrain] = sum_range(b, e); });
  double total = 0;
  for (int64_t i = 0; i < parts; ++i) total += sums[i];
  return total;
}

}  // namespace warptape::kernels::WARPTAPE_ISA
