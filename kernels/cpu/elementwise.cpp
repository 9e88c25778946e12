// The elementwise driver. Contiguous operands of the compute type are used in place and scalars are read
// once; operands of another dtype or with other strides pass, a block at a time, through buffers that stay in
// the first cache level.

#include "kernels/cpu/elementwise.h"

#include "kernels/cpu/convert.h"
#include "kernels/cpu/parallel.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int64_t kBlockBytes = 4096;  // of one operand that pass through the buffers at once
constexpr int64_t kBlock = kBlockBytes / 8;
constexpr int64_t kGrain = 32768;  // elements a worker takes at once
constexpr int64_t kLongRow =
    256;  // bytes; from here on rows are taken one at a time, below it blocks span rows

enum class Access : uint8_t {
  kDirect,   // the loop reads or writes the operand in place
  kScalar,   // one value for the whole stretch
  kConvert,  // contiguous, of another dtype
  kGather,   // strided
};

struct OperandPlan {
  Access access;
  DType wanted;  // what the loop reads or writes
  uint8_t item;  // bytes of the operand's dtype
  uint8_t wanted_item;
  ConvertFn* convert;  // to the wanted type, for the output from it
};

struct Job {
  const LaunchContext* ctx;
  const ElementwisePlan* plan;
  LoopFn* loop;
  bool check_divisor;
  bool rows;      // stretches end with the innermost row
  bool blocks;    // some operand passes through a buffer
  int64_t block;  // elements at once, then
  OperandPlan operands[kMaxOperands];
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

void report_zero_divisor(const LaunchContext& ctx) {
  if (ctx.fault) __atomic_store_n(&ctx.fault->set, true, __ATOMIC_RELAXED);
}

void check_divisor(const LaunchContext& ctx, const int64_t* divisor, int64_t n, bool scalar) {
  bool zero = false;
  for (int64_t i = 0; i < (scalar ? 1 : n); ++i) zero |= divisor[i] == 0;
  if (zero) report_zero_divisor(ctx);
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
WT_FN bool all_zero(const int64_t* strides, int ndim) {
  int64_t any = 0;
  for (int d = 0; d < ndim; ++d) any |= strides[d];
  return any == 0;
}

WT_FN bool is_packed(const ElementwisePlan& plan, const Operand& op) {
  int64_t expect = int64_t(itemsize(op.dtype));
  for (int d = plan.ndim - 1; d >= 0; --d) {
    if (plan.sizes[d] != 1 && op.strides[d] != expect) return false;
    expect *= plan.sizes[d];
  }
  return true;
}

OperandPlan plan_operand(const ElementwisePlan& plan, const Loops& loops, int k, bool rows) {
  const Operand& op = plan.operands[k];
  const int last = plan.ndim - 1;
  OperandPlan r;
  r.wanted = wanted_type(plan, loops, k);
  r.item = uint8_t(itemsize(op.dtype));
  r.wanted_item = uint8_t(itemsize(r.wanted));
  r.convert = k == 0 ? converter(r.wanted, op.dtype) : converter(op.dtype, r.wanted);
  const bool packed = rows ? op.strides[last] == r.item : is_packed(plan, op);
  const bool scalar =
      k > 0 && (op.host_scalar || (rows ? op.strides[last] == 0 : all_zero(op.strides, plan.ndim)));
  if (scalar)
    r.access = Access::kScalar;
  else if (!packed)
    r.access = Access::kGather;
  else
    r.access = op.dtype == r.wanted ? Access::kDirect : Access::kConvert;
  return r;
}

// A place in the iteration space.
struct Position {
  int64_t coords[kMaxDims];

  WT_FN void set(const ElementwisePlan& plan, int64_t linear) {
    for (int d = plan.ndim - 1; d >= 0; --d) {
      coords[d] = linear % plan.sizes[d];
      linear /= plan.sizes[d];
    }
  }
  // n must not reach beyond the end of the innermost row.
  WT_FN void advance_in_row(const ElementwisePlan& plan, int64_t n) {
    int d = plan.ndim - 1;
    coords[d] += n;
    for (; d > 0 && coords[d] == plan.sizes[d]; --d) {
      coords[d] = 0;
      ++coords[d - 1];
    }
  }
  WT_FN int64_t offset(const ElementwisePlan& plan, const Operand& op) const {
    int64_t r = 0;
    for (int d = 0; d < plan.ndim; ++d) r += coords[d] * op.strides[d];
    return r;
  }
};

// Moves n elements from `at` on between a strided operand and a packed buffer, row after row.
void move_strided(const ElementwisePlan& plan, const Operand& op, Position at, int64_t n, char* buffer,
                  size_t item, bool to_buffer) {
  const int last = plan.ndim - 1;
  while (n > 0) {
    const int64_t rest = plan.sizes[last] - at.coords[last];
    const int64_t len = n < rest ? n : rest;
    char* p = op.data + at.offset(plan, op);
    if (to_buffer)
      gather(len, buffer, p, op.strides[last], item);
    else
      scatter(len, p, op.strides[last], buffer, item);
    buffer += len * int64_t(item);
    n -= len;
    at.advance_in_row(plan, len);
  }
}

struct Buffers {
  alignas(64) char values[kMaxOperands][kBlockBytes];  // of the wanted type
  alignas(64) char raw[kBlockBytes];                   // gathered, before conversion
};

// Where each operand has the element at a position: from row to row these are sums.
struct Places {
  char* of[kMaxOperands];

  WT_FN void set(const ElementwisePlan& plan, const Position& at) {
    for (int k = 0; k < plan.count; ++k) of[k] = plan.operands[k].data + at.offset(plan, plan.operands[k]);
  }
  // The position has moved by a whole row.
  WT_FN void next_row(const ElementwisePlan& plan, const Position& at) {
    const int outer = plan.ndim - 2;
    if (outer < 0 || at.coords[outer] == 0) return set(plan, at);
    for (int k = 0; k < plan.count; ++k) of[k] += plan.operands[k].strides[outer];
  }
};

// Where the loop finds n elements of input k, which start at `at`, and there at p.
const void* prepare_input(const Job& job, int k, const Position& at, const char* p, int64_t n,
                          Buffers& buffers) {
  const ElementwisePlan& plan = *job.plan;
  const Operand& op = plan.operands[k];
  const OperandPlan& how = job.operands[k];
  if (op.host_scalar) {
    how.convert(1, buffers.values[k], op.data);
    return buffers.values[k];
  }
  switch (how.access) {
    case Access::kDirect:
      return p;
    case Access::kScalar:
      if (op.dtype == how.wanted) return p;
      how.convert(1, buffers.values[k], p);
      return buffers.values[k];
    case Access::kConvert:
      how.convert(n, buffers.values[k], p);
      return buffers.values[k];
    case Access::kGather:
      break;
  }
  const bool same = op.dtype == how.wanted;
  char* packed = same ? buffers.values[k] : buffers.raw;
  move_strided(plan, op, at, n, packed, how.item, true);
  if (!same) how.convert(n, buffers.values[k], packed);
  return buffers.values[k];
}

void finish_output(const Job& job, const Position& at, int64_t n, Buffers& buffers) {
  const ElementwisePlan& plan = *job.plan;
  const Operand& op = plan.operands[0];
  const OperandPlan& how = job.operands[0];
  if (how.access == Access::kConvert) {
    how.convert(n, op.data + at.offset(plan, op), buffers.values[0]);
    return;
  }
  char* packed = buffers.values[0];
  if (op.dtype != how.wanted) {
    how.convert(n, buffers.raw, packed);
    packed = buffers.raw;
  }
  move_strided(plan, op, at, n, packed, how.item, false);
}

// Calls run(at, place of the output, n, inputs, scalar_mask, buffers) for stretches of at most `most`
// elements, in order.
template <class F>
WT_FN void walk(const Job& job, int64_t begin, int64_t end, int64_t most, F&& run) {
  const ElementwisePlan& plan = *job.plan;
  const int last = plan.ndim - 1;
  Buffers buffers;
  Position at;
  at.set(plan, begin);
  Places places;
  places.set(plan, at);
  unsigned scalar_mask = 0;
  for (int k = 1; k < plan.count; ++k)
    scalar_mask |= unsigned(job.operands[k].access == Access::kScalar) << (k - 1);
  while (begin < end) {
    int64_t n = end - begin < most ? end - begin : most;
    if (job.rows && n > plan.sizes[last] - at.coords[last]) n = plan.sizes[last] - at.coords[last];
    if (job.blocks && n > job.block) n = job.block;
    const void* in[kMaxOperands - 1] = {};
    for (int k = 1; k < plan.count; ++k)
      in[k - 1] = job.operands[k].access == Access::kDirect
                      ? places.of[k]
                      : prepare_input(job, k, at, places.of[k], n, buffers);
    run(at, places.of[0], n, in, scalar_mask, buffers);
    begin += n;
    if (job.rows && n == plan.sizes[last]) {
      at.advance_in_row(plan, n);
      places.next_row(plan, at);
      continue;
    }
    if (job.rows)
      at.advance_in_row(plan, n);
    else
      at.set(plan, begin);
    places.set(plan, at);
  }
}

void run_range(const Job& job, int64_t begin, int64_t end) {
  const bool direct_out = job.operands[0].access == Access::kDirect;
  walk(job, begin, end, end - begin,
       [&](const Position& at, char* place, int64_t n, const void* const* in, unsigned scalar_mask,
           Buffers& buffers) {
         if (job.check_divisor)
           check_divisor(*job.ctx, static_cast<const int64_t*>(in[1]), n, scalar_mask & 2);
         void* out = direct_out ? place : buffers.values[0];
         job.loop(n, out, in, scalar_mask);
         if (!direct_out) finish_output(job, at, n, buffers);
       });
}

Job job_of(const LaunchContext& ctx, const ElementwisePlan& plan, const Loops& loops, LoopFn* loop) {
  Job job;
  job.ctx = &ctx;
  job.plan = &plan;
  job.loop = loop;
  job.check_divisor = loops.divides_integers && plan.compute == DType::Int64;
  job.rows = plan.ndim == 1 || plan.sizes[plan.ndim - 1] * int64_t(itemsize(plan.compute)) >= kLongRow;
  job.blocks = false;
  job.block = kBlock;
  for (int k = 0; k < plan.count; ++k) {
    job.operands[k] = plan_operand(plan, loops, k, job.rows);
    if (itemsize(plan.operands[k].dtype) > 8 || job.operands[k].wanted_item > 8) job.block = kBlock / 2;
    job.blocks |= job.operands[k].access == Access::kConvert || job.operands[k].access == Access::kGather;
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

void run_with_loop(const LaunchContext& ctx, const ElementwisePlan& plan, const Loops& loops, LoopFn* loop) {
  if (plan.numel == 0 || try_flat(ctx, plan, loops, loop)) return;
  if (plan.ndim > 0) return run_general(ctx, plan, loops, loop);
  run_general(ctx, as_row(plan), loops, loop);  // one value of another dtype
}

void run_elementwise(const LaunchContext& ctx, const ElementwisePlan& plan, const Loops& loops) {
  run_with_loop(ctx, plan, loops, loop_for(loops, plan.compute));
}

double sum_elementwise(const LaunchContext& ctx, const ElementwisePlan& given, const Loops& loops) {
  if (given.ndim == 0) return sum_elementwise(ctx, as_row(given), loops);
  if (given.numel == 0) return 0;
  const Job job = job_of(ctx, given, loops, loop_for(loops, given.compute));
  // Short stretches, so that little is added up before it reaches a double.
  auto sum_range = [&](int64_t begin, int64_t end) {
    double sum = 0;
    walk(job, begin, end, 2 * kBlock,
         [&](const Position&, char*, int64_t n, const void* const* in, unsigned scalar_mask, Buffers&) {
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
