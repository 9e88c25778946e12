// Operands of every layout and dtype, brought to where loops over contiguous memory of their own types find
// them: contiguous ones of the wanted type in place, scalars as one value, all others through buffers that
// stay in the first cache level. A Plan has ndim, sizes, numel, count and operands, as ElementwisePlan does.
#pragma once

#include "kernels/cpu/view/convert.h"
#include "kernels/elementwise/elementwise.h"

namespace warptape::kernels::WARPTAPE_ISA {

enum class Access : uint8_t {
  kDirect,   // the loop reads or writes the operand in place
  kScalar,   // one value for the whole tile
  kConvert,  // contiguous, of another dtype
  kGather,   // strided
};

struct OperandPlan {
  Access access;
  DType wanted;  // what the loop reads or writes
  uint8_t item;  // bytes of the operand's dtype
  uint8_t wanted_item;
  ConvertFn* convert;  // to the wanted type, for an output from it
  uint32_t buffer;     // where in the scratch memory its buffer starts
};

// How the elements of a plan are taken, tile by tile. The first `outputs` operands are outputs.
template <class Plan>
struct TileWalk {
  static constexpr int kOperands = int(std::extent_v<decltype(Plan::operands)>);
  const Plan* plan;
  int outputs;
  bool rows;      // tiles end with the innermost row
  bool blocks;    // some operand passes through a buffer
  int64_t block;  // elements at once, then
  uint32_t raw;   // where in the scratch memory what was gathered waits for its conversion
  OperandPlan operands[kOperands];
};

WT_FN bool all_zero(const int64_t* strides, int ndim) {
  int64_t any = 0;
  for (int d = 0; d < ndim; ++d) any |= strides[d];
  return any == 0;
}

template <class Plan>
WT_FN bool is_packed(const Plan& plan, const Operand& op) {
  int64_t expect = int64_t(itemsize(op.dtype));
  for (int d = plan.ndim - 1; d >= 0; --d) {
    if (plan.sizes[d] != 1 && op.strides[d] != expect) return false;
    expect *= plan.sizes[d];
  }
  return true;
}

template <class Plan>
WT_FN OperandPlan plan_operand(const Plan& plan, const Operand& op, DType wanted, bool output, bool rows) {
  const int last = plan.ndim - 1;
  OperandPlan r;
  r.wanted = wanted;
  r.item = uint8_t(itemsize(op.dtype));
  r.wanted_item = uint8_t(itemsize(wanted));
  r.convert = output ? converter(wanted, op.dtype) : converter(op.dtype, wanted);
  r.buffer = 0;
  const bool packed = rows ? op.strides[last] == r.item : is_packed(plan, op);
  const bool scalar =
      !output && (op.host_scalar || (rows ? op.strides[last] == 0 : all_zero(op.strides, plan.ndim)));
  if (scalar)
    r.access = Access::kScalar;
  else if (!packed)
    r.access = Access::kGather;
  else
    r.access = op.dtype == wanted ? Access::kDirect : Access::kConvert;
  return r;
}

// Keeps r in a general register. GCC makes vectors of loops over places, and of the least of two integers;
// a vector that is loaded from what was stored piece by piece waits until all stores before it have reached
// the cache: those of a whole tile.
WT_FN void one_by_one(int64_t& r) { asm volatile("" : "+r"(r)); }

// A place in the iteration space.
template <class Plan>
struct Position {
  int64_t coords[kMaxDims];

  WT_FN void set(const Plan& plan, int64_t linear) {
    for (int d = plan.ndim - 1; d >= 0; --d) {
      coords[d] = linear % plan.sizes[d];
      linear /= plan.sizes[d];
    }
  }
  // n must not reach beyond the end of dim d.
  WT_FN void advance(const Plan& plan, int d, int64_t n) {
    coords[d] += n;
    for (; d > 0 && coords[d] == plan.sizes[d]; --d) {
      coords[d] = 0;
      ++coords[d - 1];
    }
  }
  WT_FN void advance_in_row(const Plan& plan, int64_t n) { advance(plan, plan.ndim - 1, n); }
  WT_FN int64_t offset(const Plan& plan, const Operand& op) const {
    int64_t r = 0;
    for (int d = 0; d < plan.ndim; ++d) {
      r += coords[d] * op.strides[d];
      one_by_one(r);
    }
    return r;
  }
};

// Moves n elements from `at` on between a strided operand and a packed buffer: as many whole rows at once as
// the next dim has, or a part of one row.
template <class Plan>
void move_strided(const Plan& plan, const Operand& op, Position<Plan> at, int64_t n, char* buffer,
                  size_t item, bool to_buffer) {
  const int last = plan.ndim - 1;
  const int64_t size = plan.sizes[last], stride = op.strides[last];
  while (n > 0) {
    const bool whole = last > 0 && at.coords[last] == 0 && n >= size;
    const int64_t left = size - at.coords[last];
    const int64_t len = n < left ? n : left;
    int64_t rows = 1;
    if (whole) {
      const int64_t below = plan.sizes[last - 1] - at.coords[last - 1];
      rows = n / size < below ? n / size : below;
    }
    const int64_t row_stride = whole ? op.strides[last - 1] : 0;
    char* p = op.data + at.offset(plan, op);
    if (to_buffer)
      gather_rows(rows, len, buffer, p, stride, row_stride, item);
    else
      scatter_rows(rows, len, p, stride, row_stride, buffer, item);
    buffer += rows * len * int64_t(item);
    n -= rows * len;
    at.advance(plan, whole ? last - 1 : last, whole ? rows : len);
  }
}

// Where each operand has the element at a position: from row to row these are sums.
template <class Plan>
struct Places {
  char* of[TileWalk<Plan>::kOperands];

  WT_FN void set(const Plan& plan, const Position<Plan>& at) {
    for (int k = 0; k < plan.count; ++k) of[k] = plan.operands[k].data + at.offset(plan, plan.operands[k]);
  }
  // The position has moved by a whole row.
  WT_FN void next_row(const Plan& plan, const Position<Plan>& at) {
    const int outer = plan.ndim - 2;
    if (outer < 0 || at.coords[outer] == 0) return set(plan, at);
    move(plan, outer, 1);
  }
  // The position has moved by n within dim d.
  WT_FN void move(const Plan& plan, int d, int64_t n) {
    for (int k = 0; k < plan.count; ++k) {
      int64_t step = n * plan.operands[k].strides[d];
      one_by_one(step);
      of[k] += step;
    }
  }
};

// Where the loop finds n elements of input k, which start at `at`, and there at p.
template <class Plan>
const void* prepare_input(const TileWalk<Plan>& job, int k, const Position<Plan>& at, const char* p,
                          int64_t n, char* scratch) {
  const Operand& op = job.plan->operands[k];
  const OperandPlan& how = job.operands[k];
  char* const buffer = scratch + how.buffer;
  if (op.host_scalar) {
    how.convert(1, buffer, op.data);
    return buffer;
  }
  switch (how.access) {
    case Access::kDirect:
      return p;
    case Access::kScalar:
      if (op.dtype == how.wanted) return p;
      how.convert(1, buffer, p);
      return buffer;
    case Access::kConvert:
      how.convert(n, buffer, p);
      return buffer;
    case Access::kGather:
      break;
  }
  const bool same = op.dtype == how.wanted;
  char* packed = same ? buffer : scratch + job.raw;
  move_strided(*job.plan, op, at, n, packed, how.item, true);
  if (!same) how.convert(n, buffer, packed);
  return buffer;
}

// Brings n elements of output k, which the loop has left in its buffer, to their place.
template <class Plan>
void finish_output(const TileWalk<Plan>& job, int k, const Position<Plan>& at, int64_t n, char* scratch) {
  const Operand& op = job.plan->operands[k];
  const OperandPlan& how = job.operands[k];
  char* packed = scratch + how.buffer;
  if (how.access == Access::kConvert) {
    how.convert(n, op.data + at.offset(*job.plan, op), packed);
    return;
  }
  if (op.dtype != how.wanted) {
    how.convert(n, scratch + job.raw, packed);
    packed = scratch + job.raw;
  }
  move_strided(*job.plan, op, at, n, packed, how.item, false);
}

// Calls run(at, places of the operands, n, inputs, scalar_mask) for tiles of at most `most` elements, in
// order.
template <class Plan, class F>
WT_FN void walk(const TileWalk<Plan>& job, int64_t begin, int64_t end, int64_t most, char* scratch, F&& run) {
  const Plan& plan = *job.plan;
  const int last = plan.ndim - 1, first = job.outputs;
  Position<Plan> at;
  at.set(plan, begin);
  Places<Plan> places;
  places.set(plan, at);
  unsigned scalar_mask = 0;
  for (int k = first; k < plan.count; ++k)
    scalar_mask |= unsigned(job.operands[k].access == Access::kScalar) << (k - first);
  while (begin < end) {
    int64_t n = end - begin < most ? end - begin : most;
    one_by_one(n);
    if (job.rows && n > plan.sizes[last] - at.coords[last]) n = plan.sizes[last] - at.coords[last];
    one_by_one(n);
    if (job.blocks && n > job.block) n = job.block;
    one_by_one(n);
    const void* in[TileWalk<Plan>::kOperands] = {};
    for (int k = first; k < plan.count; ++k)
      in[k - first] = job.operands[k].access == Access::kDirect
                          ? places.of[k]
                          : prepare_input(job, k, at, places.of[k], n, scratch);
    run(at, places.of, n, in, scalar_mask);
    begin += n;
    if (job.rows && n == plan.sizes[last]) {
      at.advance_in_row(plan, n);
      places.next_row(plan, at);
      continue;
    }
    if (job.rows) {
      at.advance_in_row(plan, n);
      if (at.coords[last] != 0) {
        places.move(plan, last, n);
        continue;
      }
    } else {
      at.set(plan, begin);
    }
    places.set(plan, at);
  }
}

}  // namespace warptape::kernels::WARPTAPE_ISA
