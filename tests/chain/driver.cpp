// Kernel slots for ctypes: a chain, and elementwise ops one by one, over memory that the caller describes.
// Returns 0, 1 where no chain runs a formula, 2 where an integer was divided by zero, 3 where a device's
// chain has no kernel. On the emulated device memory is the caller's too.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "core/device_runtime.h"
#include "kernels/fused/chain.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

using namespace warptape;
using namespace warptape::kernels;

namespace {

struct GivenOperand {
  char* data;
  int32_t dtype, host_scalar;
  int64_t strides[8];
};
struct GivenStep {
  const char* slot;
  int32_t compute, result, count, in[kMaxStepInputs];
};
struct GivenGeometry {
  int64_t ndim, sizes[8];
};
struct GivenOp {
  const char* slot;
  int32_t compute, count;
  GivenGeometry geometry;
  GivenOperand operands[kMaxOperands];
};

Slot<FindChainFormulaFn> find_chain_formula("find_chain_formula");
Slot<ChainFn> chain("chain");
Slot<PrepareChainFn> prepare_chain("prepare_chain");
Slot<WaitForChainsFn> wait_for_chains("wait_for_chains");
bool on_device = false;

LaunchContext context(IndexFault& fault) {
  LaunchContext ctx;
  ctx.fault = &fault;
  if (on_device) ctx.device = DeviceType::CUDA;
  return ctx;
}
void finish() {
  if (on_device) runtime_of(DeviceType::CUDA).synchronize(0);
}

void fill(Operand& to, const GivenOperand& from, int64_t ndim) {
  to.data = from.data;
  to.dtype = DType(from.dtype);
  to.host_scalar = from.host_scalar != 0;
  for (int64_t d = 0; d < ndim; ++d) to.strides[d] = from.strides[d];
}

template <class Plan>
void fill(Plan& plan, const GivenGeometry& g) {
  plan.ndim = int(g.ndim);
  plan.numel = 1;
  for (int64_t d = 0; d < g.ndim; ++d) plan.numel *= plan.sizes[d] = g.sizes[d];
}

template <class F>
double fewest_seconds(int repeats, F&& f) {
  double fewest = 1e30;
  for (int r = 0; r < repeats; ++r) {
    const auto start = std::chrono::steady_clock::now();
    f();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    fewest = std::min(fewest, took.count());
  }
  return fewest;
}

}  // namespace

extern "C" {

WT_API void set_device(int cuda) { on_device = cuda != 0; }
WT_API void set_threads(int n) { cpu::set_num_threads(n); }

// One op after the other.
WT_API int run_ops(int ops, const GivenOp* given, int repeats, double* seconds) {
  IndexFault fault;
  const LaunchContext ctx = context(fault);
  std::vector<Slot<ElementwiseFn>> slots;
  std::vector<ElementwisePlan> plans(ops);
  for (int i = 0; i < ops; ++i) {
    slots.emplace_back(given[i].slot);
    fill(plans[i], given[i].geometry);
    plans[i].count = given[i].count;
    plans[i].compute = DType(given[i].compute);
    for (int k = 0; k < given[i].count; ++k) fill(plans[i].operands[k], given[i].operands[k], plans[i].ndim);
  }
  *seconds = fewest_seconds(repeats, [&] {
    for (int i = 0; i < ops; ++i) slots[i](ctx, plans[i]);
    finish();
  });
  return fault.set ? 2 : 0;
}

// `values[o]` is output o's value. The fewest seconds of `repeats` runs go to *seconds.
WT_API int run_chain(const GivenGeometry* g, int inputs, const GivenOperand* input, int steps,
                     const GivenStep* step, int outputs, const int* values, const GivenOperand* output,
                     int repeats, double* seconds) {
  ChainPlan plan;
  IndexFault fault;
  const LaunchContext ctx = context(fault);
  fill(plan, *g);
  plan.inputs = inputs;
  for (int k = 0; k < inputs; ++k) fill(plan.input[k], input[k], g->ndim);
  plan.steps = steps;
  for (int i = 0; i < steps; ++i) {
    ChainStep& s = plan.step[i];
    s.formula = find_chain_formula(ctx, step[i].slot, DType(step[i].compute), true);
    if (!s.formula) return 1;
    s.count = uint8_t(step[i].count);
    s.result = DType(step[i].result);
    for (int k = 0; k < s.count; ++k) s.in[k] = uint8_t(step[i].in[k]);
  }
  plan.outputs = outputs;
  for (int o = 0; o < outputs; ++o) {
    plan.output[o].value = uint8_t(values[o]);
    fill(plan.output[o].to, output[o], g->ndim);
  }
  if (on_device) {
    plan.prepared = prepare_chain(ctx, plan);
    wait_for_chains(ctx, false);
    if (const char* problem = plan.prepared->problem) {
      std::fprintf(stderr, "%s\n", problem);
      return 3;
    }
  }
  *seconds = fewest_seconds(repeats, [&] {
    chain(ctx, plan);
    finish();
  });
  return fault.set ? 2 : 0;
}

}  // extern "C"
