// A chain: several elementwise ops over one geometry in one pass over memory. Each step computes what the
// op's own kernel computes, to the bit, and rounds it as storing it would; only what the caller names as an
// output is stored. Slots: "find_chain_formula", "chain" and, on CUDA, "prepare_chain".
#pragma once

#include <atomic>

#include "kernels/elementwise/elementwise.h"

namespace warptape::kernels {

inline constexpr int kMaxChainInputs = 24, kMaxChainSteps = 48, kMaxChainOutputs = 12;
inline constexpr int kMaxStepInputs = kMaxOperands - 1;
inline constexpr uint8_t kAbsent = 0xff;           // of ChainStep::in: a tensor that a kernel is not given
inline constexpr int64_t kLongestChainRow = 8192;  // elements

// An elementwise op in one compute type, or on CUDA a kernel by rows; found once, valid as long as the
// process.
struct ChainFormula;

struct ChainStep {
  const ChainFormula* formula;
  uint8_t count;               // inputs, as many as the op's kernel has
  uint8_t in[kMaxStepInputs];  // values: v < kMaxChainInputs is input v, else the result of an earlier step,
                               // v - kMaxChainInputs; converted to the compute type as the op's kernel does
  DType result;  // in which the op stores its result, so rounded to it; Bool for predicates. Not complex.
};

// One value, converted to the operand's dtype where that is another than the value's.
struct ChainOutput {
  uint8_t value;  // as in ChainStep::in
  Operand to;     // with no stride of 0 where the size is above 1
};

// On CUDA one step may be a kernel that runs by rows, layer or RMS norm or its backward, in Float32, BFloat16
// or Float16: its slot's tensors, in their order, are ChainStep::in, its first result is the step's value.
// Rows are along the last dim, 16 bytes at least and kLongestChainRow elements at most, in multiples of 16
// bytes, and all operands have their elements there next to each other, or all the same, at multiples of 16
// bytes.
struct ChainRows {
  int step = -1;      // none
  double number = 0;  // its argument
  // Of its tensors those that have another geometry: one number a row, or, of `out`, sums over all rows.
  View in[kMaxStepInputs], out[kMaxStepInputs];
};

// A chain whose kernel is compiled by another thread. Lives as long as the process, one for all equal chains.
struct PreparedChain {
  std::atomic<const char*> problem;  // why it cannot run yet, or ever; null where it can
  std::atomic<bool> failed{false};   // it never will
};

// Geometry as in ElementwisePlan: dims are ordered so that the last one is the fastest of the outputs, and
// merged where all operands allow it; strides are in bytes, 0 where broadcast. An output may be the memory of
// an input of the same geometry and dtype; other overlaps are not allowed, nor that two such outputs swap.
struct ChainPlan {
  int ndim;
  int64_t numel;
  int64_t sizes[kMaxDims];
  int inputs;
  // Of any dtype but complex; host_scalar: one value in host memory, on CUDA for one step.
  Operand input[kMaxChainInputs];
  int steps;
  ChainStep step[kMaxChainSteps];
  int outputs;
  ChainOutput output[kMaxChainOutputs];
  ChainRows rows;
  PreparedChain* prepared = nullptr;  // of devices that have "prepare_chain"
};

// The formula of the elementwise slot of that name, computed in Float32, Float64 or Int64, or of a kernel by
// rows, `compute` being its tensors' dtype; null where no chain runs it. "copy" with any compute type is the
// cast to the step's result dtype; of a number, a fill. `by_number`: the last input is a number. "pow" needs
// one: its kernel takes another way for an exponent that is the same along a row, which a chain may see
// otherwise.
using FindChainFormulaFn = const ChainFormula*(const LaunchContext&, const char* slot_name, DType compute,
                                               bool by_number);

// Has the chain's kernel compiled: addresses and numbers do not matter yet.
using PrepareChainFn = PreparedChain*(const LaunchContext&, const ChainPlan&);
// Slot "wait_for_chains": returns when no kernel is being compiled; `give_up`: those not begun never will be.
using WaitForChainsFn = void(const LaunchContext&, bool give_up);

// Integer divisions by zero are reported to ctx.fault. Equal for any number of threads.
using ChainFn = void(const LaunchContext&, const ChainPlan&);

}  // namespace warptape::kernels
